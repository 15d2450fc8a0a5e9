"""Attacks the instant before which claims look for nothing: no queued run may ever be before it."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from jobs.models import Job, Pool
from runs.models import LiveRun
from runs.scheduler.dispatch.dispatch import QUEUED_SINCE_STEP, keep_queued_since
from runs.scheduler.dispatch.load import ALL_QUEUED_SECONDS, PoolMemory
from runs.states import LiveState
from tests.runs.scheduler.dispatch.test_dispatch import Session, dispatch, make_ready
from tests.support.factories import make_job, make_pool, make_run, make_worker, now

SECOND = timedelta(seconds=1)


@pytest.fixture
def pool(db: None) -> Pool:
    return make_pool(slug="default")


def one_pass(session: Session, pool: Pool, memory: PoolMemory | None = None, **options: Any) -> None:
    memory = memory or PoolMemory()
    dispatch(session, pool, memory, **options)
    keep_queued_since(session, pool.pk, memory)


def queued_since(pool: Pool) -> datetime:
    pool.refresh_from_db()
    return pool.queued_since


def queued_at(job: Job) -> list[datetime]:
    found = LiveRun.objects.filter(job=job, state=LiveState.QUEUED).order_by("queued_at")
    return [run.queued_at for run in found if run.queued_at is not None]


def test_the_instant_is_that_of_the_oldest_queued_run(session: Session, pool: Pool) -> None:
    job, old = make_job(pool=pool), now() - 10 * SECOND
    make_run(job, LiveState.QUEUED, queued_at=old)
    make_run(job, LiveState.QUEUED, queued_at=now())
    one_pass(session, pool)
    assert queued_since(pool) == old


def test_the_instant_is_that_of_the_pass_if_nothing_is_queued(session: Session, pool: Pool) -> None:
    make_worker(pool)
    job, at = make_job(pool=pool), now()
    make_ready(job, 1)
    one_pass(session, pool, at=at)
    assert queued_since(pool) == at <= queued_at(job)[0]


def test_the_instant_is_written_once_a_second(session: Session, pool: Pool) -> None:
    at = now() - 10 * SECOND
    one_pass(session, pool, at=at)
    one_pass(session, pool, at=at + QUEUED_SINCE_STEP - timedelta(milliseconds=1))
    assert queued_since(pool) == at
    one_pass(session, pool, at=at + QUEUED_SINCE_STEP)
    assert queued_since(pool) == at + QUEUED_SINCE_STEP


def test_nothing_is_queued_before_the_instant_while_the_clock_is_set_back(
    session: Session, pool: Pool
) -> None:
    make_worker(pool, slots=20)
    job, ahead = make_job(pool=pool), now() + timedelta(hours=1)
    Pool.objects.update(queued_since=ahead)
    make_ready(job, 1)
    one_pass(session, pool)
    assert queued_at(job) == [ahead]
    assert queued_since(pool) < ahead, "the next pass may queue by the clock again"
    make_ready(job, 1)
    one_pass(session, pool)
    first, second = queued_at(job)
    assert queued_since(pool) <= first < second == ahead


def test_a_run_that_was_queued_before_the_instant_is_found_by_a_new_scheduler(
    session: Session, pool: Pool
) -> None:
    lost = make_run(make_job(pool=pool), LiveState.QUEUED, queued_at=now() - 10 * SECOND)
    Pool.objects.update(queued_since=now())
    one_pass(session, pool)
    assert queued_since(pool) == lost.queued_at


def test_a_run_that_was_queued_before_the_instant_is_found_within_a_minute(
    session: Session, pool: Pool
) -> None:
    """A scheduler of an earlier version may have dispatched it, after a clock that was set back."""
    memory = PoolMemory()
    one_pass(session, pool, memory)
    Pool.objects.update(queued_since=now())
    lost = make_run(make_job(pool=pool), LiveState.QUEUED, queued_at=now() - 10 * SECOND)
    one_pass(session, pool, memory)
    assert queued_since(pool) > now() - 5 * SECOND
    memory.all_queued_at -= ALL_QUEUED_SECONDS
    one_pass(session, pool, memory)
    assert queued_since(pool) == lost.queued_at
