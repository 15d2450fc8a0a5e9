"""What was missed, after the fact: made up for at its pace, or told (promises 2 and 3)."""

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.models import Effect, Job, JobStatus, JobVersion, Override, Suspension, SuspensionKind, Tenant
from jobs.services.definition import delete_job, edit_job
from jobs.services.status import cancel_job
from runs.models import LiveRun, MissedSpan, Run
from runs.scheduler.catch_up import catch_up
from runs.scheduler.catch_up.catch_up import catch_up_once, foresee_gap, settle_gap
from runs.scheduler.catch_up.caught_up import CaughtUp
from runs.scheduler.partitions.lock_session import LostLocks
from runs.scheduler.trigger.missed import MAX_COUNTED
from runs.scheduler.trigger.trigger import trigger_due
from runs.states import Trigger
from scheduler_project.sdk.ids import MILLISECOND
from tests.support.factories import make_due, make_job, make_run, make_tenant, now, post_job

Session = psycopg.Connection[Any]
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ALL = range(64)


def make_behind(hours: int, **fields: Any) -> tuple[Job, datetime]:
    """Make an hourly job that was due for so many hours and half of one; return its first missed time too."""
    policy = {"policy": "all", "window": 86_400, **fields.pop("catch_up", {})}
    anchor = now() - (hours + 0.5) * HOUR
    spec = {"schedule": {"every": 3600}, "anchor_at": anchor, "catch_up": policy, **fields.pop("spec", {})}
    first = anchor + HOUR
    return make_job(next_run_at=first, spec=spec, **fields), first


def step(session: Session) -> CaughtUp:
    return catch_up_once(session, ALL)


def let_pace_pass() -> None:
    MissedSpan.objects.filter(state="working").update(next_at=now())


def planned(job: Job) -> list[datetime]:
    return list(Run.objects.filter(job=job).order_by("id").values_list("planned_at", flat=True))


def end_runs(job: Job) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM beatkeeper_live_run WHERE job_id = %s", [job.pk])


def rewrite_spec(job: Job, **values: Any) -> None:
    """Write what no service would."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        JobVersion.objects.filter(job=job).update(**values)
        cursor.execute("SET LOCAL session_replication_role = origin")


def make_suspension(
    effect: Effect = Effect.CATCH_UP, tenant: Tenant | None = None, **fields: Any
) -> Suspension:
    values = {
        "kind": SuspensionKind.PAUSE,
        "begins_at": now() - 24 * HOUR,
        "reason": "audit",
        "tenant": tenant,
    }
    return Suspension.objects.create(effect=effect, **{**values, **fields})


def lift(suspension: Suspension) -> None:
    Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now())


class TestPace:
    def test_runs_are_made_one_by_one_as_the_pace_allows(self, session: Session) -> None:
        job, first = make_behind(3, catch_up={"per_minute": 60})
        trigger_due(session, ALL)
        assert planned(job) == []
        assert (step(session).runs, step(session).runs) == (1, 0)
        assert planned(job) == [first]
        run = LiveRun.objects.get(job=job)
        assert (run.trigger, run.state) == (Trigger.CATCH_UP, "ready")
        let_pace_pass()
        step(session)
        assert planned(job) == [first, first + HOUR]

    def test_a_fast_pace_makes_several_at_once(self, session: Session) -> None:
        job, first = make_behind(20, catch_up={"per_minute": 600})
        trigger_due(session, ALL)
        assert step(session).runs == 10
        span = MissedSpan.objects.get(job=job)
        assert (span.made, span.cursor, span.begins_at) == (10, first + 10 * HOUR, first + 10 * HOUR)
        assert span.next_at is not None and span.next_at > now() + SECOND / 2

    def test_the_newest_go_first_if_the_job_wants_it(self, session: Session) -> None:
        job, first = make_behind(3, catch_up={"order": "newest"})
        trigger_due(session, ALL)
        step(session)
        assert planned(job) == [first + 2 * HOUR]
        span = MissedSpan.objects.get(job=job)
        assert (span.begins_at, span.ends_at) == (first, first + HOUR + MILLISECOND)

    @pytest.mark.parametrize("order", ["oldest", "newest"])
    def test_a_span_that_is_worked_off_is_gone_and_every_time_has_its_run(
        self, session: Session, order: str
    ) -> None:
        job, first = make_behind(3, catch_up={"order": order})
        trigger_due(session, ALL)
        for _ in range(3):
            let_pace_pass()
            step(session)
        assert planned(job) == [first, first + HOUR, first + 2 * HOUR]
        assert not MissedSpan.objects.exists()

    @pytest.mark.parametrize("order", ["oldest", "newest"])
    def test_more_than_the_job_wants_are_reported(self, session: Session, order: str) -> None:
        job, first = make_behind(20, catch_up={"max": 4, "per_minute": 600, "order": order})
        trigger_due(session, ALL)
        assert step(session).runs == 4
        span = MissedSpan.objects.get(job=job)
        assert (span.state, span.reason, span.policy) == ("settled", "catch_up_max", "skip")
        assert not any(span.begins_at <= at < span.ends_at for at in planned(job))
        step(session)
        span.refresh_from_db()
        assert span.count == 16

    def test_two_gaps_of_a_job_share_its_pace(self, session: Session) -> None:
        job, first = make_behind(2, catch_up={"per_minute": 60})
        trigger_due(session, ALL)
        span = MissedSpan.objects.get(job=job)
        earlier = first - 10 * HOUR
        MissedSpan.objects.create(
            tenant_id=job.tenant_id, job=job, version=1, slice=span.slice, begins_at=earlier, ends_at=earlier + HOUR,
            cursor=earlier, next_at=now(), state="working", policy="all", reason="downtime",
        )  # fmt: skip
        assert (step(session).runs, step(session).runs) == (1, 0)

    def test_while_a_run_is_unfinished_the_next_waits(self, session: Session) -> None:
        """Unless the job allows them side by side; whatever its overlap policy does otherwise."""
        job, first = make_behind(3, catch_up={"per_minute": 600}, spec={"overlap": "skip"})
        trigger_due(session, ALL)
        assert step(session).runs == 1
        let_pace_pass()
        assert step(session).runs == 0
        assert not Run.objects.filter(job=job, state="skipped").exists()
        end_runs(job)
        let_pace_pass()
        assert step(session).runs == 1

    def test_a_time_that_has_its_run_is_passed_by(self, session: Session) -> None:
        job, first = make_behind(3)
        trigger_due(session, ALL)
        make_run(job, planned_at=first, trigger=Trigger.CATCH_UP)
        assert step(session).runs == 0
        assert MissedSpan.objects.get(job=job).cursor == first + HOUR

    def test_so_much_is_done_in_a_step_and_no_more(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            make_behind(3)
        trigger_due(session, ALL)
        monkeypatch.setattr(catch_up, "MAX_RUNS", 2)
        done = step(session)
        assert (done.runs, done.more) == (2, True)
        assert step(session).runs == 1


class TestStandingStill:
    def test_a_paused_job_waits_and_goes_on(self, session: Session) -> None:
        job, _ = make_behind(3)
        trigger_due(session, ALL)
        Job.objects.filter(pk=job.pk).update(status=JobStatus.PAUSED)
        assert step(session).runs == 0
        Job.objects.filter(pk=job.pk).update(status=JobStatus.ACTIVE)
        let_pace_pass()
        assert step(session).runs == 1

    @pytest.mark.parametrize("effect", Effect.values)
    def test_under_a_suspension_nothing_is_made_up_for(self, session: Session, effect: str) -> None:
        job, _ = make_behind(3)
        trigger_due(session, ALL)
        suspension = make_suspension(Effect(effect), job.tenant, begins_at=now() - SECOND)
        assert step(session).runs == 0
        lift(suspension)
        let_pace_pass()
        assert step(session).runs == 1

    def test_what_falls_out_of_reach_meanwhile_is_reported(self, session: Session) -> None:
        job, _ = make_behind(3)
        trigger_due(session, ALL)
        old = now() - timedelta(days=27, hours=23.5)
        MissedSpan.objects.filter(job=job).update(begins_at=old - 10 * HOUR, cursor=old - 10 * HOUR)
        step(session)
        settled, left = MissedSpan.objects.filter(job=job).order_by("begins_at")
        assert (settled.reason, settled.state) == ("too_old", "settled")
        (run,) = planned(job)
        assert settled.ends_at == run < left.begins_at
        assert run >= now() - timedelta(days=28)

    def test_a_finished_job_still_makes_up_for_what_it_missed(self, session: Session) -> None:
        anchor = now() - 3.5 * HOUR
        end = (anchor + 3 * HOUR).isoformat()
        job, first = make_behind(3, spec={"schedule": {"every": 3600, "ends_at": end}})
        done = trigger_due(session, ALL)
        assert done.finished == 1
        assert step(session).runs == 1


class TestChangesOfTheJob:
    def behind(self, session: Session) -> Job:
        job = post_job(schedule={"every": 3600}, overlap="allow_all")
        anchor = now() - 3.5 * HOUR
        rewrite_spec(job, anchor_at=anchor, catch_up={"policy": "all", "window": 86_400})
        make_due(job, anchor + HOUR)
        trigger_due(session, ALL)
        assert MissedSpan.objects.get(job=job).state == "working"
        return job

    def test_a_cancelled_job_makes_up_for_nothing_more(self, session: Session) -> None:
        job = self.behind(session)
        step(session)
        cancel_job(job)
        span = MissedSpan.objects.get(job=job)
        assert (span.state, span.reason, span.cursor) == ("settled", "job_ended", None)
        assert step(session).runs == 0

    def test_a_moved_time_that_a_cancelled_job_does_not_live_to_see_is_reported(
        self, session: Session
    ) -> None:
        """Its planned time has come; one ahead is no planned time any more."""
        job = make_job(next_run_at=now() + HOUR, spec={"schedule": {"every": 3600}})
        come, ahead = now() - MINUTE, now() + HOUR
        for at in (come, ahead):
            Override.objects.create(job=job, planned_at=at, moved_to=now() + 2 * HOUR)
        cancel_job(job)
        span = MissedSpan.objects.get(job=job)
        assert (span.begins_at, span.ends_at) == (come, come + MILLISECOND)
        assert (span.state, span.reason, span.count) == ("settled", "job_ended", 1)
        assert Override.objects.get(job=job, planned_at=come).done_at is not None
        assert Override.objects.get(job=job, planned_at=ahead).done_at is None
        delete_job(job)
        assert MissedSpan.objects.count() == 1

    def test_another_policy_ends_it(self, session: Session) -> None:
        job = self.behind(session)
        edit_job(job, {"catch_up": {"policy": "last"}})
        assert MissedSpan.objects.get(job=job).reason == "policy_changed"

    def test_an_edit_of_what_it_does_counts_from_the_next_run_on(self, session: Session) -> None:
        job = self.behind(session)
        edit_job(job, {"timeout": 7})
        step(session)
        assert Run.objects.get(job=job).version == 2

    @pytest.mark.parametrize(("before", "after"), [("oldest", "newest"), ("newest", "oldest")])
    @pytest.mark.parametrize("steps", [0, 1])
    def test_an_edit_of_its_order_goes_on_from_the_other_end(
        self, session: Session, before: str, after: str, steps: int
    ) -> None:
        """Of each missed time there is a run or a span, never neither: the cursor may not stay where it stood."""
        job, first = make_behind(4, catch_up={"order": before})
        trigger_due(session, ALL)
        missed = {first + hour * HOUR for hour in range(4)}
        for made in range(1, 5):
            if made == steps + 1:
                edit_job(job, {"catch_up": {"policy": "all", "window": 86_400, "order": after}})
            let_pace_pass()
            step(session)
            ran = set(planned(job))
            spans = list(MissedSpan.objects.filter(job=job))
            settled = {at for at in missed if any(span.begins_at <= at < span.ends_at for span in spans)}
            assert (len(ran), ran | settled, ran & settled) == (made, missed, set())
            if made == steps + 1:
                assert (max(missed) if after == "newest" else min(missed)) in ran
        assert not MissedSpan.objects.exists()

    def test_an_edit_of_its_schedule_leaves_the_missed_times_to_the_old_one(self, session: Session) -> None:
        job = self.behind(session)
        cursor = MissedSpan.objects.get(job=job).cursor
        edit_job(job, {"schedule": {"every": 60}})
        step(session)
        run = Run.objects.get(job=job)
        assert (run.version, run.planned_at) == (1, cursor)


class TestPoison:
    """One job never keeps another from its runs."""

    def test_a_schedule_that_cannot_be_read_any_more_is_reported(self, session: Session) -> None:
        poison, _ = make_behind(3)
        healthy, first = make_behind(3)
        trigger_due(session, ALL)
        rewrite_spec(poison, schedule={"cron": "61 * * * *"})
        assert step(session).runs == 1
        assert planned(healthy) == [first]
        span = MissedSpan.objects.get(job=poison)
        assert (span.state, span.reason) == ("settled", "unrunnable")

    def test_a_run_that_the_database_refuses_is_reported(self, session: Session) -> None:
        poison, _ = make_behind(3, spec={"target_key": "poison"})
        healthy = [make_behind(3)[0] for _ in range(4)]
        trigger_due(session, ALL)
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE beatkeeper_live_run ADD CHECK (target_key <> 'poison')")
        step(session)
        assert [len(planned(job)) for job in healthy] == [1, 1, 1, 1]
        span = MissedSpan.objects.get(job=poison)
        assert (span.state, span.reason, span.made) == ("settled", "unrunnable", 0)
        assert planned(poison) == []


class TestEndsOfStops:
    """What waited for a suspension is settled by its effect and the job's policy, as soon as it is over."""

    def suspended(self, session: Session, effect: Effect, **fields: Any) -> tuple[Job, Suspension, datetime]:
        job, first = make_behind(3, **fields)
        suspension = make_suspension(effect, job.tenant)
        done = trigger_due(session, ALL)
        assert (done.runs, done.spans) == (0, 1)
        return job, suspension, first

    def test_each_visit_makes_the_one_open_span_longer(self, session: Session) -> None:
        anchor = now() - 2.5 * SECOND
        spec = {"schedule": {"every": 1}, "anchor_at": anchor}
        job = make_job(next_run_at=anchor + SECOND, spec=spec)
        suspension = make_suspension(tenant=job.tenant)
        trigger_due(session, ALL)
        before = MissedSpan.objects.get(job=job)
        # As if a second had passed.
        MissedSpan.objects.update(cursor=before.begins_at + SECOND, ends_at=before.begins_at + MILLISECOND)
        make_due(job, before.begins_at + SECOND)
        trigger_due(session, ALL)
        span = MissedSpan.objects.get(job=job)
        assert (span.pk, span.begins_at, span.suspension_id, span.state) == (
            before.pk,
            before.begins_at,
            suspension.pk,
            "open",
        )
        assert span.ends_at > before.begins_at + SECOND

    def test_a_span_does_not_grow_over_a_time_that_had_its_run(self, session: Session) -> None:
        """The suspension did not concern the job for a while: its tags were others."""
        anchor = now() - 3.5 * SECOND
        job = make_job(
            next_run_at=anchor + SECOND, spec={"schedule": {"every": 1}, "anchor_at": anchor}, tags={"a": "1"}
        )
        make_suspension(tag_name="a", begins_at=anchor - HOUR, ends_at=now() - 2.2 * SECOND)
        make_suspension(tag_name="a", begins_at=now() - 0.9 * SECOND)
        trigger_due(session, ALL)
        spans = list(MissedSpan.objects.filter(job=job).order_by("begins_at"))
        assert len(spans) == 2 and len(planned(job)) == 1
        assert not any(span.begins_at <= at < span.ends_at for span in spans for at in planned(job))

    @pytest.mark.parametrize(
        ("effect", "policy", "runs"),
        [
            (Effect.CATCH_UP, "skip", 0),
            (Effect.CATCH_UP, "last", 1),
            (Effect.CATCH_UP, "all", 3),
            (Effect.SKIP, "all", 0),
            (Effect.RUN_AFTER, "skip", 1),
            (Effect.RUN_AFTER, "all", 1),
        ],
    )
    def test_effect_and_policy_decide(self, session: Session, effect: Effect, policy: str, runs: int) -> None:
        job, suspension, first = self.suspended(session, effect, catch_up={"policy": policy})
        assert step(session).settled == 0
        lift(suspension)
        for _ in range(4):
            step(session)
            let_pace_pass()
        assert len(planned(job)) == runs
        missed = [first + number * HOUR for number in range(3)]
        spans = list(MissedSpan.objects.filter(job=job))
        for at in missed:
            assert (at in planned(job)) + sum(span.begins_at <= at < span.ends_at for span in spans) == 1
        assert all(
            (span.state, span.reason, span.suspension_id) == ("settled", "paused: audit", suspension.pk)
            for span in spans
        )
        if runs == 1:
            assert planned(job) == [missed[-1]]

    def test_it_runs_after_a_blackout_longer_than_its_window(self, session: Session) -> None:
        catch_up = {"policy": "last", "window": 60}
        job, suspension, first = self.suspended(session, Effect.RUN_AFTER, catch_up=catch_up)
        lift(suspension)
        step(session)
        assert planned(job) == [first + 2 * HOUR]

    def test_a_suspension_that_nothing_waits_for_is_reported_to_have_ended(self, session: Session) -> None:
        job, suspension, _ = self.suspended(session, Effect.CATCH_UP)
        assert step(session).ended == 0
        lift(suspension)
        assert (step(session).settled, step(session).ended) == (1, 1)
        suspension.refresh_from_db()
        assert suspension.settled_at is not None
        assert AuditEntry.objects.filter(action="suspension.ended", object_id=str(suspension.pk)).count() == 1
        assert step(session).ended == 0

    def test_a_suspension_is_not_over_for_clocks_that_stand_before_its_end(self, session: Session) -> None:
        """No scheduler was there while it was in force: its times are still to be settled by it."""
        job, first = make_behind(3)
        suspension = make_suspension(Effect.SKIP, job.tenant, ends_at=now() - HOUR)
        assert step(session).ended == 0
        trigger_due(session, ALL)
        spans = MissedSpan.objects.filter(job=job, suspension=suspension)
        assert [span.begins_at for span in spans] == [first]
        assert step(session).settled == 1 and step(session).ended == 1

    def test_a_suspension_of_many_jobs_is_settled_in_bounded_steps(self, session: Session) -> None:
        tenant = make_tenant()
        for _ in range(5):
            make_behind(3, tenant=tenant, catch_up={"policy": "skip"})
        suspension = make_suspension(tenant=tenant)
        trigger_due(session, ALL)
        lift(suspension)
        done = [catch_up_once(session, ALL, most=2) for _ in range(4)]
        assert [(one.settled, one.ended, one.more) for one in done] == [
            (2, 0, True), (2, 0, True), (1, 0, True), (0, 1, False),
        ]  # fmt: skip

    def test_other_slices_are_left_to_others(self, session: Session) -> None:
        job, suspension, _ = self.suspended(session, Effect.CATCH_UP)
        lift(suspension)
        others = [number for number in ALL if number != job.clock.slice]
        done = catch_up_once(session, others)
        assert (done.settled, done.ended) == (0, 0)

    @pytest.mark.parametrize(("policy", "state"), [("last", "settled"), ("all", "working")])
    def test_a_job_that_is_paused_itself_runs_nothing_then(
        self, session: Session, policy: str, state: str
    ) -> None:
        job, suspension, _ = self.suspended(session, Effect.CATCH_UP, catch_up={"policy": policy})
        Job.objects.filter(pk=job.pk).update(status=JobStatus.PAUSED)
        lift(suspension)
        assert step(session).settled == 1
        assert planned(job) == []
        assert MissedSpan.objects.get(job=job).state == state

    def test_of_an_interrupted_stop_the_job_runs_once(self, session: Session) -> None:
        job, suspension, first = self.suspended(session, Effect.RUN_AFTER)
        older = MissedSpan.objects.get(job=job)
        older.pk, older.begins_at, older.ends_at = None, first - 9 * HOUR, first - 8 * HOUR
        older.save(force_insert=True)
        lift(suspension)
        assert step(session).settled == 2
        assert planned(job) == [first + 2 * HOUR]

    def test_a_poison_job_keeps_no_stop_from_its_end(self, session: Session) -> None:
        job, suspension, _ = self.suspended(session, Effect.RUN_AFTER)
        rewrite_spec(job, schedule={"cron": "61 * * * *"})
        lift(suspension)
        step(session)
        assert MissedSpan.objects.get(job=job).reason == "unrunnable"
        assert step(session).ended == 1


class TestGapsOfAPause:
    """settle_gap: called by whoever resumes a job, with its clock in hand."""

    @pytest.mark.parametrize(
        ("policy", "now_run", "will_run"), [("skip", 0, 0), ("last", 1, 0), ("all", 0, 3)]
    )
    def test_it_tells_what_it_did_and_will_do(
        self, session: Session, policy: str, now_run: int, will_run: int
    ) -> None:
        job, first = make_behind(3, catch_up={"policy": policy})
        foreseen = foresee_gap(session, job.pk, first, now())
        assert not Run.objects.exists() and not MissedSpan.objects.exists()
        settled = settle_gap(session, job.pk, first, now(), "paused")
        assert settled[:4] == foreseen[:4] == (policy, 3, now_run, will_run)
        assert Run.objects.filter(job=job).count() == now_run
        assert {span.reason for span in MissedSpan.objects.all()} == {"paused"}
        assert {span.count for span in MissedSpan.objects.all()} == {3 - now_run}

    def test_another_policy_may_be_asked_for(self, session: Session) -> None:
        job, first = make_behind(3, catch_up={"policy": "skip"})
        assert settle_gap(session, job.pk, first, now(), "paused", "last")[:4] == ("last", 3, 1, 0)

    def test_no_more_runs_are_promised_than_will_be_made(self, session: Session) -> None:
        job, first = make_behind(3, catch_up={"policy": "all", "max": 2})
        assert settle_gap(session, job.pk, first, now(), "paused").will_run == 2

    def test_very_many_times_are_not_counted(self, session: Session) -> None:
        job, first = make_behind(3, spec={"schedule": {"every": 1}}, catch_up={"policy": "skip"})
        settled = settle_gap(session, job.pk, first, now(), "paused")
        assert settled.missed is not None and 7200 < settled.missed < MAX_COUNTED
        long_ago = first - 24 * HOUR
        rewrite_spec(job, anchor_at=long_ago)
        assert foresee_gap(session, job.pk, long_ago, first).missed is None

    def test_a_gap_without_planned_times_is_none(self, session: Session) -> None:
        job, first = make_behind(3)
        assert settle_gap(session, job.pk, first + SECOND, first + MINUTE, "paused").missed == 0
        assert not MissedSpan.objects.exists()

    def test_a_schedule_that_cannot_be_read_has_one_span(self, session: Session) -> None:
        job, first = make_behind(3, spec={"schedule": {"cron": "61 * * * *"}})
        assert settle_gap(session, job.pk, first, now(), "unrunnable").missed is None
        assert MissedSpan.objects.get(job=job).policy == "skip"


def test_planned_times_of_spans_are_counted_when_there_is_time(session: Session) -> None:
    job, _ = make_behind(3, catch_up={"policy": "skip"})
    working, _ = make_behind(5)
    trigger_due(session, ALL)
    assert step(session).counted == 2
    assert MissedSpan.objects.get(job=job).count == 3
    # What was made of it counts too.
    assert MissedSpan.objects.get(job=working).count == 5


def test_a_session_that_did_not_take_the_locks_does_nothing(session: Session) -> None:
    make_behind(3)
    trigger_due(session, ALL)
    with pytest.raises(LostLocks):
        catch_up_once(session, ALL, session.info.backend_pid + 1)
    assert not Run.objects.exists()
