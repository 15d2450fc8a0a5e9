"""A worker's key: of one tenant and one pool, for the worker's protocol and nothing else."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.access import api_keys
from jobs.errors import InvalidInput
from jobs.models import ApiKey, Membership, Pool, Role, Tenant
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_key, make_pool, make_run, make_tenant, make_user, post_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant()


@pytest.fixture
def pool(tenant: Tenant) -> Pool:
    pool = make_pool(shared=False)
    pool.tenants.add(tenant)
    return pool


def test_a_workers_key_names_its_pool_and_the_audit_trail_says_so(tenant: Tenant, pool: Pool) -> None:
    key, text = api_keys.create_key(tenant, "worker", Role.WORKER, pool=pool)
    found = api_keys.find_key(text)
    assert found == key and found.pool == pool
    after = AuditEntry.objects.get(action="key.created").after
    assert after is not None and (after["role"], after["pool"]) == ("worker", pool.slug)


@pytest.mark.parametrize(
    ("role", "whose", "words"),
    [
        (Role.WORKER, "none", "a worker's key is for one pool"),
        (Role.WORKER, "foreign", "is not open to"),
        (Role.ADMIN, "own", "is for no pool"),
    ],
)
def test_role_and_pool_of_a_key_belong_together(
    tenant: Tenant, pool: Pool, role: Role, whose: str, words: str
) -> None:
    given = {"none": None, "foreign": make_pool(shared=False), "own": pool}[whose]
    with pytest.raises(InvalidInput, match=words):
        api_keys.create_key(tenant, "wrong", role, pool=given)
    assert not ApiKey.objects.exists()


def test_the_database_keeps_role_and_pool_together(tenant: Tenant, pool: Pool) -> None:
    key, _ = make_key(tenant, Role.WORKER, pool=pool)
    for change in ({"pool": None}, {"role": "admin"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            ApiKey.objects.filter(pk=key.pk).update(**change)


READS = ["jobs", "jobs/{job}", "runs", "runs/{run}", "runs/{run}/log", "pauses", "queues", "calendars"]
WRITES = ["jobs", "jobs/{job}/pause", "jobs/{job}/run", "runs/{run}/cancel", "schedules/preview"]


def test_a_workers_key_reads_and_changes_nothing_of_the_rest_of_the_api(tenant: Tenant, pool: Pool) -> None:
    worker = Caller(tenant, Role.WORKER, pool=pool)
    job = post_job(tenant)
    names = {"job": job.pk, "run": make_run(job).pk}
    for path in READS:
        assert "worker" in refusal(worker.get(path.format(**names)), 403)["detail"], path
    for path in WRITES:
        refusal(worker.post(path.format(**names)), 403)
    refusal(worker.patch(f"jobs/{job.pk}", {"priority": 1}), 403)
    refusal(worker.delete(f"jobs/{job.pk}"), 403)


def test_nobody_is_a_member_as_a_worker() -> None:
    choices = [value for value, _ in Membership._meta.get_field("role").flatchoices]
    assert choices == ["viewer", "operator", "admin"]


@pytest.fixture
def staff(client: Client, tenant: Tenant) -> Client:
    client.force_login(make_user(tenant, Role.ADMIN, is_staff=True))
    return client


def test_a_tenants_admin_makes_workers_keys_for_pools_open_to_it(
    staff: Client, tenant: Tenant, pool: Pool
) -> None:
    shown = _add(staff, tenant=tenant.pk, role="worker", pool=pool.pk)
    assert b"shown only once" in shown and pool.slug.encode() in shown
    key = ApiKey.objects.get()
    assert (key.role, key.pool) == (Role.WORKER, pool)


@pytest.mark.parametrize(
    ("role", "with_pool", "words"),
    [("worker", False, b"is for one pool"), ("operator", True, b"is for no pool")],
)
def test_the_admin_says_what_is_wrong_with_a_key(
    staff: Client, tenant: Tenant, pool: Pool, role: str, with_pool: bool, words: bytes
) -> None:
    chosen = {"pool": pool.pk} if with_pool else {}
    assert words in _add(staff, tenant=tenant.pk, role=role, **chosen)
    assert not ApiKey.objects.exists()


def test_a_pool_of_others_is_not_found_by_its_number(staff: Client, tenant: Tenant) -> None:
    foreign = make_pool(shared=False)
    shown = _add(staff, tenant=tenant.pk, role="worker", pool=foreign.pk)
    assert b"not one of the available choices" in shown and foreign.slug.encode() not in shown


def _add(staff: Client, **fields: Any) -> bytes:
    url = reverse("admin:beatkeeper_jobs_apikey_add")
    return staff.post(url, {"name": "of a worker", **fields}).content
