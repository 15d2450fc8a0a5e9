"""Test GET /api/v1/me."""

import pytest

from jobs.models import Pool, Role, Tenant
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_pool


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN])
def test_a_key_learns_its_tenant_its_role_and_its_pools(tenant: Tenant, own_pool: Pool, role: Role) -> None:
    make_pool(slug="default")
    make_pool(slug="of-others", shared=False)
    caller = Caller(tenant, role)
    assert caller.get("me").json() == {
        "name": str(caller.key),
        "tenant": "acme",
        "role": role,
        "pools": ["default", "payments"],
        "requests_per_minute": {"key": 15_000, "tenant": 30_000},
    }


def test_a_workers_key_has_one_pool(tenant: Tenant, own_pool: Pool) -> None:
    make_pool(slug="default")
    found = Caller(tenant, Role.WORKER, own_pool).get("me").json()
    assert (found["role"], found["pools"]) == ("worker", ["payments"])


def test_it_takes_no_parameters(caller: Caller) -> None:
    refusal(caller.get("me", tenant="rival"), 400, "tenant")
