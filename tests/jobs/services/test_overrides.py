"""Single planned times, skipped and moved: what may be changed, and what the trigger makes of it."""

from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.errors import InstantTaken, InvalidInput, JobNotRunnable, Missing, TooMany
from jobs.models import Effect, Job, JobClock, JobStatus, Override, SuspensionKind
from jobs.schedules import upcoming
from jobs.services.definition import edit_job
from jobs.services.occurrences import schedule_of
from jobs.services.overrides import (
    OverrideDone,
    open_overrides,
    remove_override,
    set_override,
)
from jobs.services.preview import look_ahead
from jobs.services.status import cancel_job, pause_job, resume_job
from jobs.validation.instants import as_text
from runs.models import LiveRun, Run
from runs.scheduler.trigger.trigger import trigger_job
from tests.support.factories import make_finished_run, make_suspension, post_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
def job() -> Job:
    return post_job(schedule={"every": 3600}, tags={"team": "payments"})


def times(job: Job, number: int = 3) -> list[datetime]:
    spec = job.spec
    return upcoming(schedule_of(spec), database_now(), number, anchor=spec.anchor_at)


def clock(job: Job) -> datetime | None:
    return JobClock.objects.get(job=job).next_run_at


def skip(job: Job, at: datetime, **more: Any) -> Override:
    return set_override(job, {"planned_at": as_text(at), "skip": True, **more})[0]


def move(job: Job, at: datetime, to: datetime, **more: Any) -> Override:
    return set_override(job, {"planned_at": as_text(at), "move_to": as_text(to), **more})[0]


def trigger_at(job: Job, at: datetime) -> None:
    connection.ensure_connection()
    trigger_job(connection.connection, job.pk, at)


def test_a_skipped_time_is_reported_and_the_clock_stays(job: Job) -> None:
    first, second, _ = times(job)
    override = skip(job, second, reason="holiday")
    assert (override.moved_to, override.reason, override.created_by, override.done_at) == (
        None,
        "holiday",
        "system",
        None,
    )
    assert clock(job) == first
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.object_id, entry.reason) == ("override.skipped", str(job.pk), "holiday")
    assert (entry.after or {})["planned_at"] == as_text(second)


def test_the_run_of_a_skipped_time_begins_as_skipped(job: Job) -> None:
    first, second, _ = times(job)
    skip(job, first, reason="holiday")
    trigger_at(job, first + SECOND)
    run = Run.objects.get(job=job)
    assert (run.planned_at, run.state, run.reason) == (first, "skipped", "skipped: by system, holiday")
    assert not LiveRun.objects.exists() and clock(job) == second
    assert Override.objects.get(job=job).done_at is not None


def test_moving_a_time_forward_moves_the_clock_with_it(job: Job) -> None:
    first, second, _ = times(job)
    to = first - HOUR / 2
    move(job, second, to)
    assert clock(job) == to
    trigger_at(job, to + SECOND)
    run = Run.objects.get(job=job)
    assert run.planned_at == second and run.live.available_at == to and clock(job) == first


def test_moving_a_time_back_leaves_the_clock(job: Job) -> None:
    first, second, _ = times(job)
    to = first + HOUR / 2
    move(job, first, to)
    assert clock(job) == first
    trigger_at(job, first + SECOND)
    assert not Run.objects.filter(job=job).exists() and clock(job) == to
    trigger_at(job, to + SECOND)
    assert Run.objects.get(job=job).planned_at == first and clock(job) == second


def test_the_last_word_counts(job: Job) -> None:
    first, second, _ = times(job)
    one = move(job, second, first - HOUR / 2)
    again = skip(job, second)
    assert one.pk == again.pk and again.moved_to is None and clock(job) == first
    entries = AuditEntry.objects.count()
    assert skip(job, second).pk == one.pk
    assert AuditEntry.objects.count() == entries and Override.objects.count() == 1


def test_an_override_is_deleted(job: Job) -> None:
    first, second, _ = times(job)
    override = move(job, second, first - HOUR / 2)
    remove_override(job, override.pk, "not needed")
    assert clock(job) == first and not Override.objects.exists()
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.reason) == ("override.deleted", "not needed")
    with pytest.raises(Missing):
        remove_override(job, override.pk)


def test_an_override_that_is_done_stays(job: Job) -> None:
    first, *_ = times(job)
    override = skip(job, first)
    trigger_at(job, first + SECOND)
    with pytest.raises(OverrideDone):
        remove_override(job, override.pk)


def test_a_moved_time_that_has_come_is_moved_on_but_not_dropped(job: Job) -> None:
    first, *_ = times(job)
    override = move(job, first, first + HOUR / 2)
    trigger_at(job, first + SECOND)
    with at(first + 2 * SECOND):
        with pytest.raises(OverrideDone):
            remove_override(job, override.pk)
        with pytest.raises(InvalidInput, match="in the past"):
            skip(job, first)
        move(job, first, first + HOUR / 4)
    assert clock(job) == first + HOUR / 4


@pytest.mark.parametrize(
    ("data", "field", "said"),
    [
        ({}, "planned_at", "required"),
        ({"planned_at": "soon", "skip": True}, "planned_at", "not an instant"),
        ({"planned_at": None, "skip": True}, "planned_at", "null"),
        ({"planned_at": "2099-01-01T00:00:00Z"}, "skip", "one of them"),
        ({"planned_at": "2099-01-01T00:00:00Z", "skip": False}, "skip", "says nothing"),
        (
            {"planned_at": "2099-01-01T00:00:00Z", "skip": True, "move_to": "2099-01-01T01:00:00Z"},
            "skip",
            "one of",
        ),
        ({"planned_at": "2099-01-01T00:00:00Z", "move_to": 5}, "move_to", "not an instant"),
        ({"planned_at": "2099-01-01T00:00:00Z", "skip": True, "reason": 5}, "reason", "not a reason"),
        ({"planned_at": "2099-01-01T00:00:00Z", "skip": True, "why": "x"}, "why", "not known"),
        ({"planned_at": "2001-01-01T00:00:00Z", "skip": True}, "planned_at", "in the past"),
        ([], "", "not an object"),
    ],
)
def test_what_makes_no_sense_is_refused(job: Job, data: Any, field: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        set_override(job, data)
    assert refused.value.field == field
    assert not Override.objects.exists()


def test_an_instant_that_is_not_planned_is_answered_with_the_nearest(job: Job) -> None:
    first, second, _ = times(job)
    with pytest.raises(InvalidInput) as refused:
        skip(job, first + timedelta(milliseconds=1))
    assert refused.value.code == "not_planned"
    assert as_text(first) in refused.value.hint and as_text(second) in refused.value.hint
    with pytest.raises(InvalidInput, match="no planned time") as refused:
        skip(post_job(), first)
    assert "no planned times" in refused.value.hint


def test_a_time_that_has_its_run_is_refused_with_a_link(job: Job) -> None:
    _, second, _ = times(job)
    run = make_finished_run(job, planned_at=second)
    with pytest.raises(InstantTaken) as refused:
        skip(job, second)
    assert refused.value.field == "planned_at" and str(run.pk) in refused.value.link


def test_a_time_is_moved_only_as_far_as_its_partition_lives(job: Job) -> None:
    first, *_ = times(job, 1)
    far = times(job, 24 * 20)[-1]
    for planned, to in ((first, first + timedelta(days=28)), (far, database_now() + HOUR)):
        with pytest.raises(InvalidInput) as refused:
            move(job, planned, to)
        assert (refused.value.field, refused.value.code) == ("move_to", "too_far")
        assert "skip it" in refused.value.hint
    assert move(job, first, first + timedelta(days=26)).pk
    assert move(job, far, far - timedelta(days=11)).pk


def test_a_time_is_not_moved_to_itself_or_to_the_past(job: Job) -> None:
    first, *_ = times(job)
    for to in (first, database_now() - SECOND):
        with pytest.raises(InvalidInput) as refused:
            move(job, first, to)
        assert refused.value.field == "move_to"


@pytest.mark.parametrize("status", [JobStatus.CANCELLED, JobStatus.FINISHED, JobStatus.UNRUNNABLE])
def test_a_job_without_planned_times_is_refused(job: Job, status: JobStatus) -> None:
    first, *_ = times(job)
    Job.objects.filter(pk=job.pk).update(status=status)
    with pytest.raises(JobNotRunnable):
        skip(job, first)


def test_there_is_an_end_to_changing_single_times(job: Job) -> None:
    every = times(job, 4)
    with patch("jobs.services.overrides.MAX_OPEN", 2):
        skip(job, every[0])
        skip(job, every[1])
        with pytest.raises(TooMany) as refused:
            skip(job, every[2])
        assert refused.value.code == "too_many_overrides"
        move(job, every[1], every[1] + SECOND)


def test_a_paused_job_keeps_its_overrides_for_later(job: Job) -> None:
    first, second, _ = times(job)
    pause_job(job)
    move(job, second, first - HOUR / 2)
    assert clock(job) is None
    resume_job(job)
    assert clock(job) == first - HOUR / 2


def test_an_edit_drops_overrides_of_times_that_are_no_more(job: Job) -> None:
    job = edit_job(job, {"schedule": {"cron": "0 * * * *"}})
    first, second, _ = times(job)
    skip(job, first)
    kept = move(job, second, second + HOUR / 4, reason="stays")
    edit_job(job, {"schedule": {"cron": f"0 {second.hour} * * *"}})
    assert list(open_overrides(job)) == [kept]
    entry = AuditEntry.objects.latest("id")
    assert [one["planned_at"] for one in (entry.after or {})["dropped_overrides"]] == [as_text(first)]
    assert clock(job) == second


def test_an_edit_keeps_a_moved_time_that_has_come(job: Job) -> None:
    first, *_ = times(job)
    move(job, first, first + HOUR / 2)
    trigger_at(job, first + SECOND)
    with at(first + 2 * SECOND):
        edit_job(job, {"schedule": {"every": 86_400}})
        assert clock(job) == first + HOUR / 2
        edit_job(job, {"schedule": None})
    assert clock(job) == first + HOUR / 2


def test_an_edit_that_leaves_the_schedule_leaves_the_overrides(job: Job) -> None:
    first, *_ = times(job)
    skip(job, first)
    edit_job(job, {"priority": 900, "timeout": 60})
    assert open_overrides(job).count() == 1
    cancel_job(job)


def test_a_moved_one_time_job_runs_at_its_new_instant_and_is_finished() -> None:
    planned = database_now() + HOUR
    job = post_job(schedule={"at": as_text(planned)})
    to = database_now() + SECOND
    move(job, planned, to)
    wait_until(lambda: database_now() > to, 15, "the instant to pass")
    trigger_at(job, database_now())
    assert Run.objects.get(job=job).planned_at == planned
    trigger_at(job, planned + SECOND)
    job.refresh_from_db()
    assert job.status == JobStatus.FINISHED and Run.objects.filter(job=job).count() == 1


def ahead(job: Job, number: int = 4) -> list[tuple[datetime, datetime | None, str]]:
    found = look_ahead(job, job.spec, database_now(), number)
    return [(one.planned_at, one.starts_at, one.description) for one in found]


def test_the_forecast_shows_overrides_and_suspensions(job: Job) -> None:
    first, second, third, fourth = times(job, 4)
    skip(job, first, reason="holiday")
    move(job, second, second + HOUR / 4)
    make_suspension(
        kind=SuspensionKind.BLACKOUT,
        effect=Effect.SKIP,
        begins_at=third,
        ends_at=third + SECOND,
        reason="inventory",
    )
    held_until = fourth + HOUR / 2
    make_suspension(effect=Effect.HOLD, tag_name="team", begins_at=fourth - SECOND, ends_at=held_until)
    assert ahead(job) == [
        (first, None, "skipped by system: holiday"),
        (second, second + HOUR / 4, "moved by system"),
        (third, None, "no run, blackout: inventory"),
        (fourth, held_until, "held, paused"),
    ]


def test_the_forecast_shows_a_moved_time_that_has_come(job: Job) -> None:
    first, second, _ = times(job)
    move(job, first, first + HOUR / 2)
    trigger_at(job, first + SECOND)
    found = look_ahead(job, job.spec, first + 2 * SECOND, 2)
    assert [(one.planned_at, one.starts_at) for one in found] == [(first, first + HOUR / 2), (second, second)]


def test_the_forecast_shows_the_flexible_window() -> None:
    job = post_job(schedule={"every": 3600, "jitter": 600})
    [one] = look_ahead(job, job.spec, database_now(), 1)
    assert one.starts_at and one.planned_at <= one.starts_at < one.planned_at + timedelta(minutes=10)
    assert one.window_ends_at == one.planned_at + timedelta(minutes=10)


class at:  # noqa: N801 - reads as a statement
    """The database's clock as the services of jobs read it."""

    def __init__(self, instant: datetime) -> None:
        self.patches = [
            patch(f"jobs.{module}.database_now", lambda: instant) for module in ("services.locking", "clock")
        ]

    def __enter__(self) -> None:
        for one in self.patches:
            one.start()

    def __exit__(self, *_: object) -> None:
        for one in self.patches:
            one.stop()
