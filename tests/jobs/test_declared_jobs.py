"""Where declared jobs come from, what becomes of those no longer declared, and what was changed by hand."""

from typing import Any

import pytest

from jobs.declarations import apply_now, declare, declared, drift_of_job, withdraw
from jobs.models import Declaration, Job, JobStatus, Pool, Tenant
from jobs.services.definition import delete_job, edit_job
from jobs.services.status import cancel_job, pause_job
from scheduler_project.sdk.declarations.plan import ChangeKind, PlannedChange, plan

pytestmark = pytest.mark.django_db
TASK = "payments.tasks.settle"


@pytest.fixture
def pool(own_pool: Pool) -> Pool:
    return own_pool


def spec(name: str = "settle", **more: Any) -> dict[str, Any]:
    target = {"kind": "celery", "task": TASK, "args": [], "kwargs": {}}
    return {"name": name, "source": "shop", "target": target, "schedule": {"cron": "*/5 * * * *"}, **more}


def applied(tenant: Tenant, pool: Pool, *specs: dict[str, Any], again: bool = False) -> None:
    declare(tenant, pool, specs, again=again)
    apply_now(tenant, [one["name"] for one in specs])


def planned(tenant: Tenant, pool: Pool, *specs: dict[str, Any]) -> list[PlannedChange]:
    return plan(specs, declared(tenant, pool), pool="payments", source="shop")


def job(tenant: Tenant, name: str = "settle") -> Job:
    return Job.objects.of(tenant).get(name=name)


def test_what_was_applied_is_unchanged_and_has_not_drifted(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec(timeout=60, retry={"max_attempts": 3}, tags={"a": "b"}))
    [change] = planned(tenant, pool, spec(timeout=60, retry={"max_attempts": 3}, tags={"a": "b"}))
    assert (change.kind, change.drift, change.error) == (ChangeKind.UNCHANGED, [], "")
    declaration = Declaration.objects.get()
    assert (declaration.source, declaration.job) == ("shop", job(tenant))


def test_each_field_that_somebody_edits_is_named_with_both_values(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec(priority=700))
    edit_job(job(tenant), {"priority": 10, "retry": {"max_attempts": 9}, "schedule": {"every": 60}})
    [change] = planned(tenant, pool, spec(priority=700))
    assert change.kind == ChangeKind.UNCHANGED and change.to_apply
    found = {one.field: (one.before, one.after) for one in change.drift}
    assert found["priority"] == (700, 10) and found["retry.max_attempts"] == (4, 9)
    assert found["schedule.cron"] == ("*/5 * * * *", None) and found["schedule.every"] == (None, 60)
    found_by_admin = drift_of_job(job(tenant))
    assert found_by_admin and found_by_admin[1] == change.drift


def test_applying_again_puts_it_back_and_declaring_the_same_does_not(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec(priority=700))
    edit_job(job(tenant), {"priority": 10})
    applied(tenant, pool, spec(priority=700))
    assert job(tenant).priority == 10
    applied(tenant, pool, spec(priority=700), again=True)
    assert job(tenant).priority == 700
    assert planned(tenant, pool, spec(priority=700))[0].drift == []


def test_a_pause_is_no_drift_but_a_cancel_and_a_deletion_are(tenant: Tenant, pool: Pool) -> None:
    for name in ("paused", "cancelled", "deleted"):
        applied(tenant, pool, spec(name))
    pause_job(job(tenant, "paused"))
    cancel_job(job(tenant, "cancelled"))
    delete_job(job(tenant, "deleted"))
    drift = {
        one.name: [d.field for d in one.drift]
        for one in planned(tenant, pool, *map(spec, ("paused", "cancelled", "deleted")))
    }
    assert drift == {"paused": [], "cancelled": ["status"], "deleted": ["job"]}


def test_what_is_no_longer_declared_is_shown_and_cancelled_when_withdrawn(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec("settle"), spec("refund"))
    assert [(c.kind, c.name) for c in planned(tenant, pool, spec("settle"))] == [
        (ChangeKind.REMOVED, "refund"),
        (ChangeKind.UNCHANGED, "settle"),
    ]
    withdraw(tenant, pool, ["refund"])
    apply_now(tenant, ["refund"])
    assert job(tenant, "refund").status == JobStatus.CANCELLED and job(tenant).status == JobStatus.ACTIVE
    assert [c.name for c in planned(tenant, pool, spec("settle"))] == ["settle"]


def test_what_was_withdrawn_and_is_declared_again_is_a_new_job(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec())
    before = job(tenant)
    withdraw(tenant, pool, ["settle"])
    apply_now(tenant, ["settle"])
    assert planned(tenant, pool, spec())[0].kind == ChangeKind.ADDED
    applied(tenant, pool, spec())
    assert job(tenant).pk != before.pk and job(tenant).status == JobStatus.ACTIVE
    assert Declaration.objects.get().error == ""


def test_what_a_person_has_cancelled_no_code_brings_back(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec())
    cancel_job(job(tenant), "never again")
    withdraw(tenant, pool, ["settle"])
    apply_now(tenant, ["settle"])
    applied(tenant, pool, spec())
    assert job(tenant).status == JobStatus.CANCELLED
    assert "cancelled" in Declaration.objects.get().error


def test_a_job_that_somebody_has_renamed_is_the_same_job(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec())
    before = job(tenant)
    edit_job(before, {"name": "renamed"})
    assert [d.field for d in planned(tenant, pool, spec())[0].drift] == ["name"]
    applied(tenant, pool, spec(), again=True)
    assert Job.objects.of(tenant).count() == 1
    assert job(tenant).pk == before.pk


def test_another_code_base_of_the_pool_removes_nothing(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, {**spec("theirs"), "source": "other"})
    assert [c.kind for c in planned(tenant, pool, spec())] == [ChangeKind.ADDED]


def test_what_a_later_release_fills_up_is_no_drift(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec())
    declaration = Declaration.objects.get()
    assert declaration.applied
    del declaration.applied["retry"]["cap"], declaration.applied["max_concurrency"]
    declaration.save()
    assert planned(tenant, pool, spec())[0].drift == []


def test_a_tag_that_somebody_adds_is_drift(tenant: Tenant, pool: Pool) -> None:
    applied(tenant, pool, spec(tags={"team": "a"}))
    edit_job(job(tenant), {"tags": {"team": "a", "more": "b"}})
    assert [d.field for d in planned(tenant, pool, spec(tags={"team": "a"}))[0].drift] == ["tags.more"]
