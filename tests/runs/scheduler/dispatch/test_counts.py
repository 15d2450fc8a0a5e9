"""Attacks the counts that dispatch remembers: nothing may be taken for less than it is."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobs.models import Pool
from runs.models import LiveRun, Queue, WorkerNode
from runs.scheduler.dispatch import counts as counts_module
from runs.scheduler.dispatch import load
from runs.scheduler.dispatch.counts import COUNTED_EACH_PASS, CountedRow, PoolCounts
from runs.scheduler.dispatch.fair_share import QueueLoad, reserve, share_out, split
from runs.scheduler.dispatch.load import PoolMemory
from runs.scheduler.dispatch.queue_memory import QueueMemories
from runs.scheduler.scan_pace import PAUSE_PER_SCAN, QUICK_SECONDS, RECENT_SCANS
from runs.sql import rows
from runs.states import LiveState
from tests.runs.scheduler.dispatch.test_dispatch import Session, claim, dispatch, make_ready, reason, states
from tests.support.factories import make_job, make_pool, make_run, make_tenant, make_worker, now

AT = 1000.0
MANY = 20_000


def tenant_row(tenant: int, runs: int, slots: float | None = None, weight: int = 1) -> CountedRow:
    return CountedRow(tenant, runs, runs if slots is None else slots, 0, None, weight, None)


def counted(
    *rows: CountedRow, seconds: float = 0.02, queued: dict[int, tuple[int, int]] | None = None
) -> PoolCounts:
    """Of a pool that is too large to be counted in each pass."""
    counts = PoolCounts()
    counts.count([*rows, tenant_row(99, MANY)])
    counts.queued = queued or {}
    take(counts, seconds)
    return counts


def take(counts: PoolCounts, seconds: float, at: float | None = None) -> None:
    """Let each of the last counts have taken so long."""
    for _ in range(RECENT_SCANS):
        counts.pace.note(AT if at is None else at, seconds)


class TestWhenItIsCounted:
    def test_a_new_memory_counts_first(self) -> None:
        assert PoolCounts().are_due(AT)

    def test_a_small_pool_is_counted_in_each_pass_while_that_is_quick(self) -> None:
        counts = PoolCounts()
        counts.count([tenant_row(1, COUNTED_EACH_PASS)])
        take(counts, QUICK_SECONDS / 2)
        assert counts.are_due(AT) and counts.are_due(AT + 0.001)

    def test_a_small_pool_is_counted_now_and_then_while_that_takes_long(self) -> None:
        counts = PoolCounts()
        counts.count([tenant_row(1, 1)])
        take(counts, 0.02)
        assert not counts.are_due(AT + PAUSE_PER_SCAN * 0.02 - 0.01)
        assert counts.are_due(AT + PAUSE_PER_SCAN * 0.02 + 0.01)

    def test_a_large_pool_is_counted_a_twentieth_of_the_time(self) -> None:
        counts = counted(seconds=0.02)
        assert not counts.are_due(AT) and not counts.are_due(AT + PAUSE_PER_SCAN * 0.02 - 0.01)
        assert counts.are_due(AT + PAUSE_PER_SCAN * 0.02 + 0.01)


class TestWhatBegan:
    def test_what_left_its_queue_runs(self) -> None:
        counts = counted(tenant_row(1, 3, slots=1.5), queued={1: (5, 2), 2: (1, 3)})
        counts.note_begun({1: 1})
        assert (counts.load(1).runs, counts.load(1).running, counts.load(1).begun) == (7, 5.5, 4)
        assert (counts.load(2).runs, counts.load(2).weight) == (1, 3)
        assert counts.load(3).runs == 0

    def test_what_was_added_to_a_queue_hides_nothing_that_left_another(self) -> None:
        counts = counted(queued={1: (5, 1), 2: (5, 1)})
        counts.note_begun({1: 50, 2: 2})
        assert (counts.load(1).runs, counts.load(2).runs) == (0, 3)

    def test_a_count_corrects_it(self) -> None:
        counts = counted(tenant_row(1, 3), queued={1: (5, 1)})
        counts.note_begun({})
        counts.count([tenant_row(1, 2), tenant_row(99, MANY)])
        assert (counts.load(1).runs, counts.load(1).begun) == (2, 0)

    def test_it_may_be_on_workers_of_its_own_or_on_any(self) -> None:
        own, shared = split(QueueLoad(1, running=5, begun=2, own_running=1, own_slots=4, queued=3))
        assert (own.running, shared.running, own.queued) == (3, 4, 1)

    @pytest.mark.parametrize("seed", range(20))
    def test_nothing_is_ever_taken_for_less_than_it_is(self, seed: int) -> None:
        """Runs are queued, recalled, claimed, cancelled, given back and end between passes; some passes count."""
        chance, tenants = Random(seed), range(4)
        running, queued, counts = Counter[int](), Counter[int](), counted()
        for _ in range(200):
            if chance.random() < 0.1:
                counts.count([tenant_row(tenant, running[tenant]) for tenant in tenants if running[tenant]])
            else:
                counts.note_begun(queued)
            for tenant in tenants:
                assert counts.load(tenant).runs >= running[tenant]
                queued[tenant] += chance.randrange(6) - chance.randrange(1 + queued[tenant])
            counts.queued = {tenant: (queued[tenant], 1) for tenant in tenants if queued[tenant]}
            for tenant in tenants:
                claimed = chance.randrange(1 + queued[tenant])
                cancelled = chance.randrange(1 + queued[tenant] - claimed)
                queued[tenant] -= claimed + cancelled
                running[tenant] += claimed
                running[tenant] -= chance.randrange(1 + running[tenant])


class TestWorkers:
    def test_slots_of_workers_that_came_and_went_are_told_apart_without_a_count(self) -> None:
        ours, theirs, other = uuid4(), uuid4(), uuid4()
        counts = counted(
            *(CountedRow(None, 9, slots, 0, node, None, None) for node, slots in ((ours, 2), (theirs, 3.5)))
        )
        assert counts.own_running({ours: 1, other: 2}) == {1: 2}
        assert counts.slots_elsewhere({ours, theirs, other}) == 0
        assert counts.slots_elsewhere({ours}) == 3.5


class TestRest:
    """Queues that only run something are shared out as one."""

    def test_it_is_the_sum_of_all_but_these(self) -> None:
        counts = counted(
            tenant_row(1, 4, weight=3), tenant_row(2, 6, slots=2.5, weight=2), queued={1: (1, 3)}
        )
        counts.note_begun({})
        rest = counts.rest([1, 7])
        assert (rest.queues, rest.weight, rest.running, rest.ready) == (2, 3, MANY + 2.5, False)
        assert counts.rest([]).running == MANY + 2.5 + 5

    def test_without_others_it_is_nothing(self) -> None:
        counts = PoolCounts()
        counts.count([tenant_row(1, 3, slots=1 / 3)])
        assert replace(counts.rest([1])) == QueueLoad(0, weight=0, ready=False, queues=0)

    @pytest.mark.parametrize("seed", range(20))
    def test_runs_are_shared_out_as_among_single_queues(self, seed: int) -> None:
        chance = Random(seed)
        busy = [QueueLoad(tenant, 1 + tenant % 3, running=chance.randrange(4)) for tenant in range(1, 4)]
        others = [QueueLoad(tenant, 1 + tenant % 5, running=1, ready=False) for tenant in range(10, 60)]
        loads = {load.tenant_id: replace(load, turnover=chance.random()) for load in busy + others}
        counts = PoolCounts()
        single = [
            tenant_row(load.tenant_id, int(load.running), weight=load.weight) for load in loads.values()
        ]
        counts.count(single)
        counts.note_freed(loads)
        active = [loads[load.tenant_id] for load in busy]
        summed = [*active, counts.rest([load.tenant_id for load in busy])]
        # With a reserve, while other queues are idle, and without.
        for capacity, queues in ((40, 70), (60, 70), (60, len(loads)), (80, len(loads))):
            kept = reserve(capacity, queues)
            assert share_out(capacity, summed, queues, kept, 2000) == share_out(
                capacity, list(loads.values()), queues, kept, 2000
            )


def test_what_is_remembered_of_queues_is_reckoned_from_count_to_count() -> None:
    """Fifty runs a second end, which passes between two counts do not see."""
    each, tenth = QueueMemories(), QueueMemories()
    for step in range(30):
        at = AT + 0.05 * step
        one, other = ({1: QueueLoad(1, running=10, ready=False)} for _ in range(2))
        each.look(one, at)
        if step % 10:
            tenth.recollect(other, at)
        else:
            tenth.look(other, at)
        for queues in (each, tenth):
            queues[1].occupied += 2 + step % 2
    assert one[1].served == pytest.approx(10 * 29 * 0.05) and other[1].served == pytest.approx(10 * 20 * 0.05)
    assert one[1].turnover == pytest.approx(50 * 2 * 0.05, rel=0.2)
    assert other[1].turnover == pytest.approx(50 * 2 * 0.5, rel=0.2)


@pytest.fixture
def pool(db: None) -> Pool:
    return make_pool()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any pool is too large to be counted in each pass, and the last count took long."""
    monkeypatch.setattr(counts_module, "COUNTED_EACH_PASS", 0)


def claim_all(job_id: UUID, worker: WorkerNode) -> None:
    for run in LiveRun.objects.filter(job_id=job_id, state=LiveState.QUEUED):
        claim(run, worker)


class TestPasses:
    def started(self, session: Session, pool: Pool, slots: int = 10) -> tuple[Any, WorkerNode, PoolMemory]:
        """One run at work, and the pool is counted."""
        worker, job, memory = make_worker(pool, slots=slots), make_job(pool=pool), PoolMemory()
        make_run(job, LiveState.RUNNING, worker=worker)
        make_ready(job, 20)
        dispatch(session, pool, memory)
        take(memory.counts, 60.0, now().timestamp())
        return job, worker, memory

    def test_slots_that_were_taken_since_the_count_are_taken(
        self, session: Session, pool: Pool, large: None
    ) -> None:
        job, worker, memory = self.started(session, pool)
        claim_all(job.pk, worker)
        dispatch(session, pool, memory)
        assert states(job).count("running") == 10 and states(job).count("queued") == 0

    def test_slots_that_were_freed_are_seen_by_the_next_count(
        self, session: Session, pool: Pool, large: None
    ) -> None:
        job, worker, memory = self.started(session, pool)
        claim_all(job.pk, worker)
        LiveRun.objects.filter(state=LiveState.RUNNING).delete()
        assert dispatch(session, pool, memory).queued == 0
        take(memory.counts, 0.0, now().timestamp())
        assert dispatch(session, pool, memory).queued >= 10

    def test_a_takeover_counts_first(self, session: Session, pool: Pool, large: None) -> None:
        job, worker, _ = self.started(session, pool)
        claim_all(job.pk, worker)
        LiveRun.objects.filter(state=LiveState.RUNNING).delete()
        assert dispatch(session, pool, PoolMemory()).queued == 10

    def test_a_pass_that_is_rolled_back_is_followed_by_a_count(
        self, session: Session, pool: Pool, large: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, _, memory = self.started(session, pool)

        def fails(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr("runs.scheduler.dispatch.dispatch.DispatchPass._write_queues", fails)
            with pytest.raises(ZeroDivisionError):
                dispatch(session, pool, memory)
        assert memory.counts.are_due(now().timestamp())

    def test_what_is_recalled_has_not_begun(self, session: Session, pool: Pool, large: None) -> None:
        """Four of the long queue run, and what it has queued goes back when another has runs."""
        worker, long, other = make_worker(pool, slots=4), make_job(pool=pool), make_job(pool=pool)
        memory = PoolMemory()
        for _ in range(4):
            make_run(long, LiveState.RUNNING, worker=worker)
        for _ in range(6):
            make_run(long, LiveState.QUEUED)
        dispatch(session, pool, memory)
        take(memory.counts, 60.0, now().timestamp())
        make_ready(other, 3)
        dispatch(session, pool, memory)
        assert states(long).count("ready") == 6
        dispatch(session, pool, memory)
        assert memory.counts.load(long.tenant_id).runs == 4

    def test_a_limit_is_counted_in_the_table_while_the_count_is_old(
        self, session: Session, pool: Pool, large: None
    ) -> None:
        worker, memory = make_worker(pool, slots=20), PoolMemory()
        job = make_job(make_tenant(max_running=3), pool)
        make_ready(job, 9)
        assert dispatch(session, pool, memory).queued == 3
        take(memory.counts, 60.0, now().timestamp())
        claim_all(job.pk, worker)
        assert dispatch(session, pool, memory).queued == 0
        assert reason(pool, job.tenant) == "max_running"
        LiveRun.objects.filter(pk=LiveRun.objects.filter(state=LiveState.RUNNING)[0].pk).delete()
        assert not memory.counts.are_due(now().timestamp())
        assert dispatch(session, pool, memory).queued == 1
        assert LiveRun.objects.filter(state__in=["queued", "running"]).count() == 3

    def test_a_cancelled_run_keeps_its_slot_until_the_next_count(
        self, session: Session, pool: Pool, large: None
    ) -> None:
        job, _, memory = self.started(session, pool)
        LiveRun.objects.filter(state=LiveState.QUEUED).delete()
        assert dispatch(session, pool, memory).queued == 0
        take(memory.counts, 0.0, now().timestamp())
        assert dispatch(session, pool, memory).queued >= 9
        assert states(job).count("running") == 1

    def test_queues_that_only_run_something_are_read_at_no_pass(
        self, session: Session, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker, job, memory = make_worker(pool, slots=40), make_job(pool=pool), PoolMemory()
        for _ in range(5):
            make_run(make_job(pool=pool), LiveState.RUNNING, worker=worker)
        make_ready(job, 3)
        asked: list[Any] = []

        def noted(session: Session, name: str, values: Any = None) -> Any:
            asked.append(values.get("tenants") if name == "queues" else None)
            return rows(session, name, values)

        monkeypatch.setattr(load, "rows", noted)
        assert dispatch(session, pool, memory).queued == 3
        assert [tenants for tenants in asked if tenants] == [[job.tenant_id]] * 2, (
            "before and after it is made"
        )

    def test_a_queue_with_nothing_left_to_do_shows_no_reason(self, session: Session, pool: Pool) -> None:
        worker, memory = make_worker(pool), PoolMemory()
        job = make_job(make_tenant(max_running=1), pool)
        make_ready(job, 2)
        dispatch(session, pool, memory)
        claim_all(job.pk, worker)
        dispatch(session, pool, memory)
        assert reason(pool, job.tenant) == "max_running"
        LiveRun.objects.filter(state=LiveState.READY).delete()
        dispatch(session, pool, memory)
        assert Queue.objects.get(tenant=job.tenant).reason == ""

    def test_the_clock_set_back_leads_to_a_count(self, session: Session, pool: Pool, large: None) -> None:
        job, worker, memory = self.started(session, pool)
        claim_all(job.pk, worker)
        LiveRun.objects.filter(state=LiveState.RUNNING).delete()
        assert dispatch(session, pool, memory, at=now() - timedelta(hours=1)).queued >= 9
