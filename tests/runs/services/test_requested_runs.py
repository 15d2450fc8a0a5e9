"""Runs that code asks for: over the API, and over the table that a scheduler looks into."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from auditlog.models import AuditEntry
from jobs.access.api_keys import create_key
from jobs.models import Job, JobStatus, Pool, Role, RunRequest, Tenant
from jobs.services.definition import create_job
from runs.models import LiveRun, Run
from runs.services import requested_runs as run_requests
from runs.services.requested_runs import apply_requests
from scheduler_project.sdk.errors import PlatformConflict, UnknownToPlatform
from scheduler_project.sdk.host.database import DatabaseLink
from scheduler_project.sdk.host.interface import NewRunRequest
from scheduler_project.sdk.ids import run_id
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_pool, make_tenant, now

TASK = "payments.tasks.settle"
TARGET = {"kind": "celery", "task": TASK, "args": [7], "kwargs": {}}


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant(slug="acme")


@pytest.fixture
def pool(tenant: Tenant) -> Pool:
    pool = make_pool(slug="payments", shared=False, exported_tasks=[TASK])
    pool.tenants.add(tenant)
    return pool


@pytest.fixture
def job(tenant: Tenant, pool: Pool) -> Job:
    return create_job(tenant, {"name": "settle", "target": TARGET, "pool": "payments", "schedule": None})


@pytest.fixture
def link(tenant: Tenant, pool: Pool, database_url: str) -> DatabaseLink:
    return DatabaseLink(database_url, "acme", "payments", timeout=20)


@pytest.fixture
def worker(tenant: Tenant, pool: Pool) -> Caller:
    caller = Caller(tenant)
    caller.key, caller.text = create_key(tenant, "worker", Role.WORKER, pool=pool)
    caller.client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {caller.text}"
    return caller


def once(name: str = "settle once") -> dict[str, Any]:
    return {"name": name, "target": TARGET, "priority": 700}


def test_a_worker_asks_for_one_more_run_of_a_declared_job(worker: Caller, job: Job) -> None:
    body = {"key": "k", "spec": {"name": "settle", "input": {"args": [8]}}}
    answer = worker.post("worker/run-requests", body)
    assert answer.status_code == 201, answer.content
    run = Run.objects.get(pk=answer.json()["run"])
    assert (run.job, run.input, run.trigger) == (job, {"args": [8]}, "manual")
    assert answer.json()["state"] == "ready"
    assert run.requested_by == str(worker.key)


def test_the_same_key_is_the_same_run_and_other_words_are_refused(worker: Caller, job: Job) -> None:
    body = {"key": "k", "spec": {"name": "settle", "input": {}}}
    first, second = worker.post("worker/run-requests", body), worker.post("worker/run-requests", body)
    assert (first.status_code, second.status_code) == (201, 200) and first.json() == second.json()
    assert Run.objects.count() == 1
    refusal(
        worker.post("worker/run-requests", {**body, "spec": {"name": "settle", "input": {"args": []}}}),
        422,
        "key",
    )


def test_a_run_at_an_instant_is_a_job_with_one_planned_time(worker: Caller, pool: Pool) -> None:
    at = now() + timedelta(hours=1)
    found = worker.post("worker/run-requests", {"key": "k", "at": at.isoformat(), "spec": once()}).json()
    job = Job.objects.get(pk=found["job"])
    assert (job.priority, job.clock.next_run_at, found["state"]) == (700, at, "scheduled")
    assert UUID(found["run"]) == run_id(job.pk, at)
    read = worker.get(found["links"]["self"])
    assert read.json() == found


def test_what_is_taken_back_never_runs(worker: Caller, pool: Pool) -> None:
    at = now() + timedelta(hours=1)
    found = worker.post("worker/run-requests", {"key": "k", "at": at.isoformat(), "spec": once()}).json()
    answer = worker.post(f"{found['links']['self']}/cancel")
    assert answer.json()["state"] == "cancelled"
    assert Job.objects.get(pk=found["job"]).status == JobStatus.CANCELLED
    assert worker.post(f"{found['links']['self']}/cancel").json()["state"] == "cancelled"


def test_a_manual_run_is_taken_back_and_its_job_stays(worker: Caller, job: Job) -> None:
    found = worker.post("worker/run-requests", {"key": "k", "spec": {"name": "settle", "input": {}}}).json()
    assert worker.post(f"{found['links']['self']}/cancel").json()["state"] == "cancelled"
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE and not LiveRun.objects.exists()


def test_an_instant_that_passes_while_the_job_is_made_is_now(
    worker: Caller, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = now()
    monkeypatch.setattr(run_requests, "database_now", lambda: at - timedelta(milliseconds=1))
    answer = worker.post("worker/run-requests", {"key": "k", "at": at.isoformat(), "spec": once()})
    assert answer.status_code == 201, answer.content
    assert LiveRun.objects.get().run_id == UUID(answer.json()["run"])


def test_a_later_run_of_a_declared_job_waits_with_its_input(worker: Caller, job: Job) -> None:
    at = now() + timedelta(hours=1)
    body = {"key": "k", "at": at.isoformat(), "spec": {"name": "settle", "input": {"args": [8]}}}
    answer = worker.post("worker/run-requests", body)
    assert answer.status_code == 201, answer.content
    found = answer.json()
    live = LiveRun.objects.get(pk=found["run"])
    assert (found["job"], found["state"]) == (str(job.pk), "delayed")
    assert (live.wake_at, live.planned_at, live.input) == (at, at, {"args": [8]})
    assert worker.post("worker/run-requests", body).json() == found and Run.objects.count() == 1
    assert worker.post(f"{found['links']['self']}/cancel").json()["state"] == "cancelled"
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE and not LiveRun.objects.exists()


@pytest.mark.parametrize("wrong", [timedelta(hours=-1), timedelta(days=365)])
def test_a_later_run_of_a_declared_job_is_refused_out_of_its_reach(
    worker: Caller, job: Job, wrong: timedelta
) -> None:
    body = {"key": "k", "at": (now() + wrong).isoformat(), "spec": {"name": "settle", "input": {}}}
    refusal(worker.post("worker/run-requests", body), 400, "at")
    assert not RunRequest.objects.exists() and not Run.objects.exists()


def test_a_declared_job_whose_instant_passes_meanwhile_runs_now(
    worker: Caller, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = now()
    monkeypatch.setattr(run_requests, "database_now", lambda: at - timedelta(milliseconds=1))
    body = {"key": "k", "at": at.isoformat(), "spec": {"name": "settle", "input": {}}}
    answer = worker.post("worker/run-requests", body)
    assert answer.status_code == 201 and answer.json()["state"] == "ready", answer.content


def test_an_instant_of_long_ago_is_refused_and_nothing_is_kept(worker: Caller, pool: Pool) -> None:
    at = now() - timedelta(hours=1)
    refusal(worker.post("worker/run-requests", {"key": "k", "at": at.isoformat(), "spec": once()}), 400, "at")
    assert not RunRequest.objects.exists() and not Job.objects.exists()


def test_an_instant_that_has_just_come_runs_at_once(worker: Caller, pool: Pool) -> None:
    at = now() - timedelta(seconds=1)
    found = worker.post("worker/run-requests", {"key": "k", "at": at.isoformat(), "spec": once()}).json()
    assert found["state"] == "ready"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"spec": {}}, 400, "key"),
        ({"key": "x" * 201, "spec": {}}, 400, "key"),
        ({"key": "k"}, 400, "spec"),
        ({"key": "k", "spec": {}, "when": 1}, 400, "when"),
        ({"key": "k", "spec": {}, "at": "soon"}, 400, "at"),
        ({"key": "k", "spec": {"name": "nothing", "input": {}}}, 404, None),
        ({"key": "k", "spec": {"name": 0, "input": {}}}, 400, "spec.name"),
        ({"key": "k", "spec": {"input": {}}}, 400, "spec.name"),
        (
            {"key": "k", "spec": {"name": "x", "target": {"kind": "celery", "task": "celery.x"}}},
            400,
            "target.task",
        ),
        ({"key": "k", "spec": {}, "pool": "default"}, 400, "pool"),
    ],
)
def test_what_is_wrong_is_named(
    worker: Caller, pool: Pool, body: dict[str, Any], status: int, field: str
) -> None:
    refusal(worker.post("worker/run-requests", body), status, field)


def test_another_tenants_request_looks_like_none(worker: Caller, job: Job) -> None:
    found = worker.post("worker/run-requests", {"key": "k", "spec": {"name": "settle", "input": {}}}).json()
    other = Caller(make_tenant())
    theirs = refusal(other.get(f"run-requests/{found['id']}"), 404)
    none = refusal(other.get(f"run-requests/{uuid4()}"), 404)
    assert theirs["detail"].partition(" request ")[0] == none["detail"].partition(" request ")[0]
    refusal(other.post(f"run-requests/{found['id']}/cancel"), 404)
    assert Caller(worker.tenant, Role.VIEWER).get(f"run-requests/{found['id']}").status_code == 200
    refusal(Caller(worker.tenant, Role.VIEWER).post(f"run-requests/{found['id']}/cancel"), 403)


def test_a_worker_of_another_pool_sees_nothing_of_it(worker: Caller, job: Job) -> None:
    found = worker.post("worker/run-requests", {"key": "k", "spec": {"name": "settle", "input": {}}}).json()
    other = make_pool(slug="kitchen", shared=False)
    other.tenants.add(worker.tenant)
    elsewhere = Caller(worker.tenant)
    _key, text = create_key(worker.tenant, "kitchen", Role.WORKER, pool=other)
    elsewhere.client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {text}"
    refusal(elsewhere.get(f"worker/run-requests/{found['id']}"), 404)
    refusal(elsewhere.post(f"worker/run-requests/{found['id']}/cancel"), 404)
    refusal(
        elsewhere.post("worker/run-requests", {"key": "k2", "spec": {"name": "settle", "input": {}}}), 404
    )


def test_over_the_table_a_scheduler_carries_it_out(link: DatabaseLink, job: Job) -> None:
    asked = NewRunRequest("k", {"name": "settle", "input": {"kwargs": {"a": 1}}})
    first = link.request(asked)
    assert (first.state, first.run_id, first.key, first.at) == ("requested", None, "k", None)
    assert link.request(asked) == first
    assert apply_requests() == 1 and apply_requests() == 0
    found = link.requested(first.id)
    assert found.run_id
    run = Run.objects.get(pk=found.run_id)
    assert (found.state, run.input, run.requested_by) == ("ready", {"kwargs": {"a": 1}}, "pool payments")
    assert AuditEntry.objects.filter(object_id=str(run.pk), actor_kind="worker").exists()
    link.cancel(first.id)
    apply_requests()
    assert link.requested(first.id).state == "cancelled" and not LiveRun.objects.exists()


def test_over_the_table_a_later_run_of_a_declared_job(link: DatabaseLink, job: Job) -> None:
    at = now() + timedelta(hours=1)
    first = link.request(NewRunRequest("k", {"name": "settle", "input": {}}, at))
    apply_requests()
    assert link.requested(first.id).state == "delayed" and LiveRun.objects.get().wake_at == at
    link.cancel(first.id)
    apply_requests()
    assert link.requested(first.id).state == "cancelled" and not LiveRun.objects.exists()


def test_over_the_table_a_run_at_an_instant(link: DatabaseLink, pool: Pool) -> None:
    at = now() + timedelta(hours=1)
    first = link.request(NewRunRequest("k", once(), at))
    apply_requests()
    found = link.requested(first.id)
    assert found.state == "scheduled" and found.run_id == run_id(found.job_id or UUID(int=0), at)
    assert link.cancel(first.id).state == "scheduled"
    apply_requests()
    assert link.requested(first.id).state == "cancelled"


def test_what_the_platform_refuses_keeps_the_reason(link: DatabaseLink, pool: Pool) -> None:
    first = link.request(NewRunRequest("k", {**once(), "priority": 7000}, now() + timedelta(hours=1)))
    apply_requests()
    found = link.requested(first.id)
    assert found.state == "refused" and "priority" in found.error
    assert not Job.objects.exists()


def test_taken_back_before_anybody_looked_it_never_begins(link: DatabaseLink, job: Job) -> None:
    first = link.request(NewRunRequest("k", {"name": "settle", "input": {}}))
    link.cancel(first.id)
    apply_requests()
    assert link.requested(first.id).state == "cancelled" and not Run.objects.exists()


def test_what_the_link_refuses(link: DatabaseLink, job: Job, database_url: str) -> None:
    link.request(NewRunRequest("k", {"name": "settle", "input": {}}))
    with pytest.raises(PlatformConflict, match="another request"):
        link.request(NewRunRequest("k", {"name": "settle", "input": {"args": [1]}}))
    with pytest.raises(UnknownToPlatform, match="no request"):
        link.requested(uuid4())
    with pytest.raises(UnknownToPlatform, match="'nobody'"):
        DatabaseLink(database_url, "nobody", "payments", timeout=20).request(NewRunRequest("k", {}))
