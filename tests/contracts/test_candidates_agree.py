"""Rules that stand in SQL twice: what dispatch reads of a lane's best runs, and of those behind them, says the same."""

from itertools import product
from uuid import UUID

import pytest
from django.db import connection, transaction

from jobs.models import Job, JobStatus
from runs.dispatch import BEGINNING
from runs.models import Breaker, BreakerState, LiveRun
from runs.queries import rows
from runs.states import LiveState, Trigger
from tests.factories import make_job, make_run, now

pytestmark = pytest.mark.django_db
ANOTHER = UUID(int=7)


def read(statement: str, job: Job, **values: object) -> list[tuple[object, ...]]:
    tenant = {"pool": job.pool_id, "tenants": [job.tenant_id]}
    with transaction.atomic():
        return [tuple(row[:8]) for row in rows(connection.connection, statement, tenant | values)]


@pytest.mark.parametrize("need_tags", [False, True])
@pytest.mark.parametrize("breaker", [None, "closed", "open", "tries this one", "tries another"])
def test_a_run_is_read_alike_whichever_way(breaker: str | None, need_tags: bool) -> None:
    seen = set()
    for limit in (None, 2):
        job = make_job(max_concurrency=limit, tags={"shift": "night"})
        for status, trigger in product(JobStatus, Trigger):
            Job.objects.filter(pk=job.pk).update(status=status)
            LiveRun.objects.all().delete()
            run = make_run(job, LiveState.READY, trigger=trigger, gated=breaker is not None)
            Breaker.objects.all().delete()
            if breaker is not None:
                hold(job, breaker, run)
            best = read("best_ready", job, counts=[10], need_tags=need_tags)
            rank, begin = BEGINNING
            behind = read("next_ready", job, ranks=[rank], ids=[begin], most=10, need_tags=need_tags)
            assert len(best) == 1 and best == behind
            seen.add(best[0][4:])
    assert len(seen) >= 4, "cases that differ"


def hold(job: Job, how: str, run: LiveRun) -> None:
    state = BreakerState(how) if how in BreakerState.values else BreakerState.HALF_OPEN
    probe = {"tries this one": run.pk, "tries another": ANOTHER}.get(how)
    values = {"state": state, "probe": probe, "opened_at": now(), "probe_at": now()}
    Breaker.objects.create(job=job, limit=3, cooldown_ms=60_000, **values)
