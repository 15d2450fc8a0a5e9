"""A worker's key reaches as far as the runs of its pool: no other pool's jobs, no secret its runs are not given."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from jobs.declarations import apply_declarations, declare
from jobs.models import Declaration, Job, JobStatus, Pool, Role, RunRequest, Tenant
from jobs.secrets import service as tenant_secrets
from jobs.services.definition import create_job, edit_job
from runs.models import LiveRun
from runs.states import LiveState
from scheduler_project.sdk.declarations.plan import DeclaredJob, drift_of
from scheduler_project.sdk.ledger.https import HttpsLedger, remote_ledger_url
from scheduler_project.sdk.ledger.interface import ClaimRequest, WorkerInfo, WorkQueue, base_token
from scheduler_project.sdk.outcomes import stated_failure
from scheduler_project.sdk.retries import Verdict
from tests.runs.ledger.claims import tell
from tests.support.api_client import Caller, refusal
from tests.support.certificates import OwnCA
from tests.support.factories import TASK, make_key, make_pool, make_run, make_tenant, now

pytestmark = pytest.mark.django_db(transaction=True)
KNOWN, OTHER = "${secret:KNOWN}", "${secret:OTHER}"


@pytest.fixture
def tenant() -> Tenant:
    tenant = make_tenant(slug="acme")
    for name in ("KNOWN", "OTHER"):
        tenant_secrets.create_secret(tenant, {"name": name, "value": f"value of {name}"})
    return tenant


@pytest.fixture
def pool(tenant: Tenant) -> Pool:
    pool = make_pool(slug="payments", shared=False)
    pool.tenants.add(tenant)
    return pool


@pytest.fixture
def elsewhere(tenant: Tenant) -> Pool:
    pool = make_pool(slug="elsewhere", shared=False)
    pool.tenants.add(tenant)
    return pool


@pytest.fixture
def worker(tenant: Tenant, pool: Pool) -> Caller:
    return Caller(tenant, Role.WORKER, pool=pool)


def spec(name: str = "settle", *args: str, **more: Any) -> dict[str, Any]:
    target = {"kind": "celery", "task": TASK, "args": list(args), "kwargs": {}}
    return {"name": name, "target": target, "schedule": None, **more}


def made(tenant: Tenant, pool: Pool, *args: str) -> Job:
    return create_job(tenant, {**spec("settle", *args), "pool": pool.slug})


def declared(worker: Caller, *specs: dict[str, Any]) -> dict[str, str]:
    answer = worker.post("worker/declarations", {"declarations": list(specs)})
    assert answer.status_code == 200, answer.content
    return {one["name"]: one["error"] for one in answer.json()["results"]}


def through_ledger(worker: Caller, *specs: dict[str, Any]) -> dict[str, str]:
    """As a worker declares when it starts; a scheduler applies it."""
    answer = worker.post("worker/declare", {"pool": "", "tenant": "", "declarations": list(specs)})
    assert answer.status_code == 200, answer.content
    apply_declarations()
    return dict(Declaration.objects.values_list("name", "error"))


@pytest.mark.parametrize("way", [declared, through_ledger])
def test_what_it_declares_refers_to_no_secret_that_the_job_does_not(
    worker: Caller, tenant: Tenant, pool: Pool, way: Any
) -> None:
    job = made(tenant, pool, KNOWN)
    errors = way(worker, spec("settle", KNOWN, OTHER), spec("new", KNOWN))
    assert "secret OTHER" in errors["settle"] and "secret KNOWN" in errors["new"]
    assert [one.spec.secret_names for one in Job.objects.all()] == [["KNOWN"]]
    assert way(worker, spec("settle", "changed", KNOWN))["settle"] == ""
    job.refresh_from_db()
    assert job.spec.target["args"] == ["changed", KNOWN]


@pytest.mark.parametrize("way", [declared, through_ledger])
def test_it_takes_no_job_of_another_pool_by_its_name(
    worker: Caller, tenant: Tenant, elsewhere: Pool, way: Any
) -> None:
    job = made(tenant, elsewhere, KNOWN)
    assert "of another pool" in way(worker, spec("settle", "taken"))["settle"]
    job.refresh_from_db()
    assert (job.pool, job.version) == (elsewhere, 1)


def test_it_takes_no_declaration_of_another_pool(worker: Caller, tenant: Tenant, elsewhere: Pool) -> None:
    declare(tenant, elsewhere, [spec()])
    apply_declarations()
    refusal(worker.post("worker/declarations", {"declarations": [spec("settle", "taken")]}), 409)
    given = {"pool": "", "tenant": "", "declarations": [spec("settle", "taken"), spec("ours")]}
    assert "nother pool" in refusal(worker.post("worker/declare", given), 409)["detail"]
    declaration = Declaration.objects.get(name="settle")
    assert (declaration.pool, declaration.error) == (elsewhere, "")
    assert declaration.job is not None and declaration.job.version == 1
    assert Declaration.objects.filter(name="ours").exists()
    given["declarations"] = [{"name": 5}]
    refusal(worker.post("worker/declare", given), 400, "declarations[0].name")


def test_it_withdraws_no_job_that_was_moved_to_another_pool(
    worker: Caller, tenant: Tenant, elsewhere: Pool
) -> None:
    assert declared(worker, spec()) == {"settle": ""}
    Job.objects.update(pool=elsewhere)
    worker.post("worker/declarations", {"withdraw": ["settle"]})
    assert Job.objects.get().status == JobStatus.ACTIVE
    assert "of another pool" in Declaration.objects.get().error


def test_of_a_job_that_was_moved_to_another_pool_it_sees_no_more_than_that(
    worker: Caller, tenant: Tenant, elsewhere: Pool
) -> None:
    assert declared(worker, spec()) == {"settle": ""}
    edit_job(Job.objects.get(), {"pool": elsewhere.slug, "target": spec("settle", "not theirs")["target"]})
    answer = worker.get("worker/declarations")
    assert "not theirs" not in answer.content.decode() and elsewhere.slug not in answer.content.decode()
    [difference] = drift_of(DeclaredJob.read(answer.json()["results"][0]))
    assert str(difference) == 'pool: "payments" -> "another pool"'
    of_admin = Caller(tenant).get("declarations?pool=payments").json()["results"][0]
    assert of_admin["present"]["target"]["args"] == ["not theirs"]


def test_it_hears_of_no_refusals_in_another_pool(
    worker: Caller, tenant: Tenant, pool: Pool, elsewhere: Pool
) -> None:
    declare(tenant, elsewhere, [spec("theirs", "${secret:OTHE}")])
    declare(tenant, pool, [spec("ours", "${secret:OTHE}")])
    apply_declarations()
    answer = worker.post("worker/declaration-errors", {"tenant": "", "names": ["theirs", "ours"]})
    assert answer.status_code == 200
    assert list(answer.json()["answer"]) == ["ours"]
    assert set(Declaration.objects.exclude(error="").values_list("name", flat=True)) == {"theirs", "ours"}


def test_it_cancels_no_job_of_its_request_that_was_moved_to_another_pool(
    worker: Caller, tenant: Tenant, elsewhere: Pool
) -> None:
    later = (now() + timedelta(hours=1)).isoformat()
    requested = worker.post("worker/run-requests", {"key": "k", "spec": spec("once"), "at": later})
    cancel = f"run-requests/{requested.json()['id']}/cancel"
    edit_job(Job.objects.get(), {"pool": elsewhere.slug})
    problem = refusal(worker.post(f"worker/{cancel}"), 409)
    assert "of another pool" in problem["detail"] and "administrator's key" in problem["hint"]
    assert Job.objects.get().status == JobStatus.ACTIVE
    assert Caller(tenant).post(cancel).status_code == 200
    assert Job.objects.get().status == JobStatus.CANCELLED


def test_it_cancels_its_run_of_a_job_that_was_moved_to_another_pool(
    worker: Caller, tenant: Tenant, pool: Pool, elsewhere: Pool
) -> None:
    job = made(tenant, pool)
    requested = worker.post("worker/run-requests", {"key": "k", "spec": {"name": "settle", "input": {}}})
    edit_job(job, {"pool": elsewhere.slug})
    assert worker.post(f"worker/run-requests/{requested.json()['id']}/cancel").json()["state"] == "cancelled"
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "http", "url": "https://example.com/"},
        {"kind": "command", "argv": ["id"]},
    ],
)
def test_it_asks_for_runs_of_tasks_alone(
    worker: Caller, tenant: Tenant, pool: Pool, target: dict[str, Any]
) -> None:
    Pool.objects.filter(pk=pool.pk).update(exported_kinds=["http", "command"])
    create_job(tenant, {"name": "payout", "pool": pool.slug, "schedule": None, "target": target})
    body = {"key": "k", "spec": {"name": "payout", "input": {}}}
    problem = refusal(worker.post("worker/run-requests", body), 400, "spec.name")
    assert problem["code"] == "not_for_workers" and target["kind"] in problem["detail"]
    assert not LiveRun.objects.exists() and not RunRequest.objects.exists()
    assert Caller(tenant).post("run-requests", {**body, "pool": pool.slug}).status_code == 201


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "http", "url": "https://example.com/"},
        {"kind": "command", "argv": ["id"]},
    ],
)
def test_it_writes_down_tasks_alone(worker: Caller, target: dict[str, Any]) -> None:
    assert "Celery tasks alone" in declared(worker, {**spec(), "target": target})["settle"]
    body = {"key": "k", "spec": {"name": "once", "target": target}}
    assert refusal(worker.post("worker/run-requests", body), 400)["code"] == "not_for_workers"
    assert not Job.objects.exists() and not RunRequest.objects.exists()


def test_the_runs_it_asks_for_refer_to_no_other_secret(worker: Caller, tenant: Tenant, pool: Pool) -> None:
    made(tenant, pool, KNOWN)

    def requested(key: str, spec: dict[str, Any], **more: Any) -> Any:
        return worker.post("worker/run-requests", {"key": key, "spec": spec, **more})

    refusal(requested("1", {"name": "settle", "input": {"args": [OTHER]}}), 400, "spec.input")
    refusal(requested("2", spec("once", OTHER)), 400, "target")
    later = (now() + timedelta(hours=1)).isoformat()
    refusal(requested("3", spec("once", OTHER), at=later), 400, "target")
    assert requested("4", {"name": "settle", "input": {"args": [KNOWN]}}).status_code == 201
    assert LiveRun.objects.get().input == {"args": [KNOWN]}


def test_who_may_not_write_jobs_asks_for_runs_of_declared_jobs_alone(tenant: Tenant, pool: Pool) -> None:
    made(tenant, pool)
    operator, admin = Caller(tenant, Role.OPERATOR), Caller(tenant)
    once = {"key": "k", "pool": pool.slug, "spec": spec("once", OTHER)}
    refusal(operator.post("run-requests", once), 403)
    assert Job.objects.count() == 1
    assert admin.post("run-requests", once).status_code == 201
    declared = {"key": "d", "pool": pool.slug, "spec": {"name": "settle", "input": {}}}
    assert operator.post("run-requests", declared).status_code == 201


def test_the_next_input_it_reports_refers_to_what_its_run_did(
    tenant: Tenant, pool: Pool, api_port: int, own_ca: OwnCA
) -> None:
    job = made(tenant, pool, KNOWN)
    _, text = make_key(tenant, Role.WORKER, pool=pool)
    ledger = HttpsLedger(remote_ledger_url(f"https://localhost:{api_port}", text, str(own_ca.ca)))
    info = WorkerInfo(uuid4(), "worker", "", "host", 1, 4, [TASK])
    ledger.register(info)
    wanted = ClaimRequest(info.incarnation, base_token(), WorkQueue(0, pool.pk, tenant.pk, ""), [TASK])
    make_run(job, LiveState.QUEUED)
    [claim] = ledger.claim(wanted)
    assert claim.secrets == {"KNOWN": "value of KNOWN"}
    given = {"args": [f"{KNOWN}{OTHER}", "$" + OTHER], "kwargs": {"deep": [{"x": f"a{OTHER}b"}]}}
    outcome = replace(stated_failure("transient", "Error", "again", now(), now()), next_input=given)
    assert tell(ledger, claim, outcome, Verdict("delayed", 0.0)) == "delayed"
    LiveRun.objects.update(state=LiveState.READY, wake_at=None)
    LiveRun.objects.update(state=LiveState.QUEUED, queued_at=now())
    [again] = ledger.claim(replace(wanted, token=base_token()))
    assert again.secrets == {"KNOWN": "value of KNOWN"}
    assert again.input == {
        "args": [f"{KNOWN}$" + OTHER, "$" + OTHER],
        "kwargs": {"deep": [{"x": f"a${OTHER}b"}]},
    }
    ledger.close()
