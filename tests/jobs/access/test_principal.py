"""A new way to log in is one authenticator: whatever is behind reads the principal that it makes."""

from typing import Any

import pytest
from django.test import Client
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.views import APIView

from auditlog.models import ActorKind, AuditEntry
from jobs.access.principal import Principal
from jobs.api.authentication import ApiKeyAuthentication, BearerAuthentication
from jobs.models import ApiKey, Job, Role, Tenant
from runs.models import WorkerNode
from tests.support.api_client import Caller, refusal
from tests.support.factories import job_spec, make_pool, make_tenant

pytestmark = pytest.mark.django_db


class StaffTokens(BearerAuthentication):
    """Read tokens like `staff:ada:<role>:<tenant>`, as an OIDC authenticator reads its claims."""

    def principal(self, token: str) -> Principal | None:
        issuer, _, claims = token.partition(":")
        if issuer != "staff":
            return None
        name, role, slug = claims.split(":")
        tenant = Tenant.objects.get(slug=slug)
        pool = tenant.pools.first() if role == Role.WORKER else None
        return Principal(ActorKind.USER, f"{issuer}|{name}", name, tenant, Role(role), pool)


@pytest.fixture(autouse=True)
def _staff_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(APIView, "authentication_classes", [StaffTokens, ApiKeyAuthentication])


def send(method: str, path: str, token: str, body: Any = None) -> Any:
    client = Client(headers={"Authorization": f"Bearer {token}"}, raise_request_exception=False)
    return getattr(client, method)(f"/api/v1/{path}", body, content_type="application/json")


def test_another_login_has_the_rights_of_its_role_and_its_name_in_the_audit() -> None:
    tenant, other = make_tenant(), make_tenant()
    make_pool(slug="default", shared=True)
    created = send("post", "jobs", f"staff:ada:admin:{tenant.slug}", job_spec())
    assert created.status_code == 201, created.content
    job = Job.objects.get()
    assert job.tenant == tenant and not ApiKey.objects.exists()
    entry = AuditEntry.objects.filter(object_id=str(job.pk)).get()
    assert (entry.actor_kind, entry.actor) == (ActorKind.USER, "ada")
    viewer = f"staff:eve:viewer:{tenant.slug}"
    assert send("get", f"jobs/{job.pk}", viewer).status_code == 200
    assert "operator" in refusal(send("post", f"jobs/{job.pk}/pause", viewer), 403)["detail"]
    refusal(send("get", f"jobs/{job.pk}", f"staff:bob:admin:{other.slug}"), 404)


def test_what_another_login_declares_is_done_in_its_own_name() -> None:
    tenant = make_tenant()
    make_pool(slug="own", shared=False).tenants.add(tenant)
    spec = {key: value for key, value in job_spec().items() if key != "pool"}
    declared = {"pool": "own", "declarations": [{**spec, "name": "nightly"}]}
    answer = send("post", "declarations", f"staff:ada:admin:{tenant.slug}", declared)
    assert answer.status_code == 200, answer.content
    entry = AuditEntry.objects.get(object_id=str(Job.objects.get(name="nightly").pk))
    assert (entry.actor_kind, entry.actor) == (ActorKind.USER, "ada")


def test_another_login_can_be_a_worker_of_its_pool() -> None:
    tenant = make_tenant()
    pool = make_pool(slug="own", shared=False)
    pool.tenants.add(tenant)
    worker = {
        "incarnation": "6f2c1b3e-2f0e-4a5c-9d6b-0c8a4d8f1e11",
        "name": "w",
        "pool": "",
        "host": "h",
        "pid": 1,
        "slots": 2,
        "lease": 30.0,
        "known_targets": [],
    }
    refusal(send("post", "worker/register", f"staff:ada:admin:{tenant.slug}", worker), 403)
    answer = send("post", "worker/register", f"staff:w1:worker:{tenant.slug}", worker)
    assert answer.status_code == 200, answer.content
    assert WorkerNode.objects.get().pool == pool


def test_keys_stay_valid_beside_another_login_and_other_tokens_are_refused() -> None:
    assert Caller(make_tenant()).get("jobs").status_code == 200
    problem = refusal(send("get", "jobs", "other:ada:admin:x"), 401)
    assert problem["detail"] == "the key is wrong, expired or revoked"
    assert send("get", "jobs", "other")["WWW-Authenticate"].startswith("Bearer")


def test_the_api_document_knows_another_login() -> None:
    assert OpenApiAuthenticationExtension.get_match(StaffTokens()) is not None


@pytest.mark.parametrize("role", Role)
def test_a_principal_has_a_pool_only_as_a_worker(role: Role) -> None:
    tenant, pool = make_tenant(), make_pool()
    wrong = None if role == Role.WORKER else pool
    with pytest.raises(ValueError, match="pool"):
        Principal(ActorKind.USER, "1", "ada", tenant, role, wrong)
