"""Attacks the instant before which claims look for nothing: no queued run may ever be before it."""

from datetime import datetime, timedelta

import pytest

from jobs.models import Job, Pool
from runs.models import LiveRun
from runs.scheduler.dispatch.dispatch import QUEUED_SINCE_STEP
from runs.states import LiveState
from tests.runs.scheduler.dispatch.test_dispatch import Session, dispatch, make_ready
from tests.support.factories import make_job, make_pool, make_run, make_worker, now

SECOND = timedelta(seconds=1)


@pytest.fixture
def pool(db: None) -> Pool:
    return make_pool(slug="default")


def queued_since(pool: Pool) -> datetime:
    pool.refresh_from_db()
    assert pool.queued_since is not None
    return pool.queued_since


def queued_at(job: Job) -> list[datetime]:
    found = LiveRun.objects.filter(job=job, state=LiveState.QUEUED).order_by("queued_at")
    return [run.queued_at for run in found if run.queued_at is not None]


def test_it_is_the_oldest_of_what_is_queued(session: Session, pool: Pool) -> None:
    job, old = make_job(pool=pool), now() - 10 * SECOND
    make_run(job, LiveState.QUEUED, queued_at=old)
    make_run(job, LiveState.QUEUED, queued_at=now())
    dispatch(session, pool)
    assert queued_since(pool) == old


def test_it_is_the_pass_itself_if_nothing_is_queued(session: Session, pool: Pool) -> None:
    make_worker(pool)
    job, at = make_job(pool=pool), now()
    make_ready(job, 1)
    dispatch(session, pool, at=at)
    assert queued_since(pool) == at <= queued_at(job)[0]


def test_it_is_written_once_a_second(session: Session, pool: Pool) -> None:
    at = now() - 10 * SECOND
    dispatch(session, pool, at=at)
    dispatch(session, pool, at=at + QUEUED_SINCE_STEP - timedelta(milliseconds=1))
    assert queued_since(pool) == at
    dispatch(session, pool, at=at + QUEUED_SINCE_STEP)
    assert queued_since(pool) == at + QUEUED_SINCE_STEP


def test_nothing_is_queued_before_it_while_the_clock_is_set_back(session: Session, pool: Pool) -> None:
    make_worker(pool, slots=20)
    job, ahead = make_job(pool=pool), now() + timedelta(hours=1)
    Pool.objects.update(queued_since=ahead)
    make_ready(job, 1)
    dispatch(session, pool)
    assert queued_at(job) == [ahead]
    assert queued_since(pool) < ahead, "the next pass may queue by the clock again"
    make_ready(job, 1)
    dispatch(session, pool)
    first, second = queued_at(job)
    assert queued_since(pool) <= first < second == ahead
