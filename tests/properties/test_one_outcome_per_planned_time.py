"""Jobs and schedulers under everything that may happen to them, in any order.

Whatever is created, edited, paused, stopped, skipped or moved, wherever a scheduler dies and however the clock
jumps: once the schedulers have had their turn each planned time has one outcome, a run or a place in a span.
"""

from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobs.errors import DomainError
from jobs.models import JOB_SLICES, Job, JobStatus, Override, Suspension, SuspensionKind
from jobs.services import definition as services
from jobs.services import overrides, status
from jobs.suspensions import service as suspensions
from runs.models import LiveRun, MissedSpan, Run
from runs.scheduler.catch_up.catch_up import catch_up_once
from runs.scheduler.trigger.decision import TriggerDecision, decide
from runs.scheduler.trigger.due_job import DueJob
from runs.scheduler.trigger.trigger import trigger_due
from runs.services.runs import cancel_run
from runs.states import Trigger
from tests.properties.crashes import Crash, crash_before
from tests.properties.fake_clock import FakeClock
from tests.properties.planned_times import ModelJob
from tests.support.factories import job_spec, make_pool, make_tenant

MOST_JOBS = 3
MOST_PASSES = 50
SHRINKING_SECONDS = 30
SCHEDULED = (Trigger.SCHEDULE, Trigger.CATCH_UP)

schedules = st.sampled_from(
    [{"every": 60}, {"every": 600}, {"every": 5400}, {"cron": "*/5 * * * *"}, {"cron": "*/30 * * * *"}]
)
overlaps = st.sampled_from(
    ["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"]
)
catch_ups = st.sampled_from(
    [
        {"policy": "skip"},
        {"policy": "last"},
        {"policy": "last", "window": "PT10M"},
        {"policy": "all"},
        {"policy": "all", "window": "PT2H", "max": 3},
        {"policy": "all", "order": "newest", "per_minute": 30},
    ]
)
jumps = st.one_of(st.integers(0, 90), st.integers(91, 5400), st.just(86_400)).map(
    lambda s: timedelta(seconds=s)
)
somewhere = st.integers(1, 40)


class JobsAndSchedulers(RuleBasedStateMachine):
    """Hypothesis tries a history again: with the same choices it must find the same runs, so nothing else may vary."""

    begin = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(days=3)

    def __init__(self) -> None:
        super().__init__()
        self.outer = transaction.atomic()
        self.outer.__enter__()
        connection.ensure_connection()
        self.clock = FakeClock(connection.connection, self.begin)
        make_pool(slug="default")
        self.tenant = make_tenant()
        self.jobs: dict[UUID, ModelJob] = {}
        self.settled = True

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.outer.__exit__(None, None, None)

    @property
    def now(self) -> datetime:
        return self.clock.now

    # What people do.

    @initialize(schedule=schedules, overlap=overlaps, catch_up=catch_ups)
    def begin_with_a_job(self, schedule: dict[str, Any], overlap: str, catch_up: dict[str, Any]) -> None:
        self.create(schedule, overlap, catch_up)

    @precondition(lambda self: len(self.jobs) < MOST_JOBS)
    @rule(schedule=schedules, overlap=overlaps, catch_up=catch_ups)
    def create(self, schedule: dict[str, Any], overlap: str, catch_up: dict[str, Any]) -> None:
        spec = job_spec(schedule=schedule, overlap=overlap, catch_up=catch_up, tags={"team": "a"})
        job_id = UUID(int=Random(len(self.jobs)).getrandbits(128), version=4)
        # The slice of a job, and which half of the schedulers has it, follow from its id.
        with patch.object(Job._meta.get_field("id"), "_get_default", lambda: job_id, create=True):
            job = services.create_job(self.tenant, spec)
        self.jobs[job.pk] = ModelJob()
        self.jobs[job.pk].begin(schedule, self.now)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), schedule=schedules, dies_at=st.none() | somewhere)
    def edit_schedule(self, data: st.DataObject, schedule: dict[str, Any], dies_at: int | None) -> None:
        job, model = self._some_job(data)
        if model.ended or schedule == model.present.schedule:
            return
        if self._done(dies_at, lambda: services.edit_job(job, {"schedule": schedule})):
            if model.unrunnable:
                model.go_on(self.now)
                model.end(self.now)
                model.begin(schedule, self.now)
                model.paused = model.unrunnable = False
            elif model.paused:
                model.go_on(self.now)
                model.end(self.now)
                model.begin(schedule, self.now)
                model.end(self.now)
            else:
                model.end(self.now)
                model.begin(schedule, self.now)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), overlap=overlaps, catch_up=catch_ups)
    def edit_policies(self, data: st.DataObject, overlap: str, catch_up: dict[str, Any]) -> None:
        job, model = self._some_job(data)
        if not model.ended:
            services.edit_job(job, {"overlap": overlap, "catch_up": catch_up})

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), dies_at=st.none() | somewhere)
    def pause(self, data: st.DataObject, dies_at: int | None) -> None:
        job, model = self._some_job(data)
        if model.ended or (model.paused and not model.unrunnable):
            return
        if self._done(dies_at, lambda: status.pause_job(job)):
            if model.unrunnable:
                model.go_on(self.now)
            model.end(self.now)
            model.paused, model.unrunnable = True, False

    @precondition(lambda self: any(model.paused for model in self.jobs.values()))
    @rule(
        data=st.data(), catch_up=st.sampled_from([None, "skip", "last", "all"]), dies_at=st.none() | somewhere
    )
    def resume(self, data: st.DataObject, catch_up: str | None, dies_at: int | None) -> None:
        paused = [job for job, model in self.jobs.items() if model.paused]
        job, model = self._job(data.draw(st.sampled_from(paused)))
        if self._done(dies_at, lambda: status.resume_with(job, catch_up=catch_up)):
            model.go_on(self.now)
            model.paused = model.unrunnable = False

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job, model = self._some_job(data)
        if not model.ended:
            status.cancel_job(job)
            if not model.paused:
                model.end(self.now)
            model.paused, model.unrunnable, model.ended = False, False, True

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), ahead=st.integers(1, 5), move=st.none() | st.integers(1, 7200))
    def change_a_time(self, data: st.DataObject, ahead: int, move: int | None) -> None:
        job, model = self._some_job(data)
        if model.ended:
            return
        stretch = model.present
        planned = sorted(
            at
            for at in type(stretch)(stretch.schedule, stretch.anchor, stretch.after).times(
                self.now + timedelta(days=1)
            )
            if at > self.now
        )[ahead - 1]
        change: dict[str, Any] = {"planned_at": planned.isoformat()}
        change |= (
            {"skip": True} if move is None else {"move_to": (self.now + timedelta(seconds=move)).isoformat()}
        )
        try:
            overrides.set_override(job, change)
        except DomainError:
            return

    @rule(
        kind=st.sampled_from(["catch_up", "skip", "run_after", "hold"]),
        begins=st.integers(0, 3600),
        lasts=st.integers(1, 7200),
        then=st.lists(jumps, min_size=1, max_size=3),
        one=st.none() | st.integers(0, MOST_JOBS - 1),
    )
    def stop(self, kind: str, begins: int, lasts: int, then: list[timedelta], one: int | None) -> None:
        begins_at = self.now + timedelta(seconds=begins)
        jobs = list(self.jobs)
        scope = {"tag": "team:a"} if one is None else {"job": str(jobs[one % len(jobs)])}
        spec = {**scope, "begins_at": begins_at.isoformat()}
        spec["ends_at"] = (begins_at + timedelta(seconds=lasts)).isoformat()
        if kind == "catch_up":
            suspensions.create_suspension(SuspensionKind.PAUSE, spec, tenant=self.tenant)
        else:
            suspensions.create_suspension(
                SuspensionKind.BLACKOUT, {**spec, "effect": kind}, tenant=self.tenant
            )
        for jump in then:
            self.time_passes_under_watch(jump)

    @precondition(lambda self: Suspension.objects.filter(settled_at=None).exists())
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        unsettled = list(Suspension.objects.filter(settled_at=None).order_by("pk"))
        suspensions.lift_suspension(data.draw(st.sampled_from(unsettled)))

    @precondition(lambda self: LiveRun.objects.exists())
    @rule(data=st.data())
    def a_run_ends(self, data: st.DataObject) -> None:
        live = list(LiveRun.objects.order_by("pk").values_list("pk", flat=True))
        cancel_run(Run.objects.get(pk=data.draw(st.sampled_from(live))))

    # What schedulers do.

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def a_schedule_cannot_be_read(self, data: st.DataObject) -> None:
        """For this pass alone: whoever resumes the job has mended it."""
        job, model = self._some_job(data)
        if model.ended or model.paused:
            return
        with patch("runs.scheduler.trigger.trigger.decide", raising_for(job)):
            trigger_due(connection.connection, range(JOB_SLICES))
        job.refresh_from_db()
        if job.status == JobStatus.UNRUNNABLE:
            model.end(job.status_at)
            model.paused = model.unrunnable = True

    @rule(jump=jumps)
    def time_passes(self, jump: timedelta) -> None:
        self.clock.set(self.now + jump)
        self.settled = False

    @rule(jump=jumps)
    def time_passes_under_watch(self, jump: timedelta) -> None:
        self.time_passes(jump)
        self.schedulers_have_their_turn()

    @rule(
        half=st.sampled_from([range(JOB_SLICES // 2), range(JOB_SLICES // 2, JOB_SLICES)]), dies_at=somewhere
    )
    def a_scheduler_dies_in_its_pass(self, half: range, dies_at: int) -> None:
        self._done(dies_at, lambda: trigger_due(connection.connection, half))
        self._done(dies_at, lambda: catch_up_once(connection.connection, half))

    @rule()
    def schedulers_have_their_turn(self) -> None:
        for _ in range(MOST_PASSES):
            triggered = trigger_due(connection.connection, range(JOB_SLICES))
            caught_up = catch_up_once(connection.connection, range(JOB_SLICES))
            if not (
                triggered.runs or triggered.spans or triggered.more or caught_up.runs or caught_up.settled
            ):
                break
        else:
            pytest.fail("the schedulers come to no end")
        self.settled = True

    # What must hold.

    @invariant()
    def a_run_is_live_or_has_its_outcome(self) -> None:
        live = set(LiveRun.objects.values_list("pk", flat=True))
        assert live == set(Run.objects.filter(state=None).values_list("pk", flat=True))

    @invariant()
    def nothing_ran_that_was_not_planned(self) -> None:
        for job, model in self.jobs.items():
            ran = set(Run.objects.filter(job=job, trigger__in=SCHEDULED).values_list("planned_at", flat=True))
            early = set(Override.objects.filter(job=job).values_list("planned_at", flat=True))
            assert ran - early <= model.expected(self.now)

    @invariant()
    def each_planned_time_has_one_outcome(self) -> None:
        if not self.settled:
            return
        for job, model in self.jobs.items():
            ran = set(Run.objects.filter(job=job, trigger__in=SCHEDULED).values_list("planned_at", flat=True))
            spans = list(
                MissedSpan.objects.filter(job=job).values_list("begins_at", "ends_at", "reason", "state")
            )
            # While the job is paused, what was moved into the pause waits for its end as all of it does.
            settled_at = model.present.until if model.paused else self.now
            pending = set(
                Override.objects.filter(job=job, done_at=None, moved_to__gt=settled_at).values_list(
                    "planned_at", flat=True
                )
            )
            for at in sorted(model.expected(self.now)):
                covering = [span for span in spans if span[0] <= at < span[1]]
                outcomes = (at in ran) + len(covering)
                if at in pending:
                    assert outcomes == 0, f"{at} waits to be moved and has {outcomes} outcomes: {covering}"
                else:
                    assert outcomes == 1, (
                        f"{at} of {model} has {outcomes} outcomes: {at in ran}, {covering}, {spans}"
                    )

    def _some_job(self, data: st.DataObject) -> tuple[Job, ModelJob]:
        return self._job(data.draw(st.sampled_from(list(self.jobs))))

    def _job(self, job_id: UUID) -> tuple[Job, ModelJob]:
        return Job.objects.get(pk=job_id), self.jobs[job_id]

    def _done(self, dies_at: int | None, action: Any) -> bool:
        """Whether it came to its end; a process that dies leaves nothing behind of its transaction."""
        if dies_at is None:
            action()
            return True
        try:
            with transaction.atomic(), crash_before(dies_at):
                action()
        except Crash:
            return False
        return True


def raising_for(poison: Job) -> Any:
    def raises(job: DueJob, *rest: Any) -> TriggerDecision:
        if job.id == poison.pk:
            raise ValueError("its zone is gone")
        return decide(job, *rest)

    return raises


@pytest.fixture(autouse=True)
def _shrinks_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the shrinking: a history costs a second, and Hypothesis has no setting for it."""
    monkeypatch.setattr("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", SHRINKING_SECONDS)


@pytest.mark.django_db
def test_each_planned_time_has_one_outcome() -> None:
    check(examples=40, steps=25)


class TheOnlyJob:
    """For a history that is told and not drawn."""

    def draw(self, strategy: Any) -> Any:
        [job] = strategy.elements
        return job


@pytest.mark.django_db
@pytest.mark.parametrize("ends", ["pause", "pause and edit", "pause and cancel", "cancel"])
def test_a_time_moved_beyond_the_end_of_its_job_has_one_outcome(ends: str) -> None:
    history, job = JobsAndSchedulers(), cast("st.DataObject", TheOnlyJob())
    try:
        history.create({"every": 60}, "skip", {"policy": "skip"})
        history.change_a_time(job, ahead=1, move=600)
        history.time_passes_under_watch(timedelta(seconds=90))
        if ends.startswith("pause"):
            history.pause(job, dies_at=None)
            history.time_passes_under_watch(timedelta(seconds=90))
        if ends.endswith("edit"):
            history.edit_schedule(job, {"every": 600}, dies_at=None)
        if ends.endswith("cancel"):
            history.cancel(job)
        for _ in range(2):
            history.time_passes_under_watch(timedelta(hours=1))
            history.each_planned_time_has_one_outcome()
            if any(model.paused for model in history.jobs.values()):
                history.resume(job, catch_up=None, dies_at=None)
    finally:
        history.teardown()


@pytest.mark.django_db
@pytest.mark.parametrize("then", ["resume", "edit", "pause", "cancel"])
@pytest.mark.parametrize(
    "move", [30, 100, 600, None], ids=["has run", "has come", "is to come", "is skipped"]
)
def test_a_changed_time_of_a_job_that_is_unrunnable_has_one_outcome(move: int | None, then: str) -> None:
    history, job = JobsAndSchedulers(), cast("st.DataObject", TheOnlyJob())
    try:
        history.create({"every": 60}, "allow_all", {"policy": "all"})
        history.change_a_time(job, ahead=2, move=move)
        history.time_passes_under_watch(timedelta(seconds=90))
        history.time_passes(timedelta(seconds=90))
        history.a_schedule_cannot_be_read(job)
        [model] = history.jobs.values()
        assert model.unrunnable
        history.schedulers_have_their_turn()
        history.each_planned_time_has_one_outcome()
        if then == "edit":
            history.edit_schedule(job, {"cron": "*/5 * * * *"}, dies_at=None)
        elif then == "pause":
            history.pause(job, dies_at=None)
        elif then == "cancel":
            history.cancel(job)
        for _ in range(2):
            if model.paused:
                history.resume(job, catch_up=None, dies_at=None)
            history.time_passes_under_watch(timedelta(hours=1))
            history.each_planned_time_has_one_outcome()
            history.nothing_ran_that_was_not_planned()
    finally:
        history.teardown()


@pytest.mark.django_db
def test_a_time_moved_into_a_pause_without_planned_times_meets_a_later_schedule() -> None:
    """The job's clock then stands before the new schedule, which planned nothing there."""
    history, job = JobsAndSchedulers(), cast("st.DataObject", TheOnlyJob())
    try:
        history.create({"every": 5400}, "allow_all", {"policy": "all"})
        history.change_a_time(job, ahead=1, move=6000)
        history.time_passes_under_watch(timedelta(seconds=5460))
        history.pause(job, dies_at=None)
        history.time_passes_under_watch(timedelta(seconds=1200))
        history.edit_schedule(job, {"cron": "*/5 * * * *"}, dies_at=None)
        history.resume(job, catch_up=None, dies_at=None)
        history.time_passes_under_watch(timedelta(hours=2))
        history.nothing_ran_that_was_not_planned()
        [model] = history.jobs.values()
        covering = MissedSpan.objects.filter(ends_at__lte=model.present.anchor)
        assert not covering.exists(), "the new schedule missed nothing before it"
        history.each_planned_time_has_one_outcome()
    finally:
        history.teardown()


@pytest.mark.django_db
@pytest.mark.parametrize(("catch_up", "ran"), [("skip", 0), ("last", 1), (None, 1)])
def test_who_resumes_a_job_says_what_becomes_of_a_time_moved_into_its_pause(
    catch_up: str | None, ran: int
) -> None:
    history, job = JobsAndSchedulers(), cast("st.DataObject", TheOnlyJob())
    try:
        history.create({"every": 5400}, "allow_all", {"policy": "last"})
        history.change_a_time(job, ahead=1, move=600)
        history.pause(job, dies_at=None)
        history.time_passes_under_watch(timedelta(seconds=5460))
        history.resume(job, catch_up=catch_up, dies_at=None)
        history.schedulers_have_their_turn()
        history.each_planned_time_has_one_outcome()
        assert Run.objects.count() == ran
        assert set(MissedSpan.objects.values_list("reason", flat=True)) <= {"paused"}
    finally:
        history.teardown()


@pytest.mark.chaos
@pytest.mark.django_db
def test_each_planned_time_has_one_outcome_in_many_more_histories() -> None:
    check(examples=400, steps=40)


def check(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        JobsAndSchedulers,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=examples < 100,
            suppress_health_check=list(HealthCheck),
            # Without the explanation, which takes time of its own.
            phases=(Phase.generate, Phase.shrink),
        ),
    )
