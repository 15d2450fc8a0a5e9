"""Attacks promise 6 and the limits: what may be claimed now, in which order, and why the rest may not."""

import itertools
from collections import Counter, deque
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import psycopg
import pytest
from django.conf import settings
from django.db.models import F

from jobs.models import Effect, Job, JobStatus, Pool, Suspension, SuspensionKind, Tenant
from runs.models import JobGate, LiveRun, NodeState, Queue, WorkerNode
from runs.scheduler.broker.message import Wakeup
from runs.scheduler.dispatch import load
from runs.scheduler.dispatch.dispatch import Dispatched, dispatch_pool
from runs.scheduler.dispatch.load import PoolMemory
from runs.scheduler.dispatch.queue_memory import QueueMemories, QueueMemory, RunLength, Seen
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.states import LiveState, Trigger
from tests.support.factories import (
    TASK,
    make_job,
    make_pool,
    make_queue,
    make_run,
    make_suspension,
    make_tenant,
    make_worker,
    now,
    used,
)

Session = psycopg.Connection[Any]


@pytest.fixture
def pool(db: None) -> Pool:
    return make_pool(slug="default")


def dispatch(session: Session, pool: Pool, memory: PoolMemory | None = None, **options: Any) -> Dispatched:
    return dispatch_pool(session, pool.pk, options.pop("at", now()), memory, **options)


def make_ready(job: Job, count: int) -> list[LiveRun]:
    """In rank order."""
    instants = (now() - timedelta(seconds=1) + timedelta(milliseconds=number) for number in itertools.count())
    unused = itertools.islice((instant for instant in instants if instant not in used), count)
    return [make_run(job, planned_at=instant) for instant in list(unused)]


def claim(run: LiveRun, worker: WorkerNode) -> None:
    LiveRun.objects.filter(pk=run.pk).update(
        state=LiveState.RUNNING, worker=worker.incarnation, claim_token=uuid4(), claimed_at=now()
    )


def states(job: Job) -> list[str]:
    return list(LiveRun.objects.filter(job=job).order_by("planned_at").values_list("state", flat=True))


class BusyGates:
    """Every gate is held by a report."""

    def __init__(self, connection: Session, jobs: set[UUID]) -> None:
        self.busy = jobs


def reason(pool: Pool, tenant: Tenant) -> str:
    return Queue.objects.get(pool=pool, tenant=tenant).reason


def test_a_ready_run_is_marked_and_gets_a_wakeup_for_its_pool(session: Session, pool: Pool) -> None:
    Pool.objects.update(broker_queue="bk.default.all.tenants.v2")
    make_worker(pool)
    run = make_run(make_job(make_tenant(slug="acme"), pool))
    done = dispatch(session, pool)
    run.refresh_from_db()
    assert run.state == LiveState.QUEUED
    assert run.queued_at is not None
    assert done.wakeups == [Wakeup("bk.default.all.tenants.v2", f"{pool.pk}:0")]
    assert not done.broker_queues


class TestWakeupsOfOwnWorkers:
    """Of a tenant's own workers and those for all tenants each hear of what they may take."""

    POOLS = "bk.default.all.tenants.v2"

    @pytest.fixture
    def own_queue(self, pool: Pool, own: Tenant) -> str:
        Pool.objects.update(broker_queue=self.POOLS)
        return f"{settings.QUEUE_PREFIX}.default.acme.v2"

    @pytest.fixture
    def own(self) -> Tenant:
        return make_tenant(slug="acme")

    def woken(self, done: Dispatched) -> Counter[str]:
        return Counter(wakeup.broker_queue for wakeup in done.wakeups)

    def test_they_and_the_others_are_woken(
        self, session: Session, pool: Pool, own: Tenant, own_queue: str
    ) -> None:
        make_worker(pool, slots=2, tenant=own)
        make_worker(pool, slots=8)
        make_ready(make_job(own, pool), 5)
        done = dispatch(session, pool)
        assert done.queued == 5
        assert self.woken(done) == {own_queue: 2, self.POOLS: 5}
        assert own_queue in done.broker_queues

    def test_nobody_else_is_woken_for_what_only_they_know(
        self, session: Session, pool: Pool, own: Tenant, own_queue: str
    ) -> None:
        make_worker(pool, slots=2, tenant=own, known_targets=[TASK, "app.own"])
        make_worker(pool, slots=8)
        Pool.objects.update(exported_tasks=[TASK, "app.own"])
        make_ready(make_job(own, pool), 5)
        LiveRun.objects.update(target_key="app.own")
        assert self.woken(dispatch(session, pool)) == {own_queue: 2}

    def test_without_others_all_wakeups_are_theirs(
        self, session: Session, pool: Pool, own: Tenant, own_queue: str
    ) -> None:
        make_worker(pool, slots=3, tenant=own)
        make_ready(make_job(own, pool), 5)
        assert self.woken(dispatch(session, pool)) == {own_queue: 3}

    def test_they_are_not_woken_for_what_they_do_not_know(
        self, session: Session, pool: Pool, own: Tenant, own_queue: str
    ) -> None:
        make_worker(pool, slots=2, tenant=own, known_targets=["app.other"])
        make_worker(pool, slots=8)
        make_ready(make_job(own, pool), 3)
        assert self.woken(dispatch(session, pool)) == {self.POOLS: 3}


class TestLateRuns:
    """Claims that took less than a place was expected to hold leave runs without a wake-up."""

    def test_they_are_woken_for_again(self, session: Session, pool: Pool) -> None:
        make_worker(pool, slots=8)
        job = make_job(pool=pool)
        seen = Seen(now().timestamp(), ended=20, freed=0, slot_seconds=0.25)
        queues = QueueMemories(
            {job.tenant_id: QueueMemory(0.0, RunLength(seen.at, 20, 0.25), seen=deque([seen]))}
        )
        make_ready(job, 8)
        memory, at = PoolMemory(queues), now()
        assert len(dispatch(session, pool, memory, at=at).wakeups) == 1
        LiveRun.objects.filter(pk=LiveRun.objects.order_by("pk")[0].pk).delete()

        def woken(after: float) -> int:
            return len(dispatch(session, pool, memory, at=at + timedelta(seconds=after)).wakeups)

        assert [woken(0.1), woken(0.21), woken(0.3), woken(0.42)] == [0, 7, 0, 7]

    def test_a_new_scheduler_wakes_for_all_that_is_queued(self, session: Session, pool: Pool) -> None:
        make_worker(pool, slots=4)
        make_ready(make_job(pool=pool), 3)
        dispatch(session, pool, PoolMemory())
        assert len(dispatch(session, pool, PoolMemory()).wakeups) == 3


class TestOwedWakeups:
    """A place for which no slot is free is owed a wake-up."""

    def test_it_is_sent_when_a_slot_is_free(self, session: Session, pool: Pool) -> None:
        worker = make_worker(pool, slots=2)
        job = make_job(pool=pool)
        running = [make_run(job, LiveState.RUNNING, worker=worker) for _ in range(2)]
        make_ready(make_job(pool=pool), 1)
        memory = PoolMemory()
        first = dispatch(session, pool, memory)
        assert (first.queued, len(first.wakeups)) == (1, 0)
        assert len(dispatch(session, pool, memory).wakeups) == 0
        running[0].delete()
        assert len(dispatch(session, pool, memory).wakeups) == 1
        assert len(dispatch(session, pool, memory).wakeups) == 0

    def test_it_is_not_sent_for_what_was_claimed_meanwhile(self, session: Session, pool: Pool) -> None:
        worker = make_worker(pool, slots=2)
        job = make_job(pool=pool)
        for _ in range(2):
            make_run(job, LiveState.RUNNING, worker=worker)
        make_ready(make_job(pool=pool), 1)
        memory = PoolMemory()
        assert dispatch(session, pool, memory).queued == 1
        LiveRun.objects.all().delete()
        assert not dispatch(session, pool, memory).wakeups


def test_of_short_runs_a_place_holds_many_and_has_one_wakeup(session: Session, pool: Pool) -> None:
    make_worker(pool, slots=2)
    job = make_job(pool=pool)
    make_ready(job, 40)
    seen = Seen(now().timestamp(), ended=20, freed=0, slot_seconds=0.25)
    queues = QueueMemories(
        {job.tenant_id: QueueMemory(0.0, RunLength(seen.at, 20, 0.25), seen=deque([seen]))}
    )
    done = dispatch(session, pool, PoolMemory(queues))
    assert (done.queued, len(done.wakeups)) == (2 * 8, 2)


def test_what_a_queue_above_its_share_has_queued_goes_back_while_others_wait(
    session: Session, pool: Pool
) -> None:
    worker = make_worker(pool, slots=4)
    long, other = make_job(pool=pool), make_job(pool=pool)
    for _ in range(4):
        make_run(long, LiveState.RUNNING, worker=worker)
    queued = [make_run(long, LiveState.QUEUED) for _ in range(6)]
    assert dispatch(session, pool).queued == 0
    assert LiveRun.objects.filter(state=LiveState.QUEUED, tenant_id=long.tenant_id).count() == 6
    waiting = make_ready(other, 3)
    dispatch(session, pool)
    left = LiveRun.objects.filter(state=LiveState.READY).values_list("tenant_id", flat=True)
    assert list(left).count(long.tenant_id) == len(queued)
    assert LiveRun.objects.filter(pk__in=[run.pk for run in waiting], state=LiveState.QUEUED).exists()


def test_a_queue_hands_over_in_rank_order(session: Session, pool: Pool) -> None:
    make_worker(pool, slots=2)
    tenant = make_tenant()
    low, high = make_job(tenant, pool, priority=0), make_job(tenant, pool, priority=1000)
    aged = make_run(low, planned_at=now() - timedelta(seconds=310))
    fresh = make_ready(high, 3)
    make_ready(low, 1)
    dispatch(session, pool)
    queued = set(LiveRun.objects.filter(state=LiveState.QUEUED).values_list("pk", flat=True))
    assert queued == {aged.pk, fresh[0].pk}


def test_no_more_is_queued_than_there_are_slots(session: Session, pool: Pool) -> None:
    make_worker(pool, slots=3, foreign_busy=1)
    job = make_job(pool=pool)
    make_ready(job, 5)
    memory = PoolMemory()
    assert dispatch(session, pool, memory).queued == 2
    again = dispatch(session, pool, memory)
    assert (again.queued, again.waiting) == (0, True)


def test_a_queue_that_frees_its_slots_quickly_gets_a_wider_window(session: Session, pool: Pool) -> None:
    make_worker(pool, slots=4)
    job = make_job(pool=pool)
    make_ready(job, 200)
    memory, at, widest = PoolMemory(), now(), 0
    for step in range(20):
        done = dispatch(session, pool, memory, at=at + timedelta(milliseconds=50 * step))
        widest = max(widest, done.queued)
        LiveRun.objects.filter(state=LiveState.QUEUED).delete()
    assert widest > 20


def test_a_newcomer_is_not_kept_waiting_by_the_long_runs_of_another(session: Session, pool: Pool) -> None:
    worker = make_worker(pool, slots=8)
    greedy, newcomer = make_job(pool=pool), make_job(pool=pool)
    make_queue(greedy)
    make_queue(newcomer)
    make_ready(greedy, 20)
    memory = PoolMemory()
    assert dispatch(session, pool, memory).queued == 7
    for run in LiveRun.objects.filter(state=LiveState.QUEUED):
        claim(run, worker)
    make_run(newcomer)
    dispatch(session, pool, memory)
    assert states(newcomer) == [LiveState.QUEUED]


def test_long_runs_on_a_draining_worker_take_no_slot_of_its_successor(session: Session, pool: Pool) -> None:
    job = make_job(pool=pool)
    old = make_worker(pool, slots=4)
    start = now() - timedelta(seconds=9)
    for number in range(4):
        make_run(job, LiveState.RUNNING, worker=old, planned_at=start + timedelta(milliseconds=number))
    WorkerNode.objects.update(state=NodeState.DRAINING)
    make_worker(pool, slots=4)
    make_ready(job, 4)
    assert dispatch(session, pool).queued == 4


def test_a_pool_without_live_workers_says_so_on_the_queue(session: Session, pool: Pool) -> None:
    job = make_job(pool=pool)
    make_run(job)
    make_worker(pool, state="draining")
    make_worker(pool, last_beat_at=now() - timedelta(seconds=31))
    assert dispatch(session, pool).queued == 0
    assert reason(pool, job.tenant) == "no_live_worker"
    make_worker(pool)
    assert dispatch(session, pool).queued == 1
    assert reason(pool, job.tenant) == ""


class TestSuspensions:
    """A pause or a blackout in force: nothing is handed over, and few rows tell why."""

    def test_a_pause_of_the_pool_holds_its_queues_and_touches_no_run(
        self, session: Session, pool: Pool
    ) -> None:
        make_worker(pool)
        job = make_job(pool=pool)
        make_run(job)
        suspension = make_suspension(pool=pool, effect=Effect.HOLD, reason="new disks")
        dispatch(session, pool)
        assert states(job) == [LiveState.READY]
        assert reason(pool, job.tenant) == "paused: new disks"
        Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now())
        assert dispatch(session, pool).queued == 1
        assert reason(pool, job.tenant) == ""

    def test_a_suspension_of_a_tenant_holds_manual_runs_too_and_nobody_elses(
        self, session: Session, pool: Pool
    ) -> None:
        make_worker(pool, slots=8)
        held, free = make_job(pool=pool), make_job(pool=pool)
        make_run(held, trigger=Trigger.MANUAL)
        make_run(free)
        make_suspension(tenant=held.tenant, kind=SuspensionKind.BLACKOUT, ends_at=now() + timedelta(hours=1))
        dispatch(session, pool)
        assert (states(held), states(free)) == ([LiveState.READY], [LiveState.QUEUED])
        assert (reason(pool, held.tenant), reason(pool, free.tenant)) == ("blackout", "")

    def test_a_queue_that_is_held_takes_no_share_from_the_others(self, session: Session, pool: Pool) -> None:
        make_worker(pool, slots=8)
        held, free = make_job(pool=pool), make_job(pool=pool)
        make_queue(held)
        make_queue(free)
        make_ready(held, 9)
        make_ready(free, 9)
        make_suspension(tenant=held.tenant)
        assert dispatch(session, pool).queued == 7

    @pytest.mark.parametrize("effect", [Effect.SKIP, Effect.RUN_AFTER])
    def test_a_blackout_that_skips_holds_no_run_that_exists(
        self, session: Session, pool: Pool, effect: Effect
    ) -> None:
        make_worker(pool)
        make_run(make_job(pool=pool))
        make_suspension(effect=effect, kind=SuspensionKind.BLACKOUT, ends_at=now() + timedelta(hours=1))
        assert dispatch(session, pool).queued == 1

    def test_a_suspension_ends_by_itself_at_its_time(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        make_run(make_job(pool=pool))
        at = now()
        make_suspension(begins_at=at, ends_at=at + timedelta(seconds=5))
        assert dispatch(session, pool, at=at + timedelta(seconds=4.9)).queued == 0
        assert dispatch(session, pool, at=at + timedelta(seconds=5)).queued == 1

    def test_a_suspension_by_tag_sets_its_runs_aside_and_lets_the_rest_of_the_queue_go(
        self, session: Session, pool: Pool
    ) -> None:
        make_worker(pool, slots=8)
        tenant = make_tenant()
        held, other = (
            make_job(tenant, pool, tags={"team": "pay"}),
            make_job(tenant, pool, tags={"team": "web"}),
        )
        make_ready(held, 2)
        make_run(other)
        suspension = make_suspension(tag_name="team", tag_value="pay")
        dispatch(session, pool)
        assert (states(held), states(other)) == (["blocked", "blocked"], ["queued"])
        assert set(LiveRun.objects.filter(job=held).values_list("reason", flat=True)) == {"paused"}
        Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now())
        recover_once(session, RecoveryMemory(), now())
        assert dispatch(session, pool).queued == 2

    def test_a_suspension_of_one_job_sets_its_runs_aside_and_lets_the_rest_of_the_queue_go(
        self, session: Session, pool: Pool
    ) -> None:
        make_worker(pool, slots=8)
        tenant = make_tenant()
        held, other = make_job(tenant, pool), make_job(tenant, pool)
        make_ready(held, 2)
        make_run(other)
        suspension = make_suspension(tenant=tenant, job=held)
        dispatch(session, pool)
        assert (states(held), states(other)) == (["blocked", "blocked"], ["queued"])
        Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now())
        recover_once(session, RecoveryMemory(), now())
        assert dispatch(session, pool).queued == 2

    def test_what_is_blocked_stays_so_while_another_stop_holds_it(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        job = make_job(pool=pool, tags={"team": "pay", "city": "paris"})
        make_run(job, LiveState.BLOCKED, reason="paused")
        make_suspension(tag_name="team", tag_value="pay", lifted_at=now())
        other = make_suspension(tag_name="city")
        recover_once(session, RecoveryMemory(), now())
        assert states(job) == [LiveState.BLOCKED]
        Suspension.objects.filter(pk=other.pk).update(lifted_at=now())
        recover_once(session, RecoveryMemory(), now())
        assert states(job) == [LiveState.READY]


def test_a_broker_that_is_away_is_a_notice_and_no_stop(session: Session, pool: Pool) -> None:
    make_worker(pool)
    job = make_job(pool=pool)
    make_run(job)
    assert dispatch(session, pool, notice="broker_away").queued == 1
    assert reason(pool, job.tenant) == "broker_away"


def test_a_tenants_limit_counts_queued_and_running(session: Session, pool: Pool) -> None:
    worker = make_worker(pool, slots=20)
    tenant = make_tenant(max_running=3)
    job = make_job(tenant, pool)
    make_run(job, LiveState.RUNNING, worker=worker)
    make_run(job, LiveState.QUEUED)
    make_ready(job, 4)
    assert dispatch(session, pool).queued == 1
    assert reason(pool, tenant) == "max_running"


def test_what_is_recalled_costs_nothing_of_the_rate(session: Session, pool: Pool) -> None:
    worker = make_worker(pool, slots=2)
    long = make_job(make_tenant(rate_limit=4.0), pool)
    for _ in range(2):
        make_run(long, LiveState.RUNNING, worker=worker)
    make_queue(long)
    at = now()
    Queue.objects.update(tokens=1.0, tokens_at=at)
    for _ in range(2):
        make_run(long, LiveState.QUEUED)
    make_ready(make_job(pool=pool), 1)
    dispatch(session, pool, at=at)
    assert Queue.objects.get(tenant=long.tenant).tokens == 3.0


def test_a_rate_limit_is_a_bucket_on_the_queue(session: Session, pool: Pool) -> None:
    make_worker(pool, slots=50)
    tenant = make_tenant(rate_limit=2.0)
    job = make_job(tenant, pool)
    make_ready(job, 10)
    at = now()
    assert dispatch(session, pool, at=at).queued == 2
    assert reason(pool, tenant) == "rate_limit"
    # Another dispatcher without any memory reads the same bucket.
    assert dispatch(session, pool, at=at + timedelta(seconds=0.1)).queued == 0
    assert dispatch(session, pool, at=at + timedelta(seconds=0.6)).queued == 1
    assert dispatch(session, pool, at=at + timedelta(seconds=20)).queued == 2


class TestDailyQuota:
    """Runs handed over on a UTC day; the count is in the queue's row, for whoever decides next."""

    def test_a_queue_hands_over_its_quota_and_opens_by_itself_at_midnight(
        self, session: Session, pool: Pool
    ) -> None:
        make_worker(pool, slots=50, last_beat_at=now() + timedelta(days=2))
        tenant = make_tenant(daily_quota=3)
        job = make_job(tenant, pool)
        make_ready(job, 10)
        midnight = now().replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        evening = midnight - timedelta(seconds=1)
        assert dispatch(session, pool, at=evening).queued == 3
        assert reason(pool, tenant) == "daily_quota"
        assert dispatch(session, pool, at=evening).queued == 0
        assert dispatch(session, pool, at=midnight).queued == 3
        queue = Queue.objects.get(tenant=tenant)
        assert (queue.day, queue.day_count) == (midnight.date(), 3)

    def test_it_holds_from_one_dispatcher_to_the_next(self, session: Session, pool: Pool) -> None:
        make_worker(pool, slots=2)
        tenant = make_tenant(daily_quota=5)
        make_ready(make_job(tenant, pool), 10)
        handed = 0
        for _ in range(9):
            handed += dispatch(session, pool, PoolMemory()).queued
            LiveRun.objects.filter(state=LiveState.QUEUED).delete()
        assert (handed, reason(pool, tenant)) == (5, "daily_quota")

    def test_a_neighbour_takes_the_places_that_a_quota_leaves(self, session: Session, pool: Pool) -> None:
        make_worker(pool, slots=8)
        limited, free = make_job(make_tenant(daily_quota=1), pool), make_job(pool=pool)
        make_ready(limited, 5)
        make_ready(free, 9)
        dispatch(session, pool)
        assert states(limited).count("queued") == 1
        assert states(free).count("queued") >= 6

    def test_what_came_back_unclaimed_is_not_counted_twice(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        tenant = make_tenant(daily_quota=2)
        job = make_job(tenant, pool)
        make_ready(job, 3)
        assert dispatch(session, pool).queued == 2
        LiveRun.objects.filter(state=LiveState.QUEUED).update(state=LiveState.READY)
        assert dispatch(session, pool).queued == 2
        assert Queue.objects.get(tenant=tenant).day_count == 2
        assert dispatch(session, pool).queued == 0

    @pytest.mark.parametrize("own_slots", [0, 8])
    @pytest.mark.parametrize("returned", [0, 150])
    def test_what_is_recalled_and_goes_again_is_counted_once(
        self, session: Session, pool: Pool, own_slots: int, returned: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where more came back before, as from a pause, than a pass takes back from the count."""
        ours, theirs = make_job(make_tenant(daily_quota=1000), pool), make_job(pool=pool)
        shared = make_worker(pool, slots=10)
        if own_slots:
            make_worker(pool, slots=own_slots, tenant=ours.tenant)
        memory = PoolMemory()
        make_ready(ours, 30)
        dispatch(session, pool, memory)
        for run in LiveRun.objects.filter(state=LiveState.QUEUED).order_by("rank")[:7]:
            claim(run, shared)
        before = states(ours).count("queued")
        make_run(theirs)
        came_back = [
            make_run(ours, planned_at=now() - nth * timedelta(minutes=1), queued_at=now(), rank=2**60).pk
            for nth in range(60, 60 + returned)
        ]
        Queue.objects.filter(tenant=ours.tenant).update(day_count=F("day_count") + returned)
        monkeypatch.setattr(load, "MAX_IN_A_PASS", 50)
        dispatch(session, pool, memory, at=now() + timedelta(seconds=2))
        again = states(ours).count("queued")
        assert 0 < again < before
        still = LiveRun.objects.filter(
            pk__in=came_back, state=LiveState.READY, queued_at__isnull=False
        ).count()
        assert Queue.objects.get(tenant=ours.tenant).day_count == 7 + again + still

    def test_what_came_back_from_yesterday_is_counted_today(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        tenant = make_tenant(daily_quota=1)
        run = make_run(make_job(tenant, pool))
        LiveRun.objects.filter(pk=run.pk).update(queued_at=now() - timedelta(days=1))
        assert dispatch(session, pool).queued == 1
        assert Queue.objects.get(tenant=tenant).day_count == 1

    def test_a_quota_set_to_nothing_lets_nothing_go(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        tenant = make_tenant(daily_quota=0)
        make_run(make_job(tenant, pool))
        assert dispatch(session, pool).queued == 0
        assert reason(pool, tenant) == "daily_quota"


class TestOwnReasons:
    """What may not go for a reason of its own steps aside, so that it does not block its queue."""

    def test_beyond_a_jobs_limit_runs_are_blocked_and_others_go(self, session: Session, pool: Pool) -> None:
        worker = make_worker(pool, slots=20)
        tenant = make_tenant()
        limited, free = make_job(tenant, pool, max_concurrency=2), make_job(tenant, pool)
        make_run(limited, LiveState.RUNNING, worker=worker)
        make_ready(limited, 3)
        make_run(free)
        done = dispatch(session, pool)
        assert (done.queued, done.blocked) == (2, 2)
        assert sorted(states(limited)) == ["blocked", "blocked", "queued", "running"]
        blocked = LiveRun.objects.filter(state=LiveState.BLOCKED)
        assert {run.reason for run in blocked} == {"concurrency"}

    def test_what_may_not_go_never_hides_what_may(self, session: Session, pool: Pool) -> None:
        """However long the backlog of a job with a limit, and however few the slots."""
        worker = make_worker(pool, slots=2)
        tenant = make_tenant()
        limited, free = make_job(tenant, pool, max_concurrency=1), make_job(tenant, pool)
        make_run(limited, LiveState.RUNNING, worker=worker)
        make_ready(limited, 300)
        make_run(free, rank=2**60)
        memory = PoolMemory()
        for _ in range(5):
            dispatch(session, pool, memory)
        assert states(free) == [LiveState.QUEUED]

    def test_a_gate_in_somebodys_hands_hides_nobody_behind_it(self, session: Session, pool: Pool) -> None:
        """Not blocked, as nobody knows whether there is room; but stepped over."""
        make_worker(pool, slots=2)
        tenant = make_tenant()
        limited, free = make_job(tenant, pool, max_concurrency=1), make_job(tenant, pool)
        make_ready(limited, 9)
        make_run(free, rank=2**60)
        memory = PoolMemory()
        with patch("runs.scheduler.dispatch.dispatch.Gates", BusyGates):
            dispatch(session, pool, memory)
            dispatch(session, pool, memory)
        assert set(states(limited)) == {LiveState.READY}
        assert states(free) == [LiveState.QUEUED]

    def test_a_limit_set_later_holds_runs_that_were_made_before(self, session: Session, pool: Pool) -> None:
        make_worker(pool, slots=8)
        job = make_job(pool=pool)
        make_ready(job, 3)
        JobGate.objects.create(job=job, max_running=1)
        done = dispatch(session, pool)
        assert (done.queued, done.blocked) == (1, 2)

    def test_a_limit_that_is_gone_holds_nobody(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        job = make_job(pool=pool, max_concurrency=1)
        make_ready(job, 2)
        JobGate.objects.all().delete()
        assert dispatch(session, pool).queued == 2

    def test_planned_runs_of_a_paused_job_wait_and_manual_ones_go(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        job = make_job(pool=pool, status=JobStatus.PAUSED)
        planned = make_run(job)
        manual = make_run(job, trigger=Trigger.MANUAL)
        dispatch(session, pool)
        planned.refresh_from_db()
        manual.refresh_from_db()
        assert (planned.state, planned.reason) == (LiveState.BLOCKED, "paused")
        assert manual.state == LiveState.QUEUED

    def test_a_target_no_living_worker_knows_waits_aside(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        Pool.objects.update(exported_tasks=[TASK, "nobody.knows"])
        unknown = make_run(make_job(pool=pool, spec={"target_key": "nobody.knows"}))
        known = make_run(make_job(pool=pool, spec={"target_key": TASK}))
        dispatch(session, pool)
        unknown.refresh_from_db()
        known.refresh_from_db()
        assert (unknown.state, unknown.reason) == (LiveState.BLOCKED, "unknown_target")
        assert known.state == LiveState.QUEUED

    def test_a_worker_that_comes_brings_its_targets(self, session: Session, pool: Pool) -> None:
        make_worker(pool)
        memory = PoolMemory()
        dispatch(session, pool, memory)
        Pool.objects.update(exported_tasks=["somebody.knows"])
        make_worker(pool, known_targets=["somebody.knows"])
        run = make_run(make_job(pool=pool, spec={"target_key": "somebody.knows"}))
        dispatch(session, pool, memory)
        run.refresh_from_db()
        assert run.state == LiveState.QUEUED


def test_another_pools_runs_are_left_alone(session: Session, pool: Pool) -> None:
    make_worker(pool)
    other = make_job()
    make_run(other)
    dispatch(session, pool)
    assert states(other) == [LiveState.READY]


def test_a_pool_that_was_removed_is_no_error(session: Session) -> None:
    assert dispatch_pool(session, 0, now()).queued == 0


@pytest.mark.parametrize(("lease", "queued"), [(10, 0), (60, 1)])
def test_a_worker_lives_by_its_own_lease(session: Session, pool: Pool, lease: float, queued: int) -> None:
    make_worker(pool, last_beat_at=now() - timedelta(seconds=31 if queued else 11), lease_seconds=lease)
    make_run(make_job(pool=pool))
    assert dispatch(session, pool).queued == queued


def test_what_a_pool_no_longer_exports_is_blocked(session: Session, pool: Pool) -> None:
    make_worker(pool)
    run = make_run(make_job(pool=pool))
    Pool.objects.update(exported_tasks=[], exported_kinds=[])
    done = dispatch(session, pool)
    run.refresh_from_db()
    assert (done.queued, run.state, run.reason) == (0, LiveState.BLOCKED, "not_exported")


def test_a_kind_the_pool_exports_goes(session: Session, pool: Pool) -> None:
    make_worker(pool, known_targets=["kind:http"])
    make_run(make_job(pool=pool, spec={"target_key": "kind:http"}))
    assert dispatch(session, pool).queued == 1


def test_runs_of_a_tenant_that_lost_the_pool_are_blocked(session: Session) -> None:
    pool, kept, lost = make_pool(shared=False), make_tenant(), make_tenant()
    pool.tenants.add(kept)
    make_worker(pool)
    goes, stays = make_run(make_job(kept, pool)), make_run(make_job(lost, pool))
    assert dispatch(session, pool).queued == 1
    goes.refresh_from_db()
    stays.refresh_from_db()
    assert (goes.state, stays.state, stays.reason) == ("queued", "blocked", "not_allowed")


def test_places_that_a_queue_further_below_its_share_has_no_runs_for_go_to_the_others(
    session: Session, pool: Pool
) -> None:
    make_worker(pool, slots=1000)
    modest, busy = make_job(pool=pool), make_job(pool=pool)
    for _ in range(10):
        make_run(busy, LiveState.QUEUED)
    make_ready(modest, 1)
    make_ready(busy, 5)
    memory = PoolMemory()
    memory.batch.size = 4
    assert dispatch(session, pool, memory).queued == 4
    assert states(modest) == [LiveState.QUEUED]
    assert states(busy).count(LiveState.READY) == 2
