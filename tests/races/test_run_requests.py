"""Requests for runs: who asks twice at once, who takes back what is being carried out, and who must not wait."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from jobs.models import Job, Pool, RunRequest, Tenant
from jobs.services.definition import create_job
from runs.models import LiveRun, Run
from runs.services import requested_runs as run_requests
from runs.services.requested_runs import apply_requests
from scheduler_project.sdk.host.database import DatabaseLink
from scheduler_project.sdk.host.interface import NewRunRequest
from tests.races.staging import dsn, result_after, second_connection, waiting_for
from tests.support.factories import TASK, make_pool, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)
SPEC = {"name": "settle", "input": {}}


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant(slug="acme")


@pytest.fixture
def pool(tenant: Tenant) -> Pool:
    pool = make_pool(slug="payments", shared=False, exported_tasks=[TASK])
    pool.tenants.add(tenant)
    return pool


def job(tenant: Tenant, name: str = "settle") -> Job:
    target = {"kind": "celery", "task": TASK, "args": [], "kwargs": {}}
    return create_job(tenant, {"name": name, "target": target, "pool": "payments", "schedule": None})


def link() -> DatabaseLink:
    return DatabaseLink(dsn(), "acme", "payments", timeout=30)


def insert(session: Any, tenant: Tenant, pool: Pool, key: str) -> UUID:
    identity = uuid4()
    session.execute(
        "INSERT INTO beatkeeper_run_request (id, tenant_id, pool_id, key, spec) VALUES (%s, %s, %s, %s, %s)",
        [identity, tenant.pk, pool.pk, key, Jsonb(SPEC)],
    )
    return identity


def test_of_two_who_ask_at_once_with_one_key_the_second_finds_the_firsts(tenant: Tenant, pool: Pool) -> None:
    job(tenant)
    body = {"key": "k", "spec": SPEC}
    with second_connection() as first:
        identity = insert(first, tenant, pool, "k")
        found, new = result_after(first, lambda: run_requests.request_run(tenant, pool, body))
    assert (found["id"], new) == (identity, False)
    assert not Run.objects.exists(), "the first one's request waits for a scheduler"
    assert apply_requests() == 1 and Run.objects.count() == 1


def test_two_schedulers_make_one_run(tenant: Tenant, pool: Pool) -> None:
    job(tenant)
    first = link().request(NewRunRequest("k", SPEC))
    with second_connection() as other:
        other.execute("SELECT FROM beatkeeper_run_request WHERE id = %s FOR UPDATE", [first.id])
        # Somebody has it: there is nothing to do, and nobody waits.
        assert apply_requests() == 0
        other.rollback()
    assert (apply_requests(), apply_requests(), Run.objects.count()) == (1, 0, 1)


def test_who_takes_back_while_it_is_carried_out_is_heard_afterwards(tenant: Tenant, pool: Pool) -> None:
    job(tenant)
    first = link().request(NewRunRequest("k", SPEC))
    with second_connection() as scheduler:
        scheduler.execute("SELECT FROM beatkeeper_run_request WHERE id = %s FOR UPDATE", [first.id])
        with waiting_for(scheduler, lambda: link().cancel(first.id)) as taken_back:
            scheduler.execute(
                "UPDATE beatkeeper_run_request SET applied_at = now() WHERE id = %s", [first.id]
            )
            scheduler.commit()
    assert taken_back.result().id == first.id
    assert RunRequest.objects.get().applied_at is None, "it is looked at once more"
    apply_requests()
    assert link().requested(first.id).state == "cancelled" and not LiveRun.objects.exists()


def test_a_job_that_somebody_holds_keeps_no_other_request_waiting(tenant: Tenant, pool: Pool) -> None:
    held = job(tenant, "held")
    job(tenant, "free")
    late, other = (
        link().request(NewRunRequest(name, {"name": name, "input": {}})) for name in ("held", "free")
    )
    put_off: set[UUID] = set()
    with second_connection() as holder:
        holder.execute("SET idle_in_transaction_session_timeout = '20s'")
        holder.execute("SELECT FROM beatkeeper_job WHERE id = %s FOR UPDATE", [held.pk])
        assert apply_requests(10, put_off) == 1 and put_off == {late.id}
        assert apply_requests(10, put_off) == 1 and put_off == set()
        assert link().requested(other.id).state == "ready"
        assert link().requested(late.id).state == "requested"
        holder.rollback()
    assert apply_requests(10, put_off) == 1
    assert link().requested(late.id).state == "ready"
