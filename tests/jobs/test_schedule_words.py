"""Stored schedules are rewritten to `begins_at` and `ends_at`; nothing looks edited by that."""

from importlib import import_module
from typing import Any

import pytest
from django.db import IntegrityError, connection

from auditlog.models import AuditEntry
from jobs.declarations import apply_now, declare, declared
from jobs.models import Declaration, Job, JobVersion, Pool, Tenant
from jobs.services.definition import edit_job
from scheduler_project.sdk.declarations.plan import ChangeKind, plan
from tests.support.factories import post_job

pytestmark = pytest.mark.django_db(transaction=True)
MIGRATION: Any = import_module("jobs.migrations.0006_schedule_words")
BOUNDS = {"begins_at": "2026-01-01T00:00:00.000Z", "ends_at": "2100-01-01T00:00:00.000Z"}
OLD_BOUNDS = {"start": BOUNDS["begins_at"], "end": BOUNDS["ends_at"]}
CRON = {"cron": "0 3 * * *", "timezone": "UTC"}


def migrate(*, backwards: bool = False) -> None:
    """Do what the migration does; the later ones stay as they are."""
    [operation] = MIGRATION.Migration.operations
    act = operation.reverse_code if backwards else operation.code
    act(None, connection.schema_editor())


def schedules() -> list[dict[str, Any] | None]:
    return list(JobVersion.objects.order_by("pk").values_list("schedule", flat=True))


def test_every_version_gets_the_new_words_and_nothing_else_changes(tenant: Tenant) -> None:
    job = post_job(tenant, schedule={**CRON, **BOUNDS, "jitter": 5})
    edit_job(job, {"schedule": {"every": 60, "ends_at": BOUNDS["ends_at"]}})
    for other in (None, CRON, {"at": "2100-01-01T00:00:00.000Z"}):
        post_job(tenant, schedule=other)
    others = [field.name for field in JobVersion._meta.fields if field.name != "schedule"]
    stored, rest = schedules(), list(JobVersion.objects.order_by("pk").values(*others))
    entries = AuditEntry.objects.count()
    migrate(backwards=True)
    before = schedules()
    assert before[0] == {**CRON, **OLD_BOUNDS, "jitter": 5}
    assert before[1] == {"every": 60, "end": BOUNDS["ends_at"]}
    migrate()
    assert schedules() == stored and stored[0] == {**CRON, **BOUNDS, "jitter": 5}
    assert list(JobVersion.objects.order_by("pk").values(*others)) == rest
    assert AuditEntry.objects.count() == entries


def test_a_declared_job_is_not_declared_anew_and_has_not_drifted(tenant: Tenant, own_pool: Pool) -> None:
    target = {"kind": "celery", "task": "payments.tasks.settle", "args": [], "kwargs": {}}
    # As the decorator writes it.
    schedule = {**CRON, "begins_at": "2026-01-01T00:00:00+00:00", "ends_at": "2100-01-01T00:00:00+00:00"}
    spec = {"name": "settle", "source": "shop", "target": target, "schedule": schedule}
    declare(tenant, own_pool, [spec])
    apply_now(tenant, ["settle"])
    Declaration.objects.create(tenant=tenant, pool=own_pool, name="odd", spec={"schedule": "start"})
    migrate(backwards=True)
    assert "start" in Declaration.objects.get(name="settle").spec["schedule"]
    assert "start" in (Declaration.objects.get(name="settle").applied or {})["schedule"]
    migrate()
    [change] = plan(
        [spec], [one for one in declared(tenant, own_pool) if one.name == "settle"], pool="", source="shop"
    )
    assert (change.kind, change.drift) == (ChangeKind.UNCHANGED, [])
    declare(tenant, own_pool, [spec])
    assert Declaration.objects.get(name="settle").applied_at is not None
    assert Job.objects.get(name="settle").version == 1
    assert Declaration.objects.get(name="odd").spec == {"schedule": "start"}


def test_an_interrupted_migration_goes_on_where_it_is_run_again(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        post_job(tenant, schedule={**CRON, **BOUNDS})
    migrate(backwards=True)
    monkeypatch.setattr(MIGRATION, "BATCH", 2)
    rewrite_batch, batches = MIGRATION._rewrite_batch, list[list[int]]()

    def killed_in_the_second(editor: Any, table: str, update: str, values: dict[str, Any]) -> None:
        batches.append(values["ids"])
        if len(batches) == 2:
            update += "; SELECT 1 / 0"
        rewrite_batch(editor, table, update, values)

    monkeypatch.setattr(MIGRATION, "_rewrite_batch", killed_in_the_second)
    with pytest.raises(Exception, match="division by zero"):
        migrate()
    assert ["begins_at" in (one or {}) for one in schedules()] == [True, True, False, False, False]
    refuses_changes_of_versions()
    migrate()
    assert schedules() == [{**CRON, **BOUNDS}] * 5
    assert [len(ids) for ids in batches] == [2, 2, 2, 1]
    refuses_changes_of_versions()


def refuses_changes_of_versions() -> None:
    with pytest.raises(IntegrityError, match="a version of a job never changes"):
        JobVersion.objects.update(schedule=None)
