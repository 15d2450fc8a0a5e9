"""One claim takes runs of several queues: whose turn it is, how many, with which secrets, and who counts the slot."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from jobs.models import Job, JobStatus, Pool, Tenant
from jobs.secrets import service as tenant_secrets
from runs.models import LiveRun, WorkerNode
from runs.scheduler.dispatch.counts import CountedRow
from runs.scheduler.dispatch.dispatch import dispatch_pool
from runs.sql import rows
from runs.states import LiveState
from scheduler_project.sdk.ids import EPOCH
from scheduler_project.sdk.ledger.interface import (
    ALL_TENANTS,
    Claim,
    ClaimRequest,
    CompletedClaim,
    WorkQueue,
    given_back,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from tests.runs.ledger.claims import SUCCESS, claim_request, ledger, succeeded
from tests.support.factories import TASK, make_job, make_pool, make_run, make_tenant, make_worker, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pool() -> Pool:
    return make_pool()


def over_all(
    job: Job, most: int, worker: WorkerNode, expected_ms: dict[str, int] | None = None
) -> ClaimRequest:
    request = claim_request(job, most, worker)
    everything = WorkQueue(0, job.pool_id, ALL_TENANTS, "")
    return replace(request, queue=everything, expected_ms=expected_ms)


def queued(job: Job, turns: list[int], **live: Any) -> list[UUID]:
    """Queue runs of a job, so many seconds after the first of all."""
    begin = now() - timedelta(minutes=1)
    runs = [make_run(job, LiveState.QUEUED, **live).run_id for _ in turns]
    for run, turn in zip(runs, turns, strict=True):
        LiveRun.objects.filter(pk=run).update(queued_at=begin + timedelta(seconds=turn))
    return runs


def claimed(
    ledger: PostgresLedger, job: Job, most: int, worker: WorkerNode, expected_ms: dict[str, int] | None = None
) -> list[UUID]:
    return [claim.run_id for claim in ledger.claim(over_all(job, most, worker, expected_ms))]


def test_who_was_queued_first_is_first_whatever_the_ranks_of_other_queues(
    ledger: PostgresLedger, pool: Pool
) -> None:
    old, new = make_job(pool=pool), make_job(pool=pool)
    urgent = queued(old, [2, 3, 4], rank=-1000)
    first = queued(new, [0, 1], rank=1000)
    worker = make_worker(pool, slots=1)
    assert set(claimed(ledger, old, 3, worker)) == {*first, urgent[0]}
    assert claimed(ledger, old, 3, worker) == urgent[1:]


def test_within_a_queue_the_most_urgent_goes_first_whenever_it_was_queued(
    ledger: PostgresLedger, pool: Pool
) -> None:
    job = make_job(pool=pool)
    [first] = queued(job, [0], rank=5)
    [urgent] = queued(job, [1], rank=1)
    worker = make_worker(pool, slots=1)
    assert claimed(ledger, job, 1, worker) == [urgent]
    assert claimed(ledger, job, 1, worker) == [first]


def test_a_claim_takes_what_a_slot_does_in_100_ms(ledger: PostgresLedger, pool: Pool) -> None:
    jobs = [make_job(pool=pool) for _ in range(4)]
    runs = [queued(job, [turn])[0] for turn, job in enumerate(jobs)]
    worker, expected = make_worker(pool, slots=1), {str(job.tenant_id): 40 for job in jobs}
    assert set(claimed(ledger, jobs[0], 32, worker, expected)) == set(runs[:2])
    assert set(claimed(ledger, jobs[0], 32, worker, expected)) == set(runs[2:])


def test_a_slot_takes_what_it_does_in_100_ms_however_many_slots_are_free(
    ledger: PostgresLedger, pool: Pool
) -> None:
    jobs = [make_job(pool=pool) for _ in range(6)]
    for turn, job in enumerate(jobs):
        queued(job, [turn])
    worker = make_worker(pool, slots=8)
    for each, taken in ((60, 1), (40, 2), (10, 3)):
        expected = {str(job.tenant_id): each for job in jobs}
        assert len(claimed(ledger, jobs[0], 32, worker, expected)) == taken


def test_a_run_of_unknown_length_goes_alone(ledger: PostgresLedger, pool: Pool) -> None:
    known, unknown = make_job(pool=pool), make_job(pool=pool)
    short, [alone] = queued(known, [0, 2, 3]), queued(unknown, [1])
    worker, expected = make_worker(pool, slots=1), {str(known.tenant_id): 1}
    assert claimed(ledger, known, 32, worker, expected) == short[:1]
    assert claimed(ledger, known, 32, worker, expected) == [alone]
    assert claimed(ledger, known, 32, worker, expected) == short[1:]


def test_a_claim_says_when_nothing_else_is_queued(ledger: PostgresLedger, pool: Pool) -> None:
    jobs = [make_job(pool=pool) for _ in range(3)]
    for turn, job in enumerate(jobs):
        queued(job, [turn])
    worker = make_worker(pool, slots=1)
    assert [claim.none_left for claim in ledger.claim(over_all(jobs[0], 2, worker))] == [False, False]
    assert [claim.none_left for claim in ledger.claim(over_all(jobs[0], 2, worker))] == [True]


def test_the_worker_of_a_tenant_gets_nothing_of_all_queues(ledger: PostgresLedger, pool: Pool) -> None:
    job = make_job(pool=pool)
    queued(job, [0])
    worker = make_worker(pool, slots=1, tenant=job.tenant)
    assert claimed(ledger, job, 1, worker) == []


def test_each_gets_the_secrets_of_its_own_tenant(ledger: PostgresLedger, pool: Pool) -> None:
    target = {"kind": "celery", "task": TASK, "args": ["${secret:KEY}"], "kwargs": {}}
    jobs = [make_job(pool=pool, spec={"target": target, "secret_names": ["KEY"]}) for _ in range(2)]
    for job in jobs:
        tenant_secrets.create_secret(job.tenant, {"name": "KEY", "value": f"of {job.tenant.slug}"})
        queued(job, [0])
    request = over_all(jobs[0], 2, make_worker(pool, slots=1))
    expected = {job.tenant_id: {"KEY": f"of {job.tenant.slug}"} for job in jobs}
    for again in (False, True):
        claims = ledger.claim(request, again=again)
        assert {claim.tenant_id: claim.secrets for claim in claims} == expected


def test_an_answer_that_was_lost_is_given_again_for_what_has_not_ended(
    ledger: PostgresLedger, pool: Pool
) -> None:
    jobs = [make_job(pool=pool) for _ in range(4)]
    for turn, job in enumerate(jobs):
        queued(job, [turn])
    request = over_all(jobs[0], 4, make_worker(pool, slots=1))
    claims = ledger.claim(request)
    ledger.report([CompletedClaim(claim, succeeded(), SUCCESS) for claim in claims[:2]])
    assert ledger.claim(request, again=True) == claims[2:]


def test_what_is_held_goes_back_and_others_come_in_its_place(ledger: PostgresLedger, pool: Pool) -> None:
    paused, job = make_job(pool=pool), make_job(pool=pool)
    held = queued(paused, [0, 1, 2, 3])
    runs = queued(job, [4, 5])
    Job.objects.filter(pk=paused.pk).update(status=JobStatus.PAUSED)
    assert claimed(ledger, job, 2, make_worker(pool, slots=1)) == runs
    assert set(LiveRun.objects.filter(pk__in=held).values_list("state", flat=True)) == {LiveState.READY}


class TestSlots:
    """A claim of many tenants takes one slot, or dispatch would believe that all slots are taken."""

    TENANTS = 32

    @pytest.fixture
    def jobs(self, pool: Pool) -> list[Job]:
        return [make_job(make_tenant(), pool) for _ in range(self.TENANTS)]

    def claim_of_all(self, ledger: PostgresLedger, jobs: list[Job]) -> list[Claim]:
        for turn, job in enumerate(jobs):
            queued(job, [turn])
        worker = make_worker(jobs[0].pool, slots=1)
        claims = ledger.claim(over_all(jobs[0], 32, worker))
        assert len(claims) == self.TENANTS
        # A worker of one slot takes all at once; of eight, a slot would take its share.
        WorkerNode.objects.update(slots=8)
        return claims

    def test_the_next_pass_hands_over(
        self, ledger: PostgresLedger, jobs: list[Job], session: psycopg.Connection[Any]
    ) -> None:
        self.claim_of_all(ledger, jobs)
        late = make_job(Tenant.objects.get(pk=jobs[0].tenant_id), jobs[0].pool)
        make_run(late)
        assert dispatch_pool(session, late.pool_id, now()).queued == 1

    def test_what_is_left_of_a_claim_has_the_slot_alone(
        self, ledger: PostgresLedger, jobs: list[Job], session: psycopg.Connection[Any]
    ) -> None:
        first, *others = self.claim_of_all(ledger, jobs)
        assert sum(self.slots(session, jobs[0].pool)) == pytest.approx(1)
        ledger.report([given_back(claim) for claim in others])
        assert self.slots(session, jobs[0].pool) == [1]

    def slots(self, session: psycopg.Connection[Any], pool: Pool) -> list[float]:
        counted = [
            CountedRow(*row)
            for row in rows(session, "occupied", {"pool": pool.pk, "count": True, "since": EPOCH})
        ]
        assert sum(row.slots for row in counted if row.worker) == pytest.approx(1)
        return [row.slots for row in counted if row.tenant]
