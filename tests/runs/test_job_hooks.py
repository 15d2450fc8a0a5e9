"""What the workers of a pool know: refused when it is written down, or said where there is nobody to ask."""

from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
from django.test import Client

from auditlog.context import acting_as
from auditlog.models import ActorKind, AuditEntry
from jobs import hooks
from jobs.access.pools import export_tasks
from jobs.admin.html import page_of
from jobs.errors import InvalidInput
from jobs.models import Job, Pool, Tenant
from jobs.services.definition import create_job
from jobs.spec.targets.availability import known_in
from runs.job_hooks import RunHooks
from runs.models import NodeState
from tests.support.api_client import Caller, refusal
from tests.support.factories import job_spec, make_pool, make_tenant, make_worker, now

pytestmark = pytest.mark.django_db

KNOWN = "payments.settle"
TYPO = "payments.setle"
GONE = "payments.refund"


@pytest.fixture
def pool() -> Pool:
    """Make a pool that exports a typo, and a task whose code is gone."""
    return make_pool(slug="default", exported_tasks=[KNOWN, TYPO, GONE])


@pytest.fixture
def caller(pool: Pool) -> Caller:
    return Caller(make_tenant())


def spec(task: str = TYPO, **values: Any) -> dict[str, Any]:
    return job_spec(target={"kind": "celery", "task": task}, **values)


def test_what_no_live_worker_knows_is_refused_with_the_near_names(caller: Caller, pool: Pool) -> None:
    make_worker(pool, known_targets=[KNOWN, "payments.not_exported"])
    problem = refusal(caller.post("jobs", spec()), 400, "target.task")
    assert problem["code"] == "unknown_target"
    assert "payments.setle" in problem["detail"] and problem["hint"] == f"did you mean {KNOWN}?"
    assert "not_exported" not in str(problem)
    assert not Job.objects.exists()


def test_what_a_live_worker_knows_is_taken_without_a_word(caller: Caller, pool: Pool) -> None:
    make_worker(pool, known_targets=[])
    make_worker(pool, known_targets=[KNOWN])
    answer = caller.post("jobs", spec(KNOWN))
    assert (answer.status_code, answer.json()["warnings"]) == (201, [])


def test_with_nobody_to_ask_it_is_said(caller: Caller, pool: Pool) -> None:
    answer = caller.post("jobs", spec())
    assert answer.status_code == 201
    [warning] = answer.json()["warnings"]
    assert warning == "no live worker of the pool default knows the task payments.setle: none is alive"


@pytest.mark.parametrize("gone", [{"state": NodeState.LOST}, {"last_beat_at": now() - timedelta(hours=1)}])
def test_those_who_were_there_last_give_the_near_names(
    caller: Caller, pool: Pool, gone: dict[str, Any]
) -> None:
    make_worker(pool, known_targets=[KNOWN], **gone)
    [warning] = caller.post("jobs", spec()).json()["warnings"]
    assert warning.endswith(f"none is alive; did you mean {KNOWN}?")
    [warning] = caller.post("jobs", spec(KNOWN)).json()["warnings"]
    assert warning.endswith("none is alive")


def test_a_job_whose_task_is_gone_says_so_when_it_is_saved_and_explained(
    caller: Caller, pool: Pool, staff: Client
) -> None:
    job = create_job(caller.tenant, spec(GONE))
    make_worker(pool, known_targets=[KNOWN])
    said = "no live worker of the pool default knows the task payments.refund"
    same_task = {"target": {"kind": "celery", "task": GONE, "args": [1]}}
    assert caller.patch(f"jobs/{job.pk}", same_task).json()["warnings"][0].startswith(said)
    assert caller.patch(f"jobs/{job.pk}", {"timeout": 5}).json()["warnings"] == []
    obstacles = caller.get(f"jobs/{job.pk}/explain").json()["obstacles"]
    assert [one["detail"].startswith(said) for one in obstacles if one["code"] == "target"] == [True]
    assert "No live worker of the pool default knows" in staff.get(page_of(job)).content.decode()


def test_an_edit_is_asked_only_when_it_changes_what_is_run(caller: Caller, pool: Pool) -> None:
    job = create_job(caller.tenant, spec(GONE))
    make_worker(pool, known_targets=[KNOWN])
    unchanged = {"target": {"kind": "celery", "task": GONE, "args": [1]}, "timeout": 5}
    assert caller.patch(f"jobs/{job.pk}", unchanged).status_code == 200
    refusal(caller.patch(f"jobs/{job.pk}", {"target": {"kind": "celery", "task": TYPO}}), 400, "target.task")
    assert caller.patch(f"jobs/{job.pk}", {"target": {"kind": "celery", "task": KNOWN}}).status_code == 200


def test_a_kind_that_no_live_worker_runs_is_refused(caller: Caller, pool: Pool) -> None:
    make_worker(pool, known_targets=[KNOWN])
    target = {"kind": "http", "url": "https://team.example/"}
    problem = refusal(caller.post("jobs", job_spec(target=target)), 400, "target.kind")
    assert "http targets" in problem["detail"]
    make_worker(pool, known_targets=["kind:http"])
    assert caller.post("jobs", job_spec(target=target)).status_code == 201


def test_a_worker_that_declares_a_job_need_not_have_registered(pool: Pool) -> None:
    make_worker(pool, known_targets=[KNOWN])
    with acting_as(ActorKind.WORKER, "pool default"):
        assert create_job(make_tenant(), spec()).pk


def test_a_worker_of_another_tenant_knows_nothing_for_this_one(caller: Caller, pool: Pool) -> None:
    """One that came with a tenant's key takes runs of that tenant alone."""
    other: Tenant = make_tenant()
    make_worker(pool, known_targets=[KNOWN], tenant=other)
    assert known_in(pool, other).live and not known_in(pool, caller.tenant).live
    assert known_in(pool).tasks == [KNOWN]
    assert "none is alive" in caller.post("jobs", spec(KNOWN)).json()["warnings"][0]


def test_an_operator_chooses_from_what_live_workers_know(pool: Pool, staff: Client) -> None:
    make_worker(pool, known_targets=[KNOWN, "payments.report", "kind:http"])
    shown = staff.get(page_of(pool)).content.decode()
    assert "payments.report  (not exported)" in shown
    assert "payments.refund  (exported, and known to no live worker)" in shown
    dialog = page_of(pool).removesuffix("change/") + "export/"
    asked = staff.get(dialog).content.decode()
    assert "payments.report" in asked and 'value="payments.settle"' not in asked
    staff.post(dialog, {"tasks": ["payments.report"], "reason": "new", "_form_submitted": "1"})
    pool.refresh_from_db()
    assert pool.exported_tasks == sorted([KNOWN, TYPO, GONE, "payments.report"])
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason) == ("pool.edited", "new")


def test_what_no_worker_knows_is_not_chosen(pool: Pool, staff: Client) -> None:
    make_worker(pool, known_targets=["celery.backend_cleanup", KNOWN])
    dialog = page_of(pool).removesuffix("change/") + "export/"
    for task in ("payments.other", "celery.backend_cleanup"):
        staff.post(dialog, {"tasks": [task], "reason": "", "_form_submitted": "1"})
    pool.refresh_from_db()
    assert pool.exported_tasks == [KNOWN, TYPO, GONE]
    with pytest.raises(InvalidInput):
        export_tasks(pool, ["beatkeeper.run"])


def test_jobs_without_hooks_say_so_and_nothing_is_lost_in_silence(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_registered", None)
    with pytest.raises(LookupError, match="installed apps"):
        known_in(pool)


def test_runs_implement_every_hook_with_the_parameters_of_the_protocol() -> None:
    """A hook that is declared by one side alone would be found by its first caller."""
    found = {name for name in vars(RunHooks) if not name.startswith("_")}
    declared = {name for name in vars(hooks.JobHooks) if not name.startswith("_")}
    assert found == declared
    for name in declared:
        wanted = signature(getattr(hooks.JobHooks, name)).parameters
        assert list(signature(getattr(RunHooks, name)).parameters) == list(wanted), name
    assert isinstance(hooks.job_hooks(), RunHooks)
