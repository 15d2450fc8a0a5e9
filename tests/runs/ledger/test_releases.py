"""Which blocked runs a release lets go, by a model of its own."""

from random import Random
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from jobs.models import Job, Pool
from runs.models import JobGate, LiveRun
from runs.reasons import Reason
from runs.sql import SQL, rows
from runs.states import LiveState
from tests.support.factories import make_job, make_pool, make_run

pytestmark = pytest.mark.django_db

UNDER_WAY = [LiveState.QUEUED, LiveState.RUNNING, LiveState.WAITING_CALLBACK]


def let_go(statement: str, values: dict[str, Any]) -> set[UUID]:
    """Of what is blocked; then it is again as it was."""
    blocked = set(LiveRun.objects.filter(state=LiveState.BLOCKED).values_list("pk", flat=True))
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
        gone = set(LiveRun.objects.exclude(state=LiveState.BLOCKED).values_list("pk", flat=True))
        transaction.set_rollback(True)
    return blocked & gone


def in_pool(job: Job, pool: Pool, state: LiveState, **live: Any) -> LiveRun:
    job.pool = pool
    return make_run(job, state, **live)


@pytest.mark.parametrize("seed", range(12))
def test_the_release_fills_the_room_of_a_limit_in_each_pool_by_rank(seed: int) -> None:
    chance = Random(seed)
    limit = chance.randint(1, 6)
    job, pools = make_job(max_concurrency=limit), [make_pool(), make_pool()]
    for state in UNDER_WAY:
        for _ in range(chance.randint(0, 1)):
            in_pool(job, chance.choice(pools), state)
    taken = LiveRun.objects.count()
    expected = set()
    for pool in pools:
        ready = chance.randint(0, 2)
        for _ in range(ready):
            in_pool(job, pool, LiveState.READY)
        ranks = chance.sample(range(100), chance.randint(0, 5))
        blocked = {
            rank: in_pool(job, pool, LiveState.BLOCKED, reason=Reason.CONCURRENCY, rank=rank).pk
            for rank in ranks
        }
        in_pool(job, pool, LiveState.BLOCKED, reason=Reason.BREAKER, rank=-1)
        expected |= {blocked[rank] for rank in sorted(ranks)[: max(0, limit - taken - ready)]}
    make_run(make_job(max_concurrency=1), LiveState.BLOCKED, reason=Reason.CONCURRENCY)
    assert let_go(SQL["release_gated"], {"jobs": [job.pk]}) == expected


def test_the_release_lets_all_go_when_the_limit_is_gone() -> None:
    job = make_job(max_concurrency=1)
    make_run(job, LiveState.QUEUED)
    waiting = {make_run(job, LiveState.BLOCKED, reason=Reason.CONCURRENCY).pk for _ in range(3)}
    JobGate.objects.filter(job=job).update(max_running=None)
    assert let_go(SQL["release_gated"], {"jobs": [job.pk]}) == waiting


@pytest.mark.parametrize("other", [None, *LiveState])
def test_the_sweep_looks_at_each_job_whose_waiting_run_may_go(other: LiveState | None) -> None:
    """Its first look, which costs no locks, passes over none that the second would let go."""
    job = make_job(spec={"overlap": "buffer_one"})
    waiting = make_run(job, LiveState.BLOCKED, reason=Reason.OVERLAP)
    if other is not None:
        make_run(job, other, reason=Reason.CONCURRENCY if other == LiveState.BLOCKED else "")
    values = {"jobs": [job.pk]}
    found = [found for (found,) in rows(connection.connection, "jobs_without_others", values)]
    assert found == ([job.pk] if other in (None, LiveState.BLOCKED) else [])
    gone = let_go(SQL["release_waiting"], values)
    assert gone == ({waiting.pk} if other is None else set())
