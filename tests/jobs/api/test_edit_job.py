"""Test PATCH and DELETE /api/v1/jobs/{id}."""

from datetime import timedelta
from uuid import uuid4

import pytest

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.models import Job, JobVersion
from runs.models import Run
from tests.support.api_client import Caller, refusal
from tests.support.factories import TASK, make_finished_run, make_run, make_tenant, post_job

pytestmark = pytest.mark.django_db


def test_a_patch_changes_only_what_it_names(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"every": 60}, tags={"a": "b"})
    before = caller.get(f"jobs/{job.pk}").json()
    response = caller.patch(f"jobs/{job.pk}", {"timeout": "PT5M"})
    assert response.status_code == 200
    after = response.json()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"timeout", "version", "updated_at"} and after["version"] == 2


def test_a_patch_of_the_schedule_plans_anew(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"every": 60})
    body = caller.patch(f"jobs/{job.pk}", {"schedule": {"cron": "0 0 1 1 *"}}).json()
    assert "-01-01T00:00:00.000Z" in body["next_run_at"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"priority": 1001}, "priority"),
        ({"schedule": {"cron": "nonsense"}}, "schedule.cron"),
        ({"schedule": {"at": "2001-01-01T00:00:00Z"}}, "schedule.at"),
        ({"target": {"kind": "celery", "task": "no.such"}}, "target.task"),
        ({"pool": "nowhere"}, "pool"),
        ({"colour": "red"}, "colour"),
        ({"next_run_at": "2099-01-01T00:00:00Z"}, "next_run_at"),
        ({"name": ""}, "name"),
    ],
)
def test_a_bad_patch_changes_nothing(caller: Caller, changes: dict[str, object], field: str) -> None:
    job = post_job(caller.tenant, schedule={"every": 60})
    before, entries = caller.get(f"jobs/{job.pk}").json(), AuditEntry.objects.count()
    refusal(caller.patch(f"jobs/{job.pk}", {"description": "new", **changes}), 400, field)
    assert caller.get(f"jobs/{job.pk}").json() == before
    assert JobVersion.objects.filter(job=job).count() == 1 and AuditEntry.objects.count() == entries


def test_a_patch_to_a_taken_name_is_a_conflict(caller: Caller) -> None:
    post_job(caller.tenant, name="first")
    job = post_job(caller.tenant, name="second")
    assert refusal(caller.patch(f"jobs/{job.pk}", {"name": "first"}), 409, "name")["code"] == "duplicate_name"


def test_rearming_to_an_instant_with_an_outcome_is_a_conflict_that_links_the_run(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"at": "2099-01-01T00:00:00Z"})
    at = database_now() - timedelta(minutes=1)
    run = make_finished_run(job, planned_at=at)
    problem = refusal(
        caller.patch(f"jobs/{job.pk}", {"schedule": {"at": at.isoformat()}}), 409, "schedule.at"
    )
    assert problem["link"] == f"/api/v1/runs/{run.pk}" and problem["code"] == "instant_has_run"
    assert caller.get(problem["link"]).json()["state"] == "succeeded"


def test_a_patch_with_a_body_that_is_no_object_is_refused(caller: Caller) -> None:
    job = post_job(caller.tenant)
    assert "object" in refusal(caller.patch(f"jobs/{job.pk}", "[]"), 400)["detail"]


def test_an_edit_is_audited_with_both_sides(caller: Caller) -> None:
    job = post_job(caller.tenant)
    caller.patch(f"jobs/{job.pk}", {"priority": 7, "tags": {"team": "x"}})
    entry = AuditEntry.objects.get(action="job.edited")
    assert entry.before == {"priority": 500, "tags": {}, "version": 1}
    assert entry.after == {"priority": 7, "tags": {"team": "x"}, "version": 2}


def test_a_changed_secret_shows_as_changed_and_not_as_text(caller: Caller) -> None:
    target = {"kind": "celery", "task": TASK, "args": [], "kwargs": {"api_key": "old-secret"}}
    job = post_job(caller.tenant, target=target)
    caller.patch(f"jobs/{job.pk}", {"target": {**target, "kwargs": {"api_key": "new-secret"}}})
    entry = AuditEntry.objects.get(action="job.edited")
    assert entry.after is not None and "target" in entry.after
    assert "secret" not in f"{entry.before} {entry.after}"


def test_a_deleted_job_is_missing_and_its_runs_stay(caller: Caller) -> None:
    job = post_job(caller.tenant)
    finished, unfinished = make_finished_run(job), make_run(job)
    response = caller.delete(f"jobs/{job.pk}")
    assert response.status_code == 204 and not response.content
    refusal(caller.get(f"jobs/{job.pk}"), 404)
    refusal(caller.delete(f"jobs/{job.pk}"), 404)
    refusal(caller.patch(f"jobs/{job.pk}", {"priority": 1}), 404)
    assert Job.objects.get(pk=job.pk).deleted_at is not None
    states = {run["id"]: run["state"] for run in caller.get("runs", job=job.pk).json()["results"]}
    assert states == {str(finished.pk): "succeeded", str(unfinished.pk): "cancelled"}
    assert Run.objects.count() == 2


@pytest.mark.parametrize("job_id", [uuid4(), "not-an-id", "1", "%00", "../jobs", "🦆"])
def test_an_unknown_or_impossible_id_is_missing(caller: Caller, job_id: object) -> None:
    for response in (caller.get(f"jobs/{job_id}"), caller.delete(f"jobs/{job_id}")):
        refusal(response, 404)


def test_a_job_of_another_tenant_looks_like_none(caller: Caller) -> None:
    """Promise 9."""
    other = post_job(make_tenant(), schedule={"every": 60})
    entries = AuditEntry.objects.count()
    theirs = caller.get(f"jobs/{other.pk}")
    none = caller.get(f"jobs/{(missing := uuid4())}")
    hidden = {
        **refusal(theirs, 404),
        "request_id": 0,
        "detail": theirs.json()["detail"].replace(str(other.pk), ""),
    }
    absent = {
        **refusal(none, 404),
        "request_id": 0,
        "detail": none.json()["detail"].replace(str(missing), ""),
    }
    assert hidden == absent
    refusal(caller.patch(f"jobs/{other.pk}", {"priority": 1}), 404)
    refusal(caller.delete(f"jobs/{other.pk}"), 404)
    for verb in ("pause", "resume", "cancel", "run"):
        refusal(caller.post(f"jobs/{other.pk}/{verb}"), 404)
    for part in ("runs", "preview"):
        refusal(caller.get(f"jobs/{other.pk}/{part}"), 404)
    other.refresh_from_db()
    assert (other.status, other.priority, other.deleted_at) == ("active", 500, None)
    assert AuditEntry.objects.count() == entries
