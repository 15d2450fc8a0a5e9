"""Test GET /api/v1/pools."""

from datetime import timedelta

import pytest

from jobs.models import Role
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_pool, make_tenant, make_worker, now

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller() -> Caller:
    return Caller(make_tenant(slug="acme"), Role.VIEWER)


def test_a_pool_shows_what_it_exports_and_who_works_there(caller: Caller) -> None:
    pool = make_pool(slug="default", exported_kinds=["http"], exported_tasks=["shop.settle"])
    make_worker(pool)
    make_worker(pool, tenant=caller.tenant)
    make_worker(pool, tenant=make_tenant())
    make_worker(pool, state="draining")
    make_worker(pool, last_beat_at=now() - timedelta(minutes=5))
    assert caller.get("pools").json()["results"] == [
        {
            "name": "default",
            "description": "",
            "shared": True,
            "exported_kinds": ["http"],
            "exported_tasks": ["shop.settle"],
            "live_workers": 2,
        }
    ]


def test_pools_of_others_look_like_none(caller: Caller) -> None:
    make_pool(slug="of-others", shared=False).tenants.add(make_tenant())
    own = make_pool(slug="own", shared=False)
    own.tenants.add(caller.tenant)
    assert [pool["name"] for pool in caller.get("pools").json()["results"]] == ["own"]


def test_a_workers_key_is_refused(caller: Caller) -> None:
    refusal(Caller(caller.tenant, Role.WORKER, make_pool()).get("pools"), 403)
