"""Test /api/v1/runs and what the API does with runs."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.models import Job
from jobs.validation.instants import as_text
from runs.models import LiveRun, Run
from runs.sql import change
from runs.states import FinalState, LiveState
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_finished_run, make_run, make_tenant, post_job

pytestmark = pytest.mark.django_db


def test_a_run_is_asked_for_and_read(caller: Caller, job: Job) -> None:
    response = caller.post(f"jobs/{job.pk}/run", {"input": {"args": ["today"]}, "reason": "by hand"})
    assert response.status_code == 201
    run = response.json()
    assert response["Location"] == run["links"]["self"] == f"/api/v1/runs/{run['id']}"
    assert (run["state"], run["trigger"], run["input"]) == ("ready", "manual", {"args": ["today"]})
    assert (run["job"], run["job_name"], run["version"]) == (str(job.pk), "settle", 1)
    assert run["requested_by"] == str(caller.key)
    assert caller.get(run["links"]["self"]).json() == run
    entry = AuditEntry.objects.get(action="run.requested")
    assert (entry.reason, entry.actor_kind, entry.object_id) == ("by hand", "key", run["id"])


def test_a_run_is_asked_for_a_later_instant(
    caller: Caller, job: Job, session: psycopg.Connection[Any]
) -> None:
    at = database_now().replace(microsecond=0) + timedelta(hours=2)
    run = caller.post(f"jobs/{job.pk}/run", {"at": as_text(at), "input": {"kwargs": {"day": "x"}}}).json()
    assert (run["state"], run["reason"]) == ("delayed", "requested_later")
    assert run["planned_at"] == run["next_attempt_at"] == as_text(at)
    promote = {"now": at - timedelta(seconds=1), "most": 10}
    assert change(session, "promote_delayed", promote) == 0
    assert change(session, "promote_delayed", {**promote, "now": at}) == 1
    run = caller.get(run["links"]["self"]).json()
    assert run["state"] == "ready" and run["reason"] != "requested_later"
    live = LiveRun.objects.get(pk=run["id"])
    assert live.available_at == at and live.rank == int(at.timestamp() * 1000) - job.priority * 300


def test_a_later_run_can_be_cancelled_or_go_at_once(caller: Caller, job: Job) -> None:
    body = {"at": as_text(database_now() + timedelta(days=1)), "reason": "after the release"}
    first, second = (caller.post(f"jobs/{job.pk}/run", body).json()["id"] for _ in range(2))
    assert caller.post(f"runs/{first}/cancel").json()["state"] == "cancelled"
    assert caller.post(f"runs/{second}/retry").json()["state"] == "ready"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"at": "2020-01-01T00:00:00Z"}, "at"),
        ({"at": "2100-01-01T00:00:00Z"}, "at"),
        ({"at": "2026-12-24T18:00"}, "at"),
        ({"at": 5}, "at"),
        ({"input": 5}, "input"),
        ({"input": {"a": "x" * 65536}}, "input"),
        ({"inputs": {}}, "inputs"),
        ("[", None),
    ],
)
def test_a_bad_request_for_a_run_makes_none(caller: Caller, job: Job, body: Any, field: str | None) -> None:
    refusal(caller.post(f"jobs/{job.pk}/run", body), 400, field)
    assert not Run.objects.exists() and not AuditEntry.objects.filter(object_type="run").exists()


def test_the_same_idempotency_key_asks_for_one_run(caller: Caller, job: Job) -> None:
    first = caller.post(f"jobs/{job.pk}/run", {}, Idempotency_Key="a")
    again = caller.post(f"jobs/{job.pk}/run", {}, Idempotency_Key="a")
    other = caller.post(f"jobs/{job.pk}/run", {}, Idempotency_Key="b")
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    assert again["Idempotency-Replayed"] == "true" and other.json()["id"] != first.json()["id"]
    refusal(caller.post(f"jobs/{job.pk}/run", {"input": {}}, Idempotency_Key="a"), 422)
    assert Run.objects.count() == 2


def test_one_state_is_shown_whether_under_way_or_over(caller: Caller, job: Job) -> None:
    for live in LiveState:
        run = make_run(job, live)
        assert caller.get(f"runs/{run.pk}").json()["state"] == live
    for final in FinalState:
        assert caller.get(f"runs/{make_finished_run(job, final).pk}").json()["state"] == final


def test_a_finished_run_tells_how_it_ended(caller: Caller, job: Job) -> None:
    failed = make_finished_run(
        job,
        FinalState.DEAD,
        error_class="permanent",
        error_type="ValueError",
        error_line="no such account",
        fingerprint="ab12",
        exit_code=3,
        attempts=4,
        reason="gave up",
    )
    body = caller.get(f"runs/{failed.pk}").json()
    assert body["error"] == {
        "class": "permanent",
        "type": "ValueError",
        "line": "no such account",
        "fingerprint": "ab12",
    }
    assert (body["exit_code"], body["attempt"], body["reason"]) == (3, 4, "gave up")
    assert body["finished_at"] > body["started_at"] and body["planned_at"].endswith("Z")


def test_a_finished_run_tells_when_it_was_queued_and_cancelled_and_why(caller: Caller, job: Job) -> None:
    asked = caller.post(f"jobs/{job.pk}/run", {"reason": "because"}).json()
    assert asked["requested_reason"] == "because"
    at = database_now()
    kept: dict[str, Any] = {"queued_at": at, "cancel_requested_at": at, "cancel_acknowledged_at": at}
    LiveRun.objects.filter(pk=asked["id"]).update(state=LiveState.QUEUED, queued_at=at)
    before = caller.get(f"runs/{asked['id']}").json()
    body = caller.post(f"runs/{asked['id']}/cancel").json()
    assert body["state"] == "cancelled" and body["requested_reason"] == "because"
    assert body["queued_at"] == before["queued_at"] is not None
    assert body["cancel_requested_at"] is not None and body["error"] is None
    body = caller.get(f"runs/{make_finished_run(job, **kept).pk}").json()
    assert {body[name] for name in kept} == {as_text(at)}


def test_the_reason_of_a_retry_is_kept_with_the_new_run(caller: Caller, job: Job) -> None:
    dead = make_finished_run(job, FinalState.DEAD)
    retry = caller.post(f"runs/{dead.pk}/retry", {"reason": "fixed"}).json()
    assert retry["requested_reason"] == "fixed"


def test_a_cancelled_run_has_an_error_only_if_its_body_had_one(caller: Caller, job: Job) -> None:
    before = make_finished_run(job, FinalState.CANCELLED, error_class="cancelled")
    during = make_finished_run(
        job, FinalState.CANCELLED, error_class="cancelled", error_type="ValueError", error_line="no luck"
    )
    assert caller.get(f"runs/{before.pk}").json()["error"] is None
    assert caller.get(f"runs/{during.pk}").json()["error"]["type"] == "ValueError"


def test_a_run_in_back_off_tells_when_it_goes_on(caller: Caller, job: Job) -> None:
    run = make_run(job, LiveState.DELAYED)
    body = caller.get(f"runs/{run.pk}").json()
    assert body["next_attempt_at"] is not None and body["finished_at"] is None


def test_cancelling_through_the_api(caller: Caller, job: Job) -> None:
    ready, running = make_run(job), make_run(job, LiveState.RUNNING)
    body = caller.post(f"runs/{ready.pk}/cancel", {"reason": "not needed"}).json()
    assert (body["state"], body["reason"]) == ("cancelled", "cancelled")
    assert body["reason_text"] == "cancelled on request: not needed"
    assert refusal(caller.post(f"runs/{ready.pk}/cancel"), 409)["code"] == "run_is_final"
    body = caller.post(f"runs/{running.pk}/cancel").json()
    assert body["state"] == "running" and body["cancel_requested_at"] is not None
    assert body["cancel_acknowledged_at"] is None and "has not confirmed" in body["reason_text"]
    assert caller.post(f"runs/{running.pk}/cancel").json() == body
    LiveRun.objects.filter(pk=running.pk).update(cancel_acknowledged_at=database_now())
    body = caller.get(f"runs/{running.pk}").json()
    assert body["cancel_acknowledged_at"] is not None and body["reason_text"].startswith("asked to stop")


def test_retrying_through_the_api(caller: Caller, job: Job) -> None:
    dead, delayed, ready = (
        make_finished_run(job, FinalState.DEAD),
        make_run(job, LiveState.DELAYED),
        make_run(job),
    )
    response = caller.post(f"runs/{dead.pk}/retry", Idempotency_Key="a")
    retry = response.json()
    assert response.status_code == 201 and retry["retry_of"] == str(dead.pk)
    assert retry["links"]["retry_of"] == f"/api/v1/runs/{dead.pk}" and retry["trigger"] == "retry"
    assert caller.post(f"runs/{dead.pk}/retry", Idempotency_Key="a").json() == retry
    retried = caller.post(f"runs/{delayed.pk}/retry")
    assert retried.status_code == 200 and retried.json()["state"] == "ready"
    assert refusal(caller.post(f"runs/{ready.pk}/retry"), 409)["code"] == "run_is_unfinished"


def test_runs_of_another_tenant_look_like_none(caller: Caller) -> None:
    """Promise 9."""
    other = make_run(post_job(make_tenant()))
    for run_id in (other.pk, uuid4(), "nonsense"):
        for part in ("", "/attempts", "/log"):
            refusal(caller.get(f"runs/{run_id}{part}"), 404)
        for verb in ("cancel", "retry"):
            refusal(caller.post(f"runs/{run_id}/{verb}"), 404)
    for query in ({}, {"job": other.job_id}):
        assert caller.get("runs", **query).json()["results"] == []
    live = LiveRun.objects.get(pk=other.pk)
    assert live.state == "ready" and live.cancel_requested_at is None
