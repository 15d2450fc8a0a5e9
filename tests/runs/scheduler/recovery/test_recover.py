"""Attacks promise 4 from the other side: what is lost comes back, and nothing is taken from who still works."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.conf import LazySettings

from jobs.models import Job, JobStatus, Pool
from runs.models import Attempt, JobGate, LiveRun, NodeState, Run, WorkerNode
from runs.scheduler.recovery.expiry import MASS_LOSS
from runs.scheduler.recovery.recover import Recovered, RecoveryMemory, recover_once
from runs.scheduler.trigger.new_runs import rank
from runs.states import LiveState
from tests.support.factories import make_job, make_pool, make_run, make_tenant, make_worker, now

Session = psycopg.Connection[Any]
SECOND = timedelta(seconds=1)
LEASE = 30 * SECOND


def trusting(at: datetime) -> RecoveryMemory:
    """As after a lease of successful passes."""
    return RecoveryMemory(trusted_from=at - SECOND, last_pass=at)


def recover(session: Session, memory: RecoveryMemory | None = None, at: datetime | None = None) -> Recovered:
    at = at or now()
    return recover_once(session, memory or trusting(at), at)


def silent_worker(pool: Any, seconds: float = 31, **fields: Any) -> WorkerNode:
    at = now() - seconds * SECOND
    return make_worker(pool, **{"last_beat_at": at, "previous_beat_at": at - 5 * SECOND, **fields})


def running(job: Job, worker: WorkerNode, **fields: Any) -> LiveRun:
    return make_run(job, LiveState.RUNNING, worker=worker, **fields)


class TestLostWorkers:
    def test_a_worker_silent_for_its_lease_loses_its_runs(self, session: Session) -> None:
        job = make_job()
        worker = silent_worker(job.pool)
        run = running(job, worker)
        done = recover(session)
        assert (done.lost_workers, done.lost_attempts) == (1, 1)
        worker.refresh_from_db()
        run.refresh_from_db()
        assert worker.state == NodeState.LOST
        assert (run.state, run.reason, run.losses, run.worker) == (LiveState.DELAYED, "worker_lost", 1, None)
        attempt = Attempt.objects.get(run_id=run.pk)
        assert (attempt.outcome, attempt.error_class, attempt.number) == ("lost", "worker_lost", 1)
        assert (attempt.worker, attempt.worker_name) == (worker.incarnation, worker.name)

    @pytest.mark.parametrize(("lease", "silent", "lost"), [(60, 31, 0), (60, 61, 1), (10, 11, 1)])
    def test_the_lease_is_the_workers_own(
        self, session: Session, lease: float, silent: float, lost: int
    ) -> None:
        """Another than the scheduler's: the guard stops its bodies by it, no sooner and no later."""
        job = make_job()
        running(job, silent_worker(job.pool, silent, lease_seconds=lease))
        at = now()
        done = recover(session, RecoveryMemory(trusted_from=at - 61 * SECOND, last_pass=at), at)
        assert (done.lost_workers, done.lost_attempts) == (lost, lost)

    def test_after_an_outage_a_long_lease_begins_anew(self, session: Session) -> None:
        job = make_job()
        running(job, silent_worker(job.pool, 90, lease_seconds=60))
        at = now()
        assert recover(session, RecoveryMemory(trusted_from=at, last_pass=at), at).lost_workers == 0

    def test_the_fencing_token_stays_so_that_a_late_report_loses(self, session: Session) -> None:
        job = make_job()
        run = running(job, silent_worker(job.pool), claim_seq=4)
        recover(session)
        run.refresh_from_db()
        assert (run.claim_seq, run.attempt, run.claim_token) == (4, 1, None)

    def test_a_worker_within_its_lease_keeps_its_runs(self, session: Session) -> None:
        job = make_job()
        run = running(job, silent_worker(job.pool, seconds=25))
        assert recover(session).lost_attempts == 0
        run.refresh_from_db()
        assert run.state == LiveState.RUNNING

    def test_runs_of_an_unknown_worker_are_lost(self, session: Session) -> None:
        make_run(make_job(), LiveState.RUNNING, worker=None)
        assert recover(session).lost_attempts == 1

    def test_what_a_worker_left_behind_is_lost(self, session: Session) -> None:
        job = make_job()
        running(job, make_worker(job.pool, state=NodeState.LEFT))
        assert recover(session).lost_attempts == 1

    def test_a_run_beyond_its_time_limit_and_grace_is_lost(self, session: Session) -> None:
        job = make_job()
        run = running(job, make_worker(job.pool), wake_at=now() - SECOND)
        recover(session)
        assert "time limit" in Attempt.objects.get(run_id=run.pk).error_line

    def test_a_pool_of_one_worker_recovers_at_once(self, session: Session) -> None:
        job = make_job()
        running(job, silent_worker(job.pool))
        assert recover(session).held_workers == 0


class TestClaimsNotInHand:
    """Claimed before the previous beat, and not listed in the last."""

    def test_a_claim_the_worker_no_longer_lists_is_lost(self, session: Session) -> None:
        job = make_job()
        worker = silent_worker(job.pool, seconds=1)
        run = running(job, worker, claimed_at=worker.previous_beat_at - SECOND)
        recover(session)
        run.refresh_from_db()
        assert run.state == LiveState.DELAYED

    def test_a_claim_in_hand_is_kept(self, session: Session) -> None:
        job, token = make_job(), uuid4()
        worker = silent_worker(job.pool, seconds=1, held=[token])
        running(job, worker, claim_token=token, claimed_at=worker.previous_beat_at - SECOND)
        assert recover(session).lost_attempts == 0

    def test_a_fresh_claim_is_kept_though_the_last_beat_was_composed_before_it(
        self, session: Session
    ) -> None:
        job = make_job()
        worker = silent_worker(job.pool, seconds=1)
        running(job, worker, claimed_at=worker.previous_beat_at + SECOND)
        assert recover(session).lost_attempts == 0


class TestVerdicts:
    def test_a_run_without_attempts_left_is_dead(self, session: Session) -> None:
        job = make_job(spec={"retry": {"max_attempts": 1, "backoff": "fixed", "base": 1.0, "cap": 1.0}})
        run = running(job, silent_worker(job.pool))
        recover(session)
        ended = Run.objects.get(pk=run.pk)
        assert (ended.state, ended.ended_from, ended.error_class) == ("dead", "running", "worker_lost")
        assert (ended.attempts, ended.finished_at is None) == (1, False)
        assert not LiveRun.objects.filter(pk=run.pk).exists()

    def test_a_run_that_lost_too_many_workers_is_dead(self, session: Session, settings: LazySettings) -> None:
        settings.MAX_WORKER_LOSSES = 2
        job = make_job()
        run = running(job, silent_worker(job.pool), losses=1)
        recover(session)
        assert Run.objects.get(pk=run.pk).state == "dead"

    def test_a_lost_run_somebody_wants_cancelled_is_cancelled(self, session: Session) -> None:
        job = make_job()
        run = running(job, silent_worker(job.pool), cancel_requested_at=now(), cancel_reason="enough")
        recover(session)
        ended = Run.objects.get(pk=run.pk)
        assert (ended.state, ended.reason) == ("cancelled", "enough")
        assert Attempt.objects.get(run_id=run.pk).next_state == "cancelled"


class TestBrakes:
    """After an outage of our own, or when many fall silent at once, recovery waits."""

    def test_a_new_recovery_takes_nothing_for_one_lease(self, session: Session) -> None:
        job, memory, at = make_job(), RecoveryMemory(), now()
        run = running(job, silent_worker(job.pool))
        for seconds in range(0, 30, 5):
            assert recover(session, memory, at + seconds * SECOND).lost_attempts == 0
        assert recover(session, memory, at + 31 * SECOND).lost_attempts == 1
        run.refresh_from_db()
        assert run.state == LiveState.DELAYED

    def test_after_an_outage_of_the_database_nothing_expires_for_one_lease(self, session: Session) -> None:
        job, at = make_job(), now()
        memory = trusting(at)
        worker = silent_worker(job.pool, seconds=0)
        running(job, worker)
        back = at + 41 * SECOND
        assert recover(session, memory, back).lost_workers == 0
        WorkerNode.objects.update(last_beat_at=back + SECOND, previous_beat_at=back + SECOND)
        for seconds in range(5, 30, 5):
            assert recover(session, memory, back + seconds * SECOND).lost_workers == 0

    def test_many_that_fall_silent_at_once_are_held_for_one_more_lease(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        job, at = make_job(), now()
        workers = [silent_worker(job.pool) for _ in range(MASS_LOSS)]
        for worker in workers:
            running(job, worker)
        memory = trusting(at)
        assert recover(session, memory, at).held_workers == MASS_LOSS
        assert "ALARM" in caplog.text
        for seconds in range(5, 30, 5):
            done = recover(session, memory, at + seconds * SECOND)
            assert (done.held_workers, done.lost_workers) == (0, 0)
        done = recover(session, memory, at + 30 * SECOND)
        assert (done.lost_workers, done.lost_attempts) == (MASS_LOSS, MASS_LOSS)

    def test_idle_workers_within_a_longer_lease_do_not_release_the_brake(self, session: Session) -> None:
        """The network failed: busy workers are silent for their lease, and idle ones were not heard since either."""
        job = make_job()
        for _ in range(MASS_LOSS):
            running(job, silent_worker(job.pool))
        for _ in range(20):
            make_worker(job.pool, lease_seconds=50, last_beat_at=now() - 40 * SECOND)
        done = recover(session)
        assert (done.held_workers, done.lost_workers) == (MASS_LOSS, 0)

    def test_idle_workers_that_were_heard_since_show_that_the_network_works(self, session: Session) -> None:
        job = make_job()
        for _ in range(MASS_LOSS):
            running(job, silent_worker(job.pool))
        for _ in range(20):
            make_worker(job.pool, lease_seconds=50, last_beat_at=now() - 20 * SECOND)
        done = recover(session)
        assert (done.held_workers, done.lost_workers) == (0, MASS_LOSS)

    def test_a_fifth_of_a_large_pool_is_not_held(self, session: Session) -> None:
        pool = make_pool()
        for _ in range(12):
            make_worker(pool)
        for _ in range(MASS_LOSS):
            silent_worker(pool)
        assert recover(session).lost_workers == MASS_LOSS

    def test_workers_that_died_one_after_the_other_are_not_held(self, session: Session) -> None:
        pool = make_pool()
        for leases in range(1, MASS_LOSS + 1):
            silent_worker(pool, seconds=31 * 2 * leases)
        assert recover(session).lost_workers == MASS_LOSS

    def test_pools_are_judged_apart(self, session: Session) -> None:
        for _ in range(MASS_LOSS):
            silent_worker(make_pool())
        assert recover(session).lost_workers == MASS_LOSS

    def test_a_teams_silent_workers_do_not_hold_what_others_have_lost(self, session: Session) -> None:
        """Registered with a team's key, and never heard of again."""
        job, team = make_job(), make_tenant()
        run = running(job, silent_worker(job.pool))
        for _ in range(MASS_LOSS):
            silent_worker(job.pool, tenant=team)
        done = recover(session)
        assert (done.held_workers, done.lost_workers) == (MASS_LOSS, 1)
        run.refresh_from_db()
        assert run.state == LiveState.DELAYED

    def test_a_teams_living_workers_do_not_release_the_brake_of_others(self, session: Session) -> None:
        job, team = make_job(), make_tenant()
        for _ in range(MASS_LOSS):
            running(job, silent_worker(job.pool))
        for _ in range(20):
            make_worker(job.pool, tenant=team, lease_seconds=3600)
        done = recover(session)
        assert (done.held_workers, done.lost_workers) == (MASS_LOSS, 0)


class TestWaking:
    def test_a_delayed_run_is_ready_when_its_time_has_come(self, session: Session) -> None:
        job = make_job()
        due = make_run(job, LiveState.DELAYED, wake_at=now() - SECOND)
        later = make_run(job, LiveState.DELAYED, wake_at=now() + 10 * SECOND)
        # Waking takes nothing from anybody, so it needs no trust.
        assert recover(session, RecoveryMemory()).promoted == 1
        due.refresh_from_db()
        later.refresh_from_db()
        assert (due.state, due.wake_at, later.state) == (LiveState.READY, None, LiveState.DELAYED)

    def test_all_whose_time_has_come_wake_in_one_pass(self, session: Session) -> None:
        """A flexible window makes them many; each gets its place by when it may go, not by when it was planned."""
        job = make_job()
        later = now() - SECOND
        for _ in range(7):
            place = rank(later, job.priority)
            make_run(job, LiveState.DELAYED, available_at=later, wake_at=later, rank=place)
        memory = RecoveryMemory()
        memory.batch.size = 2
        assert recover(session, memory).promoted == 7
        assert set(LiveRun.objects.values_list("state", "rank")) == {("ready", rank(later, job.priority))}


class TestBlockedRuns:
    def blocked(self, job: Job, reason: str, count: int = 1) -> list[LiveRun]:
        start = now()
        return [
            make_run(job, LiveState.BLOCKED, reason=reason, planned_at=start - number * SECOND)
            for number in range(count)
        ]

    def states(self, runs: list[LiveRun]) -> list[str]:
        return [LiveRun.objects.get(pk=run.pk).state for run in runs]

    def test_as_many_as_the_limit_has_room_for_are_released(self, session: Session) -> None:
        job = make_job(max_concurrency=3)
        running(job, make_worker(job.pool), planned_at=now() - 9 * SECOND)
        runs = self.blocked(job, "concurrency", 4)
        assert recover(session).released == 2
        assert self.states(runs) == ["blocked", "blocked", "ready", "ready"]
        assert recover(session).released == 0

    def test_a_ready_run_of_another_pool_takes_no_place(self, session: Session) -> None:
        """It may be ready for ever there: of a pool that lost its workers, and that the job has left."""
        job = make_job(max_concurrency=1)
        make_run(job)
        Job.objects.filter(pk=job.pk).update(pool=make_pool())
        job.refresh_from_db()
        blocked = make_run(job, LiveState.BLOCKED, reason="concurrency")
        assert recover(session).released == 1
        blocked.refresh_from_db()
        assert blocked.state == LiveState.READY
        make_run(job, LiveState.BLOCKED, reason="concurrency")
        assert recover(session).released == 0

    def test_without_a_limit_all_are_released(self, session: Session) -> None:
        job = make_job(max_concurrency=1)
        self.blocked(job, "concurrency", 3)
        JobGate.objects.all().delete()
        assert recover(session).released == 3

    def test_runs_of_a_resumed_job_are_released(self, session: Session) -> None:
        resumed, paused = make_job(), make_job(status=JobStatus.PAUSED)
        runs = self.blocked(resumed, "paused") + self.blocked(paused, "paused")
        recover(session)
        assert self.states(runs) == ["ready", "blocked"]

    def test_runs_of_a_target_that_became_known_are_released(self, session: Session) -> None:
        job = make_job()
        stranger = make_job(pool=job.pool, spec={"target_key": "nobody.knows"})
        runs = self.blocked(job, "unknown_target")
        runs += self.blocked(stranger, "unknown_target")
        assert recover(session).released == 0
        make_worker(job.pool)
        recover(session)
        assert self.states(runs) == ["ready", "blocked"]

    @pytest.mark.parametrize("reason", ["not_allowed", "not_exported"])
    def test_runs_that_are_permitted_again_are_released(self, session: Session, reason: str) -> None:
        pool = make_pool(shared=False, exported_tasks=[])
        job = make_job(pool=pool)
        runs = self.blocked(job, reason)
        assert recover(session).released == 0
        pool.tenants.add(job.tenant)
        assert recover(session).released == 0
        Pool.objects.filter(pk=pool.pk).update(exported_tasks=[job.spec.target_key])
        assert recover(session).released == 1
        assert self.states(runs) == ["ready"]

    def test_a_round_looks_at_all_however_many_there_are(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runs.scheduler.recovery.unblock.MAX_JOBS", 2)
        runs = [run for _ in range(5) for run in self.blocked(make_job(max_concurrency=1), "concurrency")]
        assert recover(session).released == 5
        assert set(self.states(runs)) == {"ready"}

    def test_a_round_that_takes_too_long_goes_on_in_the_next_pass(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runs.scheduler.recovery.unblock.MAX_JOBS", 2)
        monkeypatch.setattr("runs.scheduler.recovery.unblock.MAX_LOOK_SECONDS", 0.0)
        memory = trusting(now())
        for _ in range(5):
            self.blocked(make_job(max_concurrency=1), "concurrency")
        self.blocked(make_job(), "not_exported")
        released: list[int] = []
        while not released or memory.sweep.rounds:
            released.append(recover(session, memory).released)
        # In between each of the other reasons had its turn.
        assert [count for count in released if count] == [2, 1, 2, 1]

    def test_a_job_with_more_than_a_batch_is_not_left_for_the_next_round(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        memory = trusting(now())
        memory.batch.size = 2
        runs = self.blocked(make_job(), "not_exported", 5)
        assert recover(session, memory).released == 5
        assert set(self.states(runs)) == {"ready"}

    def test_queued_runs_nobody_can_claim_any_more_go_back(self, session: Session) -> None:
        job = make_job(spec={"target_key": "gone.with.its.worker"})
        run = make_run(job, LiveState.QUEUED, queued_at=now() - LEASE - SECOND)
        assert recover(session).withdrawn == 0
        make_worker(job.pool)
        done = recover(session)
        assert (done.withdrawn, done.released) == (1, 0)
        run.refresh_from_db()
        assert run.state == LiveState.READY
