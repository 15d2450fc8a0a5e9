"""Edits of a calendar against the jobs that are just being planned by it, the trigger, and each other."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from auditlog.models import AuditEntry
from jobs.calendars.reschedule import rearm_calendars
from jobs.calendars.service import NO_JOB, create_calendar, delete_calendar, edit_calendar
from jobs.errors import InUse, InvalidInput
from jobs.models import JOB_SLICES, Calendar, Job, JobClock
from jobs.services.definition import create_job, edit_job
from jobs.services.status import pause_job, resume_job
from runs.models import Run
from runs.scheduler.trigger.trigger import trigger_due
from scheduler_project.sdk.ids import run_id
from tests.races.staging import held_open, meanwhile, result_after, second_connection, waiting_for
from tests.support.factories import job_spec, make_due, make_tenant, post_job

pytestmark = pytest.mark.django_db(transaction=True)
DAY = timedelta(days=1)
AT_NOON: dict[str, Any] = {"cron": "0 12 * * *", "calendar": {"name": "days"}}


@pytest.fixture
def calendar() -> Calendar:
    return create_calendar(make_tenant(), {"name": "days"})


def next_of(job: Job) -> datetime:
    found = JobClock.objects.get(job=job).next_run_at
    assert found is not None
    return found


def closing(calendar: Calendar, *days: datetime) -> Callable[[], Calendar]:
    return lambda: edit_calendar(calendar, {"dates": [day.date().isoformat() for day in days]})


def rearm_all() -> None:
    while rearm_calendars():
        pass


def test_an_edit_waits_for_a_job_that_is_being_planned_and_finds_it(calendar: Calendar) -> None:
    post_job(calendar.tenant)
    with held_open() as first:
        job = create_job(calendar.tenant, job_spec(schedule=AT_NOON))
        noon = next_of(job)
        result_after(first, closing(calendar, noon))
    assert next_of(job) == noon
    rearm_all()
    assert next_of(job) == noon + DAY


def test_a_job_that_takes_up_a_calendar_while_it_is_edited_plans_by_the_new_edition(
    calendar: Calendar,
) -> None:
    job = post_job(calendar.tenant, schedule={"cron": "0 12 * * *"})
    noon = next_of(job)
    with held_open() as first:
        closing(calendar, noon)()
        result_after(first, lambda: edit_job(job, {"schedule": AT_NOON}))
    assert next_of(job) == noon + DAY


def test_jobs_are_planned_side_by_side(calendar: Calendar) -> None:
    post_job(calendar.tenant)
    with held_open():
        create_job(calendar.tenant, job_spec(schedule=AT_NOON))
        with meanwhile(lambda: create_job(calendar.tenant, job_spec(schedule=AT_NOON))) as second:
            assert second.result(timeout=60).pk


def test_a_pass_that_meets_an_edit_of_a_job_comes_wholly_after_it(calendar: Calendar) -> None:
    job = post_job(calendar.tenant, schedule=AT_NOON)
    noon = next_of(job)
    closing(calendar, noon)()
    with held_open() as first:
        # From noon on: between 12:00 and 12:30 the next time would be of today.
        later = {**AT_NOON, "cron": "30 12 * * *", "begins_at": noon.isoformat()}
        edit_job(job, {"schedule": later})
        result_after(first, rearm_all)
    assert next_of(job) == noon + DAY + timedelta(minutes=30)


def test_a_pass_that_meets_a_resume_sets_the_clock_after_it(calendar: Calendar) -> None:
    """The resume read the calendar of before; the edit, and then the pass, came while it was under way."""
    job = post_job(calendar.tenant, schedule=AT_NOON)
    noon = next_of(job)
    pause_job(job)
    with held_open() as first:
        resume_job(job)
        with meanwhile(closing(calendar, noon)) as edit:
            edit.result(timeout=60)
        result_after(first, rearm_all)
    assert next_of(job) == noon + DAY


def test_a_pass_that_meets_the_trigger_keeps_its_run(calendar: Calendar) -> None:
    job = post_job(calendar.tenant, schedule=AT_NOON)
    noon = next_of(job)
    planned = make_due(job)
    with second_connection() as scheduler, scheduler.transaction():
        assert trigger_due(scheduler, range(JOB_SLICES)).runs == 1
        with meanwhile(closing(calendar, noon)) as edit:
            edit.result(timeout=60)
        result_after(scheduler, rearm_all)
    assert Run.objects.get(job=job).pk == run_id(job.pk, planned)
    assert next_of(job) == noon + DAY


def test_an_edit_during_a_pass_begins_anew(calendar: Calendar) -> None:
    job = post_job(calendar.tenant, schedule=AT_NOON)
    noon = next_of(job)
    closing(calendar, noon)()
    with held_open() as first:
        JobClock.objects.select_for_update().get(job=job)
        with waiting_for(first, rearm_calendars) as pass_over:
            with meanwhile(closing(calendar, noon, noon + DAY)) as edit:
                edit.result(timeout=60)
            first.execute("COMMIT")
            assert pass_over.result(timeout=60) == 1
    calendar.refresh_from_db()
    assert (calendar.edition, calendar.rearmed_to) == (3, NO_JOB)
    rearm_all()
    assert next_of(job) == noon + 2 * DAY


def test_a_held_job_stops_a_pass_for_a_moment_and_is_not_forgotten(calendar: Calendar) -> None:
    jobs = sorted((post_job(calendar.tenant, schedule=AT_NOON) for _ in range(3)), key=lambda job: job.pk)
    noon = next_of(jobs[0])
    closing(calendar, noon)()
    with held_open():
        JobClock.objects.select_for_update().get(job=jobs[1])
        with meanwhile(rearm_calendars) as pass_over:
            assert pass_over.result(timeout=60) == 1
    calendar.refresh_from_db()
    assert calendar.rearmed_to == jobs[0].pk
    rearm_all()
    assert {next_of(job) for job in jobs} == {noon + DAY}


def test_two_schedulers_at_once_set_every_clock(calendar: Calendar) -> None:
    jobs = [post_job(calendar.tenant, schedule=AT_NOON) for _ in range(30)]
    noon = next_of(jobs[0])
    closing(calendar, noon)()

    def rounds() -> None:
        while rearm_calendars(7):
            pass

    with meanwhile(rounds) as one, meanwhile(rounds) as other:
        one.result(timeout=30)
        other.result(timeout=30)
    rounds()
    calendar.refresh_from_db()
    assert calendar.rearmed_to is None
    assert {next_of(job) for job in jobs} == {noon + DAY}
    assert not AuditEntry.objects.filter(action__in=["job.edited", "job.resumed"]).exists()


def test_a_calendar_deleted_while_a_job_takes_it_up_stays(calendar: Calendar) -> None:
    post_job(calendar.tenant)
    with held_open() as first:
        create_job(calendar.tenant, job_spec(schedule=AT_NOON))
        with pytest.raises(InUse, match="jobs plan by"):
            result_after(first, lambda: delete_calendar(calendar))
    calendar.refresh_from_db()
    assert calendar.deleted_at is None


def test_a_job_that_takes_up_a_calendar_while_it_is_deleted_is_refused(calendar: Calendar) -> None:
    post_job(calendar.tenant)
    with held_open() as first:
        delete_calendar(calendar)
        with pytest.raises(InvalidInput, match="there is no calendar"):
            result_after(first, lambda: create_job(calendar.tenant, job_spec(schedule=AT_NOON)))
    assert Job.objects.count() == 1


def test_two_edits_at_once_both_count(calendar: Calendar) -> None:
    with held_open() as first:
        edit_calendar(calendar, {"dates": ["2099-12-25"]})
        result_after(first, lambda: edit_calendar(calendar, {"timezone": "Europe/Berlin"}))
    calendar.refresh_from_db()
    assert (calendar.edition, calendar.timezone, len(calendar.dates)) == (3, "Europe/Berlin", 1)
