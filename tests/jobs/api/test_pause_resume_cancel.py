"""Test POST /api/v1/jobs/{id}/pause, resume and cancel."""

from datetime import timedelta

import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.models import Job, JobStatus
from jobs.services.status import pause_job
from jobs.validation.instants import as_text
from runs.models import Run
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_run, now, post_job

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_pause_and_resume_move_the_status_and_the_next_time(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"every": 60})
    paused = caller.post(f"jobs/{job.pk}/pause", {"reason": "deploy"})
    assert paused.status_code == 200
    assert (paused.json()["status"], paused.json()["status_reason"]) == ("paused", "deploy")
    assert paused.json()["next_run_at"] is None
    resumed = caller.post(f"jobs/{job.pk}/resume").json()
    assert resumed["status"] == "active" and resumed["next_run_at"] is not None
    actions = list(
        AuditEntry.objects.filter(object_id=str(job.pk)).order_by("id").values_list("action", flat=True)
    )
    assert actions == ["job.created", "job.paused", "job.resumed"]


def test_no_body_at_all_is_fine(caller: Caller) -> None:
    job = post_job(caller.tenant)
    assert caller.client.generic("POST", f"/api/v1/jobs/{job.pk}/pause").status_code == 200


def test_repeating_is_safe(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"every": 60})
    for verb, status in (("pause", "paused"), ("resume", "active"), ("cancel", "cancelled")):
        first = caller.post(f"jobs/{job.pk}/{verb}").json()
        again = caller.post(f"jobs/{job.pk}/{verb}").json()
        assert first == again and first["status"] == status
    assert AuditEntry.objects.filter(object_id=str(job.pk)).count() == 4


def test_a_cancelled_job_can_only_be_deleted(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"every": 60})
    run = make_run(job)
    assert caller.post(f"jobs/{job.pk}/cancel", {"reason": "retired"}).json()["status"] == "cancelled"
    assert caller.get(f"runs/{run.pk}").json()["state"] == "cancelled"
    for verb in ("pause", "resume", "run"):
        assert refusal(caller.post(f"jobs/{job.pk}/{verb}"), 409)["code"] == "job_status"
    refusal(caller.patch(f"jobs/{job.pk}", {"priority": 1}), 409)
    assert caller.delete(f"jobs/{job.pk}").status_code == 204


def test_a_finished_job_cannot_be_resumed(caller: Caller) -> None:
    job = post_job(caller.tenant)
    Job.objects.filter(pk=job.pk).update(status=JobStatus.FINISHED)
    problem = refusal(caller.post(f"jobs/{job.pk}/resume"), 409, "status")
    assert "finished" in problem["detail"] and "paused" in problem["hint"]


@pytest.mark.parametrize(("body", "field"), [({"reason": 5}, "reason"), ({"why": "x"}, "why"), ("[]", None)])
def test_a_bad_body_is_refused(caller: Caller, body: object, field: str | None) -> None:
    job = post_job(caller.tenant)
    refusal(caller.post(f"jobs/{job.pk}/pause", body), 400, field)
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "run"])
def test_a_verb_is_not_read(caller: Caller, verb: str) -> None:
    response = caller.get(f"jobs/{post_job(caller.tenant).pk}/{verb}")
    assert refusal(response, 405)["code"] == "method_not_allowed" and "POST" in response["Allow"]


def test_a_pause_may_have_an_end(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"every": 60})
    until = as_text(now() + HOUR)
    assert caller.post(f"jobs/{job.pk}/pause", {"until": until}).json()["paused_until"] == until
    assert caller.post(f"jobs/{job.pk}/pause", {"reason": "x"}).json()["paused_until"] == until
    assert caller.post(f"jobs/{job.pk}/pause", {"until": None}).json()["paused_until"] is None


@pytest.mark.parametrize("until", [5, "soon", "", "2001-01-01T00:00:00Z", {}])
def test_a_bad_end_is_refused(caller: Caller, until: object) -> None:
    job = post_job(caller.tenant, schedule={"every": 60})
    refusal(caller.post(f"jobs/{job.pk}/pause", {"until": until}), 400, "until")
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE


def missed_minutes(caller: Caller, policy: str) -> Job:
    job = post_job(
        caller.tenant, schedule={"cron": "* * * * *"}, catch_up={"policy": policy, "window": "P1D"}
    )
    pause_job(job)
    Job.objects.filter(pk=job.pk).update(status_at=now() - HOUR)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("UPDATE beatkeeper_job_version SET anchor_at = now() - interval '1 day'")
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")
    return job


def test_what_was_missed_is_shown_before_and_with_the_resume(caller: Caller) -> None:
    job = missed_minutes(caller, "last")
    before = caller.get(f"jobs/{job.pk}").json()["missed_so_far"]
    assert before["count"] in (60, 61) and (before["policy"], before["runs"]) == ("last", 1)
    answer = caller.post(f"jobs/{job.pk}/resume").json()
    assert answer["missed"] == before and answer["missed_so_far"] is None and answer["status"] == "active"
    assert Run.objects.filter(job=job).count() == 1
    assert caller.post(f"jobs/{job.pk}/resume").json()["missed"] is None


def test_a_list_counts_nothing(caller: Caller) -> None:
    missed_minutes(caller, "last")
    assert [job["missed_so_far"] for job in caller.get("jobs").json()["results"]] == [None]


def test_another_policy_for_this_once(caller: Caller) -> None:
    job = missed_minutes(caller, "last")
    refusal(caller.post(f"jobs/{job.pk}/resume", {"catch_up": "some"}), 400, "catch_up")
    refusal(caller.post(f"jobs/{job.pk}/resume", {"catch_up": {}}), 400, "catch_up")
    missed = caller.post(f"jobs/{job.pk}/resume", {"catch_up": "skip"}).json()["missed"]
    assert (missed["policy"], missed["runs"]) == ("skip", 0)
    assert not Run.objects.filter(job=job).exists()
