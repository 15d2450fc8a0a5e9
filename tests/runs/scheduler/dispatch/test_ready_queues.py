"""Attacks passes that do not read from the beginning: nothing stays unseen, and nothing is taken out of order."""

from uuid import UUID

import pytest
from psycopg.errors import QueryCanceled

from jobs.models import Job, Pool
from runs.models import LiveRun
from runs.scheduler.dispatch.load import PoolMemory
from runs.scheduler.dispatch.ready_queues import BEGINNING, ReadyQueues
from runs.scheduler.scan_pace import RECENT_SCANS
from runs.states import LiveState
from tests.runs.scheduler.dispatch.test_dispatch import Session, dispatch, make_ready, states
from tests.support.factories import make_job, make_pool, make_run, make_worker


@pytest.fixture
def job(db: None) -> Job:
    return make_job(pool=make_pool())


def slow(ready: ReadyQueues) -> ReadyQueues:
    """Let full looks have taken so long that none is due for a while."""
    ready.pace.recent.extend([60.0] * RECENT_SCANS)
    return ready


def look_fully(ready: ReadyQueues, session: Session, pool: int) -> set[int]:
    ready.pace.scanned_at -= 60.0
    return ready.look(session, pool)


def place(run: LiveRun) -> tuple[int, str]:
    return run.rank, str(run.pk)


def test_a_look_finds_the_first_of_each_queue(session: Session, job: Job) -> None:
    first, _ = make_ready(job, 2)
    other = make_run(make_job(pool=job.pool))
    make_run(make_job(pool=job.pool), LiveState.QUEUED)
    make_run(make_job())
    ready = ReadyQueues()
    assert ready.look(session, job.pool_id) == {job.tenant_id, other.tenant_id}
    assert ready.first == {job.tenant_id: place(first), other.tenant_id: place(other)}


def test_between_full_pace_a_queue_is_read_from_its_first_run_on(session: Session, job: Job) -> None:
    ready = ReadyQueues()
    first = make_run(job, rank=100)
    ready.look(session, job.pool_id)
    slow(ready)
    LiveRun.objects.filter(pk=first.pk).update(state=LiveState.QUEUED)
    assert ready.look(session, job.pool_id) == set()
    later, before = make_run(job, rank=101), make_run(make_job(job.tenant, job.pool), rank=99)
    assert ready.look(session, job.pool_id) == {job.tenant_id}
    assert ready.first[job.tenant_id] == place(later)
    assert look_fully(ready, session, job.pool_id) == {job.tenant_id}
    assert ready.first[job.tenant_id] == place(before)


def test_a_queue_that_is_new_is_found_by_the_next_full_look(session: Session, job: Job) -> None:
    ready = ReadyQueues()
    ready.look(session, job.pool_id)
    slow(ready)
    make_run(job)
    assert ready.look(session, job.pool_id) == set()
    assert look_fully(ready, session, job.pool_id) == {job.tenant_id}


def test_of_very_many_queues_those_with_ready_runs_are_remembered(
    session: Session, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.scheduler.dispatch.ready_queues.MAX_QUEUES", 0)
    ready, run = ReadyQueues(), make_run(job)
    ready.look(session, job.pool_id)
    LiveRun.objects.filter(pk=run.pk).delete()
    look_fully(ready, session, job.pool_id)
    assert not ready.first


def test_the_place_before_the_first_run_leaves_out_nothing_from_it_on() -> None:
    ready, run = ReadyQueues(), "ffffffff-0000-8000-8000-000000000000"
    assert ready.before_first(1) == BEGINNING
    ready.first[1] = (7, run)
    assert ready.before_first(1) == (7, str(UUID(int=UUID(run).int - 1)))
    assert (7, BEGINNING[1]) < ready.before_first(1) < (7, run)


def test_known_queues_are_not_looked_at_alone_where_that_takes_longer(session: Session, job: Job) -> None:
    ready = ReadyQueues()
    ready.look(session, job.pool_id)
    slow(ready).known_seconds = 61.0
    make_run(job)
    assert ready.look(session, job.pool_id) == {job.tenant_id}


def test_a_scan_that_is_cut_off_is_noted(session: Session, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each pass would be cut off, and none would begin elsewhere."""
    ready = ReadyQueues()

    def cut_off(*_: object) -> None:
        raise QueryCanceled

    monkeypatch.setattr("runs.scheduler.dispatch.ready_queues.rows", cut_off)
    for _ in range(RECENT_SCANS):
        with pytest.raises(QueryCanceled):
            ready.look(session, job.pool_id)
    assert len(ready.pace.recent) == RECENT_SCANS


def test_what_is_recalled_is_handed_over_again_in_its_order(session: Session, job: Job) -> None:
    """Four of the long queue run; what it has queued goes back when another has runs, and its best goes first."""
    worker, memory = make_worker(job.pool, slots=4), PoolMemory()
    for _ in range(4):
        make_run(job, LiveState.RUNNING, worker=worker)
    queued = [make_run(job, LiveState.QUEUED, rank=rank) for rank in range(6)]
    make_run(job, rank=100)
    dispatch(session, job.pool, memory)
    slow(memory.ready)
    other = make_job(pool=job.pool)
    memory.ready.first[other.tenant_id] = BEGINNING
    make_ready(other, 3)
    dispatch(session, job.pool, memory)
    assert states(job).count("ready") > 1
    LiveRun.objects.filter(state=LiveState.RUNNING).delete()
    LiveRun.objects.filter(job=other).delete()
    dispatch(session, job.pool, memory)
    queued[0].refresh_from_db()
    assert queued[0].state == LiveState.QUEUED


def test_a_pool_whose_pace_take_long_is_served_all_the_same(session: Session, job: Job) -> None:
    make_worker(job.pool, slots=50)
    memory, pool = PoolMemory(), Pool.objects.get(pk=job.pool_id)
    make_ready(job, 3)
    dispatch(session, pool, memory)
    for _ in range(3):
        slow(memory.ready)
        make_ready(job, 3)
        dispatch(session, pool, memory)
    assert states(job) == ["queued"] * 12
