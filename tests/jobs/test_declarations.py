"""Jobs that decorators ask for, applied by the platform."""

from typing import Any

import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.declarations import apply_declarations
from jobs.models import Declaration, Job, JobClock, Pool, Tenant
from tests.support.factories import make_pool, make_tenant

pytestmark = pytest.mark.django_db
TASK = "payments.tasks.settle"


@pytest.fixture
def pool(own_pool: Pool) -> Pool:
    return own_pool


def declare(tenant: Tenant, pool: Pool, name: str = "settle", **spec: Any) -> Declaration:
    whole = {"target": {"kind": "celery", "task": TASK}, "schedule": {"cron": "*/5 * * * *"}, **spec}
    fields = {"pool": pool, "spec": whole, "applied_at": None, "error": ""}
    return Declaration.objects.update_or_create(tenant=tenant, name=name, defaults=fields)[0]


def test_a_declared_job_is_created_and_its_task_exported(tenant: Tenant, pool: Pool) -> None:
    declaration = declare(tenant, pool, priority=700)
    assert apply_declarations() == 1
    declaration.refresh_from_db()
    assert declaration.error == "" and declaration.applied_at is not None
    job = Job.objects.get(tenant=tenant, name="settle")
    assert (job.priority, job.pool) == (700, pool) and JobClock.objects.get(job=job).next_run_at
    pool.refresh_from_db()
    assert pool.exported_tasks == [TASK]
    entry = AuditEntry.objects.get(object_id=str(job.pk))
    assert (entry.actor_kind, entry.actor) == ("worker", "pool payments")
    assert apply_declarations() == 0


def test_what_a_declaration_no_longer_says_goes_back_to_its_default(tenant: Tenant, pool: Pool) -> None:
    declare(tenant, pool, priority=700, timeout=60)
    apply_declarations()
    declare(tenant, pool, timeout=60)
    apply_declarations()
    job = Job.objects.get(tenant=tenant)
    assert job.priority == 500 and job.spec.timeout_ms == 60_000 and job.version == 2


def test_the_same_declaration_again_changes_nothing(tenant: Tenant, pool: Pool) -> None:
    declare(tenant, pool, schedule={"every": 60})
    apply_declarations()
    job = Job.objects.get(tenant=tenant)
    upcoming, entries = JobClock.objects.get(job=job).next_run_at, AuditEntry.objects.count()
    declare(tenant, pool, schedule={"every": 60})
    apply_declarations()
    assert JobClock.objects.get(job=job).next_run_at == upcoming
    assert AuditEntry.objects.count() == entries and Job.objects.get(tenant=tenant).version == 1


def test_a_refused_declaration_keeps_the_reason_and_changes_nothing_else(tenant: Tenant, pool: Pool) -> None:
    bad = declare(tenant, pool, "bad", schedule={"cron": "61 * * * *"})
    declare(tenant, pool, "good")
    assert apply_declarations() == 2
    bad.refresh_from_db()
    assert "schedule.cron" in bad.error and bad.applied_at is not None
    assert [job.name for job in Job.objects.all()] == ["good"]


@pytest.mark.parametrize("task", ["celery.backend_cleanup", "beatkeeper.run"])
def test_platform_tasks_cannot_be_declared(tenant: Tenant, pool: Pool, task: str) -> None:
    declaration = declare(tenant, pool, target={"kind": "celery", "task": task})
    apply_declarations()
    declaration.refresh_from_db()
    pool.refresh_from_db()
    assert "target.task" in declaration.error and pool.exported_tasks == [] and not Job.objects.exists()


@pytest.mark.parametrize("spec", [{"target": None}, {"target": {"kind": "celery", "task": 5}}, {"colour": 1}])
def test_nonsense_is_refused_in_words(tenant: Tenant, pool: Pool, spec: dict[str, Any]) -> None:
    declaration = declare(tenant, pool, **spec)
    apply_declarations()
    declaration.refresh_from_db()
    assert declaration.error and not Job.objects.exists()


def test_a_cancelled_job_is_not_revived_by_a_declaration(tenant: Tenant, pool: Pool) -> None:
    declare(tenant, pool)
    apply_declarations()
    Job.objects.update(status="cancelled")
    again = declare(tenant, pool, priority=1)
    apply_declarations()
    again.refresh_from_db()
    assert "cancelled" in again.error and Job.objects.get().priority == 500


@pytest.mark.parametrize("depth", [500, 3000])
def test_a_declaration_that_cannot_be_read_holds_up_nobody(tenant: Tenant, pool: Pool, depth: int) -> None:
    poison, innocent = (
        declare(tenant, pool, "poison"),
        declare(make_tenant(), make_pool(exported_tasks=[TASK])),
    )
    deep = f'{{"target": {{"kind": "celery", "task": "{TASK}", "args": {"[" * depth}{"]" * depth}}}}}'
    with connection.cursor() as cursor:
        cursor.execute("UPDATE beatkeeper_declaration SET spec = %s::jsonb WHERE id = %s", [deep, poison.pk])
    assert apply_declarations() == 2
    left = Declaration.objects.defer("spec").get(pk=poison.pk)
    assert left.error == "it cannot be carried out: RecursionError" and left.applied_at is not None
    assert Job.objects.get().tenant == innocent.tenant


def test_the_export_of_a_declared_task_is_reported(tenant: Tenant, pool: Pool) -> None:
    declare(tenant, pool)
    apply_declarations()
    entry = AuditEntry.objects.get(object_type="pool")
    assert (entry.action, entry.object_id, entry.actor) == ("pool.edited", str(pool.pk), "pool payments")
    assert (entry.before, entry.after) == ({"exported_tasks": []}, {"exported_tasks": [TASK]})


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "of two"])
def test_a_declaration_opens_no_task_to_other_tenants(tenant: Tenant, shared: bool) -> None:
    """What it exports, everybody whom the pool is open to may call, with arguments of their own."""
    pool = make_pool(slug="common", shared=shared, exported_tasks=[])
    pool.tenants.add(tenant, make_tenant())
    declaration = declare(tenant, pool)
    apply_declarations()
    declaration.refresh_from_db()
    pool.refresh_from_db()
    assert pool.exported_tasks == [] and not Job.objects.exists()
    assert f"the pool common does not export {TASK}" in declaration.error
    assert "an operator" in declaration.error
    Pool.objects.update(exported_tasks=[TASK])
    declare(tenant, pool)
    apply_declarations()
    assert Job.objects.get().pool == pool


def test_a_pool_of_others_is_reported_as_one_that_does_not_exist(tenant: Tenant) -> None:
    pool = make_pool(slug="theirs", shared=False, exported_tasks=[])
    declaration = declare(tenant, pool)
    apply_declarations()
    declaration.refresh_from_db()
    assert "not a pool open to you" in declaration.error and "export" not in declaration.error
