"""Who serves a team: its own workers, and those of pools of its own; never what others have."""

from typing import Any

import pytest

from jobs.models import Tenant
from runs.models import NodeState
from tests.support.api_client import Caller
from tests.support.factories import TASK, make_pool, make_tenant, make_worker

pytestmark = pytest.mark.django_db


def workers(tenant: Tenant, address: str = "workers") -> list[dict[str, Any]]:
    answer = Caller(tenant).get(address)
    assert answer.status_code == 200, answer.content
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def test_a_team_sees_how_its_worker_does_and_what_it_knows() -> None:
    tenant, pool = make_tenant(), make_pool()
    node = make_worker(
        pool, tenant=tenant, busy=3, foreign_busy=1, skew_ms=-2.5, known_targets=[TASK, "kind:http"]
    )
    (worker,) = workers(tenant)
    assert worker.pop("started_at") and worker.pop("last_heartbeat_at")
    assert worker == {
        "id": str(node.pk),
        "name": node.name,
        "pool": pool.slug,
        "state": "active",
        "slots": 4,
        "busy": 3,
        "foreign_busy": 1,
        "known_targets": [TASK, "kind:http"],
        "host": "host",
        "region": "",
        "version": "",
        "lease_seconds": 30.0,
        "clock_ahead_ms": -2.5,
    }


def test_of_its_own_pool_a_team_sees_the_platforms_workers_and_what_is_exported() -> None:
    tenant, other = make_tenant(), make_tenant()
    pool = make_pool(shared=False, exported_tasks=[TASK])
    pool.tenants.add(tenant)
    node = make_worker(pool, known_targets=[TASK, "theirs.alone"])
    (worker,) = workers(tenant)
    assert (worker["id"], worker["known_targets"]) == (str(node.pk), [TASK])
    assert workers(other) == []


def test_what_others_have_is_not_there() -> None:
    tenant, other = make_tenant(), make_tenant()
    make_worker(make_pool())
    make_worker(make_pool(), tenant=other)
    assert workers(tenant) == []


def test_they_are_found_by_state_and_pool_and_come_in_pages() -> None:
    tenant, pool = make_tenant(), make_pool()
    nodes = [make_worker(pool, tenant=tenant, state=state) for state in NodeState.values]
    assert {worker["state"] for worker in workers(tenant, "workers?state=lost&state=left")} == {
        "lost",
        "left",
    }
    assert len(workers(tenant, f"workers?pool={pool.slug}")) == len(nodes)
    assert workers(tenant, "workers?pool=nowhere") == []
    first = Caller(tenant).get("workers?limit=3").json()
    assert len(first["results"]) == 3 and first["next"] is not None
    refused = Caller(tenant).get("workers?state=asleep")
    assert refused.status_code == 400 and "one of active" in refused.json()["hint"]
