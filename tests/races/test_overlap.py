"""Runs that wait for each other, and two who look at once: nobody waits for what has ended, nobody goes beside another.

The second of the two stands at the job's gate until the first has committed, or leaves the job for its next look.
"""

from datetime import datetime, timedelta
from typing import Any

import pytest

from jobs.models import Job
from jobs.services.definition import edit_job
from runs.models import LiveRun, Run
from runs.scheduler.recovery.lost_attempts import fail as fail_claims
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.scheduler.recovery.unblock import Sweep, sweep_blocked
from runs.scheduler.trigger.trigger import trigger_due
from runs.services.runs import cancel_run
from runs.states import LiveState
from runs.transitions import promote_delayed, release_all_waiting, release_waiting
from scheduler_project.sdk.errors import LedgerUnavailable
from scheduler_project.sdk.ledger import postgres
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim, Ledger
from scheduler_project.sdk.ledger.postgres import SQL, report_values
from scheduler_project.sdk.retries import Verdict
from tests.races.staging import Session, result_after, second_connection, waiting_for
from tests.runs.ledger.claims import SUCCESS, claim_next, failed, once_it_answers, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import make_due, make_job, make_run, make_worker, now, post_job
from tests.support.waiting import wait_until

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
ALL = range(64)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def job_with(policy: str, **spec: Any) -> Job:
    return make_job(spec={"overlap": policy, **spec})


def running(ledger: Ledger, job: Job, planned_at: datetime | None = None) -> Claim:
    make_run(job, LiveState.QUEUED, planned_at=planned_at or now() - MINUTE)
    claim = claim_next(ledger, job)
    assert claim is not None
    return claim


def waiting(job: Job) -> LiveRun:
    return make_run(job, LiveState.BLOCKED, reason="overlap", planned_at=now() - SECOND)


def unfinished(job: Job) -> list[tuple[str, str]]:
    return sorted(LiveRun.objects.filter(job=job).values_list("state", "reason"))


def report_halfway(
    session: Session, claim: Claim, next_state: str = "succeeded", *, gated: bool = True
) -> None:
    """As the ledger does it, up to the release of what waits."""
    if gated:
        session.execute(SQL["lock_gate"], {"job_id": claim.job_id})
    session.execute(
        SQL["end_attempts"], report_values([CompletedClaim(claim, succeeded(), Verdict(next_state))])
    )


class TestTriggerAndReport:
    @pytest.mark.parametrize("policy", ["buffer_one", "buffer_all", "cancel_other", "terminate_other"])
    def test_a_report_waits_for_the_trigger_and_lets_its_run_go(
        self, first: Session, ledger: Ledger, policy: str
    ) -> None:
        """Otherwise it finds nobody who waits, the trigger finds it unfinished, and the new run waits for ever."""
        job = job_with(policy)
        claim = running(ledger, job)
        make_due(job)
        first.execute("BEGIN")
        assert trigger_due(first, ALL).runs == 1
        assert result_after(first, lambda: tell(ledger, claim, succeeded(), SUCCESS)) == "succeeded"
        assert unfinished(job) == [("ready", "")]

    @pytest.mark.parametrize("policy", ["buffer_one", "cancel_other"])
    def test_a_trigger_leaves_a_job_whose_run_is_being_reported(
        self, first: Session, second: Session, ledger: Ledger, policy: str
    ) -> None:
        job, other = job_with(policy), job_with(policy)
        claim = running(ledger, job)
        due_at = make_due(job)
        make_due(other)
        first.execute("BEGIN")
        report_halfway(first, claim)
        assert trigger_due(second, ALL).runs == 1
        job.clock.refresh_from_db()
        assert job.clock.next_run_at == due_at
        first.execute("COMMIT")
        assert trigger_due(second, ALL).runs == 1
        assert unfinished(job) == [("ready", "")]

    def test_a_report_of_a_claim_from_before_the_policy_waits_too(
        self, first: Session, ledger: Ledger
    ) -> None:
        """It did not know of the gate before its run told it."""
        job = post_job(schedule={"every": 3600}, overlap="allow_all")
        claim = running(ledger, job)
        edit_job(job, {"overlap": "buffer_one"})
        make_due(job)
        first.execute("BEGIN")
        assert trigger_due(first, ALL).runs == 1
        assert result_after(first, lambda: tell(ledger, claim, succeeded(), SUCCESS)) == "succeeded"
        assert unfinished(job) == [("ready", "")]

    def test_an_edit_settles_what_is_due_after_the_report(self, first: Session, ledger: Ledger) -> None:
        """It holds the clock and cannot come again, so it waits for the gate."""
        job = post_job(schedule={"every": 60}, overlap="buffer_one")
        claim = running(ledger, job)
        make_due(job)
        first.execute("BEGIN")
        report_halfway(first, claim)
        result_after(first, lambda: edit_job(job, {"schedule": {"every": 3600}}))
        assert unfinished(job) == [("ready", "")]


class TestReportAndReport:
    def test_two_ends_at_once_let_one_run_go(self, first: Session, ledger: Ledger) -> None:
        """Each would see the other unfinished, and nobody would let it go."""
        job = job_with("buffer_all")
        claims = [running(ledger, job, now() - number * MINUTE) for number in (2, 3)]
        oldest, _ = waiting(job), waiting(job)
        first.execute("BEGIN")
        report_halfway(first, claims[0])
        with waiting_for(first, lambda: tell(ledger, claims[1], succeeded(), SUCCESS)) as report:
            assert release_waiting(first, [job.pk]) == 0
            first.execute("COMMIT")
            report.result(timeout=60)
        assert unfinished(job) == [("blocked", "overlap"), ("ready", "")]
        assert LiveRun.objects.get(pk=oldest.pk).state == "ready"

    def test_a_failure_that_is_tried_again_keeps_the_other_end_from_releasing(
        self, first: Session, ledger: Ledger
    ) -> None:
        job = job_with("buffer_all")
        claims = [running(ledger, job, now() - number * MINUTE) for number in (2, 3)]
        waiting(job)
        first.execute("BEGIN")
        report_halfway(first, claims[0], "delayed")
        result_after(first, lambda: tell(ledger, claims[1], succeeded(), SUCCESS))
        assert unfinished(job) == [("blocked", "overlap"), ("delayed", "retry")]


class TestCancelAndReport:
    def test_a_report_waits_for_the_cancel_of_the_other_run(self, ledger: Ledger) -> None:
        job = job_with("buffer_all")
        claim = running(ledger, job)
        other = make_run(job, planned_at=now() - 2 * MINUTE)
        waiting(job)
        with second_connection() as canceller:
            canceller.execute(SQL["lock_gate"], {"job_id": job.pk})
            canceller.execute("DELETE FROM beatkeeper_live_run WHERE id = %s", [other.pk])
            assert release_waiting(canceller, [job.pk]) == 0
            result_after(canceller, lambda: tell(ledger, claim, succeeded(), SUCCESS))
        assert unfinished(job) == [("ready", "")]

    def test_a_cancel_waits_for_the_report_of_the_other_run(self, first: Session, ledger: Ledger) -> None:
        job = job_with("buffer_all")
        claim = running(ledger, job)
        other = make_run(job, planned_at=now() - 2 * MINUTE)
        waiting(job)
        first.execute("BEGIN")
        report_halfway(first, claim)
        result_after(first, lambda: cancel_run(other.run))
        assert unfinished(job) == [("ready", "")]

    def test_a_cancel_of_what_waits_meets_its_release(self, first: Session, ledger: Ledger) -> None:
        """It was let go and not yet claimed: the cancel ends it, and the next one goes."""
        job = job_with("buffer_all")
        claim = running(ledger, job)
        released, _ = waiting(job), waiting(job)
        first.execute("BEGIN")
        report_halfway(first, claim)
        assert release_waiting(first, [job.pk]) == 1
        result_after(first, lambda: cancel_run(released.run))
        assert Run.objects.get(pk=released.pk).state == "cancelled"
        assert unfinished(job) == [("ready", "")]


class TestReleaseAndTrigger:
    def test_a_time_that_meets_a_release_waits_for_the_released_run(
        self, first: Session, second: Session, ledger: Ledger
    ) -> None:
        """Before the release one run waits already and the new time is skipped; after it the new one may wait."""
        job = job_with("buffer_one")
        claim = running(ledger, job)
        waiting(job)
        make_due(job, now() - SECOND / 2)
        first.execute("BEGIN")
        report_halfway(first, claim)
        assert release_waiting(first, [job.pk]) == 1
        done = trigger_due(second, ALL)
        assert (done.runs, done.skipped) == (0, 0)
        first.execute("COMMIT")
        assert trigger_due(second, ALL).runs == 1
        assert unfinished(job) == [("blocked", "overlap"), ("ready", "")]

    def test_a_sweep_leaves_a_gate_alone_that_a_trigger_holds(self, first: Session, second: Session) -> None:
        job = job_with("buffer_all")
        waiting(job)
        make_due(job, now() - SECOND / 2)
        sweep = Sweep()
        first.execute("BEGIN")
        assert trigger_due(first, ALL).runs == 1
        sweep.begin()
        assert sweep_blocked(second, sweep, now(), 500) == 0
        first.execute("COMMIT")
        sweep.begin()
        assert sweep_blocked(second, sweep, now(), 500) == 1
        assert unfinished(job) == [("blocked", "overlap"), ("ready", "")]

    def test_a_sweep_that_looked_before_the_trigger_releases_under_the_gate_only(
        self, first: Session, second: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between its first look and the gate the oldest run went another way: it looks again, and no second goes."""
        job = job_with("buffer_all")
        oldest, _ = waiting(job), waiting(job)
        looked = look_after(monkeypatch, lambda: release_now(first, job))
        sweep = Sweep()
        sweep.begin()
        assert sweep_blocked(second, sweep, now(), 500) == 0
        assert looked == [True]
        assert LiveRun.objects.get(pk=oldest.pk).state == "ready"
        assert unfinished(job) == [("blocked", "overlap"), ("ready", "")]

    def test_two_releases_of_one_job_let_one_run_go(self, first: Session, second: Session) -> None:
        """Even without the gate: the row says whether it still waits."""
        job = job_with("buffer_all")
        waiting(job)
        first.execute("BEGIN")
        assert release_waiting(first, [job.pk]) == 1
        assert result_after(first, lambda: release_waiting(second, [job.pk])) == 0

    def test_what_an_edit_lets_go_is_let_go_once(self, first: Session, second: Session) -> None:
        job = job_with("buffer_all")
        waiting(job)
        first.execute("BEGIN")
        assert release_all_waiting(first, job.pk) == 1
        assert result_after(first, lambda: release_waiting(second, [job.pk])) == 0
        assert unfinished(job) == [("ready", "")]


class TestEndingOthers:
    def test_a_trigger_leaves_a_job_whose_run_is_being_claimed_and_asks_it_to_stop_next_time(
        self, first: Session, second: Session, ledger: Ledger
    ) -> None:
        job = job_with("cancel_other")
        queued = make_run(job, LiveState.QUEUED, planned_at=now() - MINUTE)
        make_due(job)
        first.execute("BEGIN")
        first.execute("SELECT FROM beatkeeper_live_run WHERE id = %s FOR UPDATE", [queued.pk])
        assert trigger_due(second, ALL).runs == 0
        first.execute("COMMIT")
        assert claim_next(ledger, job) is not None
        assert trigger_due(second, ALL).runs == 1
        assert unfinished(job) == [("blocked", "overlap"), ("running", "")]
        assert LiveRun.objects.get(pk=queued.pk).cancel_requested_at is not None

    def test_a_claim_that_meets_the_end_of_its_run_finds_nothing(
        self, first: Session, ledger: Ledger
    ) -> None:
        job = job_with("terminate_other")
        make_run(job, LiveState.QUEUED, planned_at=now() - MINUTE)
        make_due(job)
        first.execute("BEGIN")
        assert trigger_due(first, ALL).runs == 1
        assert claim_next(ledger, job) is None
        first.execute("COMMIT")
        assert claim_next(ledger, job) is None
        assert unfinished(job) == [("ready", "")]

    def test_a_trigger_leaves_a_job_whose_run_reports_without_the_gate(
        self, first: Session, second: Session, ledger: Ledger
    ) -> None:
        job = post_job(schedule={"every": 3600}, overlap="allow_all")
        claim = running(ledger, job)
        edit_job(job, {"overlap": "cancel_other"})
        make_due(job)
        first.execute("BEGIN")
        report_halfway(first, claim, gated=False)
        assert trigger_due(second, ALL).runs == 0
        first.execute("COMMIT")
        assert trigger_due(second, ALL).runs == 1
        assert unfinished(job) == [("ready", "")]
        assert Run.objects.get(pk=claim.run_id).state == "succeeded"

    def test_a_failure_that_meets_the_end_of_its_run_is_no_further_try(
        self, first: Session, ledger: Ledger
    ) -> None:
        job = job_with("cancel_other")
        claim = running(ledger, job)
        make_due(job)
        first.execute("BEGIN")
        assert trigger_due(first, ALL).runs == 1
        reported = result_after(first, lambda: tell(ledger, claim, failed(), Verdict("delayed", 5.0)))
        assert reported == "cancelled"
        assert unfinished(job) == [("ready", "")]

    def test_an_edit_waits_for_whoever_has_a_run_that_is_to_end(self, first: Session) -> None:
        job = post_job(schedule={"every": 60}, overlap="cancel_other")
        earlier = make_run(job, LiveState.QUEUED, planned_at=now() - MINUTE)
        make_due(job)
        first.execute("BEGIN")
        first.execute("SELECT FROM beatkeeper_live_run WHERE id = %s FOR UPDATE", [earlier.pk])
        result_after(first, lambda: edit_job(job, {"schedule": {"every": 3600}}))
        assert unfinished(job) == [("ready", "")]
        assert Run.objects.get(pk=earlier.pk).state == "cancelled"


class TestRecovery:
    def test_a_loss_leaves_a_claim_whose_gate_somebody_holds(self, first: Session, second: Session) -> None:
        """Whoever is frozen with a gate in his hands must not stop the recovery of others."""
        job = job_with("buffer_one", retry={"max_attempts": 1, "backoff": "fixed", "base": 1.0, "cap": 1.0})
        lost = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool), planned_at=now() - MINUTE)
        other = make_run(make_job(), LiveState.RUNNING)
        waiting(job)
        claims = {run.pk: run.claim_seq for run in (lost, other)}
        first.execute("BEGIN")
        first.execute(SQL["lock_gate"], {"job_id": job.pk})
        assert set(fail_claims(second, claims, "lost")) == {other.pk}
        first.execute("COMMIT")
        assert fail_claims(second, {lost.pk: lost.claim_seq}, "lost") == {lost.pk: "dead"}
        assert unfinished(job) == [("ready", "")]

    def test_a_worker_frozen_in_the_middle_of_a_report_loses_the_gate(
        self, first: Session, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its job goes on within seconds, and the report is only late."""
        job = job_with("buffer_one")
        claim = running(ledger, job)
        make_due(job)
        report = postgres._report

        def frozen(*arguments: Any) -> Any:
            assert trigger_due(first, ALL).runs == 0
            wait_until(lambda: trigger_due(first, ALL).runs, 15, "the gate to be free")
            return report(*arguments)

        monkeypatch.setattr(postgres, "_report", frozen)
        with pytest.raises(LedgerUnavailable):
            tell(ledger, claim, succeeded(), SUCCESS)
        monkeypatch.undo()
        assert unfinished(job) == [("blocked", "overlap"), ("running", "")]
        assert once_it_answers(lambda: tell(ledger, claim, succeeded(), SUCCESS)) == "succeeded"
        assert unfinished(job) == [("ready", "")]

    def test_a_report_that_meets_the_loss_waits_at_the_gate_and_changes_nothing(
        self, first: Session, ledger: Ledger
    ) -> None:
        job = job_with("buffer_one", retry={"max_attempts": 1, "backoff": "fixed", "base": 1.0, "cap": 1.0})
        claim = running(ledger, job)
        waiting(job)
        first.execute("BEGIN")
        assert fail_claims(first, {claim.run_id: claim.claim_seq}, "lost") == {claim.run_id: "dead"}
        # The attempt that recovery ended is answered for, and nothing is let go a second time.
        assert result_after(first, lambda: tell(ledger, claim, succeeded(), SUCCESS)) == "dead"
        assert unfinished(job) == [("ready", "")]

    def test_a_wake_up_steps_over_a_run_that_somebody_hurries(self, first: Session, second: Session) -> None:
        job = job_with("buffer_one")
        due = make_run(job, LiveState.DELAYED, wake_at=now() - SECOND)
        other = make_run(job_with("buffer_one"), LiveState.DELAYED, wake_at=now() - SECOND)
        first.execute("BEGIN")
        first.execute("SELECT FROM beatkeeper_live_run WHERE id = %s FOR UPDATE", [due.pk])
        assert promote_delayed(second, now(), 500) == 1
        first.execute("COMMIT")
        assert LiveRun.objects.get(pk=other.pk).state == "ready"
        assert recover_once(second, RecoveryMemory(), now()).promoted == 1


class TestEdits:
    def test_a_report_waits_for_an_edit_and_finds_nothing_left_to_release(self, ledger: Ledger) -> None:
        job = post_job(schedule={"every": 3600}, overlap="buffer_all")
        claim = running(ledger, job)
        waiting(job)
        with second_connection() as other:
            other.execute(SQL["lock_gate"], {"job_id": job.pk})
            release_all_waiting(other, job.pk)
            other.execute("DELETE FROM beatkeeper_job_gate WHERE job_id = %s", [job.pk])
            assert result_after(other, lambda: tell(ledger, claim, succeeded(), SUCCESS)) == "succeeded"
        assert unfinished(job) == [("ready", "")]

    def test_an_edit_waits_for_a_report_and_keeps_the_gate_while_runs_wait(
        self, first: Session, ledger: Ledger
    ) -> None:
        job = post_job(schedule={"every": 3600}, overlap="buffer_all")
        claim = running(ledger, job)
        waiting(job), waiting(job)
        first.execute("BEGIN")
        report_halfway(first, claim)
        assert release_waiting(first, [job.pk]) == 1
        result_after(first, lambda: edit_job(job, {"overlap": "skip"}))
        assert unfinished(job) == [("blocked", "overlap"), ("ready", "")]
        LiveRun.objects.filter(job=job, state="ready").update(state="queued", queued_at=now())
        claim = claim_next(ledger, job)  # type: ignore[assignment]
        tell(ledger, claim, succeeded(), SUCCESS)
        assert unfinished(job) == [("ready", "")]


def look_after(monkeypatch: pytest.MonkeyPatch, act: Any) -> list[bool]:
    """Something happens after the sweep's first look and before it has the gates."""
    from runs.scheduler.trigger import overlap

    acted: list[bool] = []
    lock_gates = overlap.lock_gates

    def lock_after_the_act(*arguments: Any, **options: Any) -> Any:
        if not acted:
            acted.append(True)
            act()
        return lock_gates(*arguments, **options)

    monkeypatch.setattr("runs.scheduler.trigger.overlap.lock_gates", lock_after_the_act)
    return acted


def release_now(session: Session, job: Job) -> None:
    assert release_waiting(session, [job.pk]) == 1
