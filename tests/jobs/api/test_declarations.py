"""Declaring jobs over the API: by an admin's key, and by a worker's for its pool."""

from typing import Any

import pytest

from jobs.access.api_keys import create_key
from jobs.models import Job, Pool, Role, Tenant
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_pool

pytestmark = pytest.mark.django_db
TASK = "payments.tasks.settle"


@pytest.fixture
def pool(own_pool: Pool) -> Pool:
    return own_pool


class Worker(Caller):
    def __init__(self, tenant: Tenant, pool: Pool) -> None:
        super().__init__(tenant)
        self.key, self.text = create_key(tenant, "worker", Role.WORKER, pool=pool)
        self.client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {self.text}"


def spec(name: str = "settle", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "source": "shop",
        "target": {"kind": "celery", "task": TASK},
        "schedule": None,
        **more,
    }


def test_a_worker_declares_for_its_own_pool(tenant: Tenant, pool: Pool) -> None:
    worker = Worker(tenant, pool)
    answer = worker.post(
        "worker/declarations", {"declarations": [spec(priority=700), spec("bad", priority=7000)]}
    )
    assert answer.status_code == 200, answer.content
    found = {one["name"]: one for one in answer.json()["results"]}
    assert "priority" in found["bad"]["error"] and found["settle"]["error"] == ""
    assert found["settle"]["present"]["priority"] == 700 and not found["settle"]["waiting"]
    assert Job.objects.get(tenant=tenant).pool == pool
    assert worker.get("worker/declarations").json() == answer.json()


def test_an_admin_names_the_pool_and_withdraws(tenant: Tenant, pool: Pool) -> None:
    admin = Caller(tenant)
    refusal(admin.post("declarations", {"declarations": [spec()]}), 400, "pool")
    admin.post("declarations", {"pool": "payments", "declarations": [spec()]})
    answer = admin.post("declarations", {"pool": "payments", "withdraw": ["settle"]})
    assert [one["withdrawn"] for one in answer.json()["results"]] == [True]
    assert Job.objects.get().status == "cancelled"


def test_a_foreign_pool_looks_like_none(tenant: Tenant, pool: Pool) -> None:
    theirs = make_pool(slug="theirs", shared=False)
    refusals = [
        refusal(Caller(tenant).get("declarations", pool=name), 400, "pool") for name in ("theirs", "nowhere")
    ]
    assert refusals[0]["hint"] == refusals[1]["hint"]
    refusal(Worker(tenant, pool).get("worker/declarations", pool=theirs.slug), 400, "pool")


def test_each_kind_of_key_has_its_own_address(tenant: Tenant, pool: Pool) -> None:
    refusal(Worker(tenant, pool).get("declarations", pool="payments"), 403)
    refusal(Caller(tenant).get("worker/declarations", pool="payments"), 403)
    refusal(Caller(tenant, Role.OPERATOR).post("declarations", {"pool": "payments"}), 403)


def test_who_may_not_write_targets_sees_no_secrets_in_them(tenant: Tenant, pool: Pool) -> None:
    target = {"kind": "celery", "task": TASK, "kwargs": {"password": "hunter2"}}
    Caller(tenant).post("declarations", {"pool": "payments", "declarations": [spec(target=target)]})
    seen = Caller(tenant, Role.VIEWER).get("declarations", pool="payments")
    assert seen.status_code == 200 and b"hunter2" not in seen.content


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"declarations": {}}, "declarations"),
        ({"declarations": [{}]}, "declarations[0].name"),
        ({"declarations": ["x"]}, "declarations[0]"),
        ({"declarations": [{"name": "x" * 121}]}, "declarations[0].name"),
        ({"declarations": [{"name": "a\nb"}]}, "declarations[0].name"),
        ({"declarations": [{"name": "settle", "source": {}}]}, "declarations[0].source"),
        ({"declarations": [{"name": "settle", "source": "x" * 201}]}, "declarations[0].source"),
        ({"again": [1]}, "again"),
        ({"withdraw": "settle"}, "withdraw"),
        ({"withdraw": ["x" * 121]}, "withdraw"),
        ({"prune": True}, "prune"),
    ],
)
def test_what_is_wrong_with_a_body_is_named(
    tenant: Tenant, pool: Pool, body: dict[str, Any], field: str
) -> None:
    refusal(Caller(tenant).post("declarations", {"pool": "payments", **body}), 400, field)
