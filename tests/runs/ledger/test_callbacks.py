"""Runs whose target tells the outcome later: accepted, completed by token, given up, cancelled (promises 3 and 4)."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client

from jobs.models import Job
from jobs.secrets import service as tenant_secrets
from runs import logs as run_logs
from runs.admin.run_detail import attempt_rows, reason_of
from runs.ledger import callbacks
from runs.models import Attempt, LiveRun, Run
from runs.services import runs as services
from runs.sql import rows
from runs.states import LiveState
from scheduler_project.sdk.ledger.callback_token import digest_of, token_of
from scheduler_project.sdk.ledger.interface import Claim, Ledger, given_back
from scheduler_project.sdk.outcomes import LogPointer, Outcome
from scheduler_project.sdk.retries import verdict_on
from tests.runs.ledger.claims import SUCCESS, claim_next, failed, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.runs.ledger.claims import ledger as postgres_ledger
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_job, make_run, make_worker, now

__all__ = ["ledger", "postgres_ledger"]
pytestmark = pytest.mark.django_db(transaction=True)

TARGET = {"kind": "http", "url": "https://team.example/", "callback": {"timeout": "PT1H"}}


def accepted(claim: Claim, seconds: float = 3600.0, **values: Any) -> Outcome:
    digest = digest_of(token_of(claim.token, claim.run_id, claim.claim_seq))
    values = {"callback_digest": digest, "callback_timeout": seconds, **values}
    return Outcome("succeeded", now(), now(), **values)


def claimed(ledger: Ledger, job: Job | None = None, **live: Any) -> Claim:
    job = job or make_job(spec={"target": TARGET, "target_key": "kind:http"})
    make_run(job, LiveState.QUEUED, target_key="kind:http", **live)
    claim = claim_next(ledger, job, known=["kind:http"])
    assert claim is not None
    return claim


def waiting(ledger: Ledger, job: Job | None = None, **values: Any) -> tuple[Claim, str]:
    claim = claimed(ledger, job)
    outcome = accepted(claim, **values)
    assert tell(ledger, claim, outcome, verdict_on(outcome, claim.attempt, claim.retry)) == "waiting_callback"
    return claim, token_of(claim.token, claim.run_id, claim.claim_seq)


def complete(claim: Claim, token: str, **body: Any) -> Any:
    return Client(raise_request_exception=False).post(
        f"/api/v1/runs/{claim.run_id}/complete",
        json.dumps({"outcome": "succeeded", **body}),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )


def make_overdue() -> None:
    LiveRun.objects.update(wake_at=now() - timedelta(seconds=1))


def give_up() -> int:
    connection.ensure_connection()
    return callbacks.give_up(connection.connection, now(), 100)


def test_an_accepted_run_waits_without_a_slot(ledger: Ledger) -> None:
    claim, token = waiting(ledger, seconds=90.0)
    live = LiveRun.objects.get(run=claim.run_id)
    assert (live.state, live.claim_token) == (LiveState.WAITING_CALLBACK, None)
    assert live.wake_at is not None and timedelta(seconds=60) < live.wake_at - now() < timedelta(seconds=91)
    assert live.callback_digest == digest_of(token) and token not in str(vars(live))
    assert not Attempt.objects.exists()


def test_the_token_is_that_of_one_claim() -> None:
    token, run = uuid4(), uuid4()
    made = {
        token_of(token, run, 1),
        token_of(token, run, 2),
        token_of(token, uuid4(), 1),
        token_of(run, token, 1),
    }
    assert len(made) == 4 and all(len(text) > 40 for text in made)


def test_a_callback_ends_the_run(ledger: Ledger) -> None:
    claim, token = waiting(ledger, log=LogPointer("there", 3, 4))
    answer = complete(claim, token, result={"rows": 7})
    assert answer.status_code == 200
    assert answer.json() == {"run": str(claim.run_id), "attempt": 1, "state": "succeeded"}
    run = Run.objects.get()
    assert (run.state, run.ended_from, run.result) == ("succeeded", "waiting_callback", {"rows": 7})
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.next_state, attempt.worker) == (
        "succeeded",
        "succeeded",
        claim.incarnation,
    )
    assert not LiveRun.objects.exists()


def test_the_log_of_the_call_is_the_run_s(postgres_ledger: Ledger) -> None:
    claim, token = waiting(postgres_ledger, log=LogPointer("there", 3, 4))
    assert run_logs._pointer(LiveRun.objects.get()) == LogPointer("there", 3, 4)
    complete(claim, token)
    assert run_logs._pointer(Attempt.objects.get()) == LogPointer("there", 3, 4)
    assert Run.objects.get().log_object == "there"


def test_a_failure_is_retried_as_the_policy_says(ledger: Ledger) -> None:
    claim, token = waiting(ledger)
    answer = complete(claim, token, outcome="failed", error={"type": "NoFunds", "message": "none left"})
    assert answer.json()["state"] == "delayed"
    live = LiveRun.objects.get()
    assert (live.state, live.callback_digest, live.worker) == (LiveState.DELAYED, None, None)
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.error_type, attempt.error_line) == ("failed", "NoFunds", "none left")


def test_a_failure_may_say_when_to_try_again(ledger: Ledger) -> None:
    claim, token = waiting(ledger)
    complete(claim, token, outcome="failed", error="later", retry_after=600)
    live = LiveRun.objects.get()
    assert live.wake_at is not None and live.wake_at - now() > timedelta(seconds=500)


def test_a_permanent_failure_is_the_end(ledger: Ledger) -> None:
    claim, token = waiting(ledger)
    answer = complete(claim, token, outcome="failed", error={"class": "permanent", "message": "gone"})
    assert answer.json()["state"] == "dead"
    assert Run.objects.get().error_class == "permanent"


def test_the_next_attempt_has_a_token_of_its_own_and_ends_with_its_own_log(ledger: Ledger) -> None:
    claim, token = waiting(ledger, log=LogPointer("first", 1, 1))
    complete(claim, token, outcome="failed", error="once more", retry_after=0)
    LiveRun.objects.update(state="ready", wake_at=None)
    LiveRun.objects.update(state="queued", queued_at=now())
    job = Job.objects.get()
    again = claim_next(ledger, job, known=["kind:http"])
    assert again is not None and again.claim_seq == 2
    refusal(complete(again, token, result=1), 409)
    assert LiveRun.objects.get().state == LiveState.RUNNING
    tell(ledger, again, succeeded(), SUCCESS)
    assert Run.objects.get().log_object == ""


def test_secrets_the_target_was_called_with_are_masked(ledger: Ledger) -> None:
    headers = {"Authorization": "Bearer ${secret:HOOK_KEY}", "X-Api-Key": "written-here"}
    job = make_job(spec={"target": {**TARGET, "headers": headers}, "target_key": "kind:http"})
    tenant_secrets.create_secret(job.tenant, {"name": "HOOK_KEY", "value": "sk_live_12345"})
    claim, token = waiting(ledger, job)
    answer = complete(claim, token, result={"called_with": ["Bearer sk_live_12345", "written-here"]})
    assert answer.status_code == 200
    assert Run.objects.get().result == {"called_with": ["*** ***", "***"]}
    claim, token = waiting(ledger, job)
    complete(claim, token, outcome="failed", error={"message": "sk_live_12345 is wrong", "class": "user"})
    assert Run.objects.get(state="dead").error_line == "*** is wrong"


def test_reported_again_in_the_same_words_it_is_answered_the_same(ledger: Ledger) -> None:
    claim, token = waiting(ledger)
    first = complete(claim, token, result={"a": 1, "b": 2})
    again = complete(claim, token, result={"b": 2, "a": 1})
    assert (again.status_code, again.json()) == (200, first.json())
    problem = refusal(complete(claim, token, result={"a": 2}), 409)
    assert problem["code"] == "callback_over"
    assert Run.objects.get().result == {"a": 1, "b": 2}


def test_a_callback_may_be_faster_than_the_report(ledger: Ledger) -> None:
    claim = claimed(ledger)
    token = token_of(claim.token, claim.run_id, claim.claim_seq)
    assert complete(claim, token).json()["state"] == "succeeded"
    assert Run.objects.get().ended_from == "running"
    outcome = accepted(claim)
    tell(ledger, claim, outcome, verdict_on(outcome, 1, claim.retry))
    assert Run.objects.get().state == "succeeded" and not LiveRun.objects.exists()


def test_a_report_sent_twice_is_heard_once(ledger: Ledger) -> None:
    claim, token = waiting(ledger, seconds=3600.0)
    before = LiveRun.objects.get().wake_at
    outcome = accepted(claim)
    assert tell(ledger, claim, outcome, verdict_on(outcome, 1, claim.retry)) == "waiting_callback"
    assert LiveRun.objects.get().wake_at == before


def test_a_worker_cannot_end_what_waits(ledger: Ledger) -> None:
    """Its process may be killed after the report arrived, and its guard then reports a loss."""
    claim, token = waiting(ledger)
    assert tell(ledger, claim, failed(), verdict_on(failed(), 1, claim.retry)) is None
    assert tell(ledger, claim, succeeded(), SUCCESS) is None
    back = given_back(claim)
    assert tell(ledger, claim, back.outcome, back.verdict) is None
    with_digest = replace(back.outcome, callback_digest=digest_of(token))
    assert tell(ledger, claim, with_digest, back.verdict) == "waiting_callback"
    assert LiveRun.objects.get().state == LiveState.WAITING_CALLBACK


@pytest.mark.parametrize("token", ["", "bkc_", "bkc_" + "A" * 43, "x" * 5000, "ü", "0" * 64])
def test_a_wrong_token_learns_nothing(token: str, ledger: Ledger) -> None:
    claim, _ = waiting(ledger)
    wrong = refusal(complete(claim, token), 401)
    nowhere = refusal(complete(replace(claim, run_id=uuid4()), token), 401)
    assert wrong.pop("request_id") != nowhere.pop("request_id")
    assert wrong == nowhere
    assert LiveRun.objects.get().state == LiveState.WAITING_CALLBACK


def test_a_tenant_s_key_completes_nothing(ledger: Ledger) -> None:
    claim, _ = waiting(ledger)
    run = Run.objects.get()
    answer = Caller(run.job.tenant).post(f"runs/{claim.run_id}/complete", {"outcome": "succeeded"})
    refusal(answer, 401)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"outcome": "maybe"}, "outcome"),
        ({"outcome": None}, "outcome"),
        ({"state": "succeeded"}, "state"),
        ({"error": "x"}, "error"),
        ({"retry_after": 1}, "retry_after"),
        ({"outcome": "failed", "result": 1}, "result"),
        ({"outcome": "failed", "error": 7}, "error"),
        ({"outcome": "failed", "error": {"class": "worker_lost"}}, "error.class"),
        ({"outcome": "failed", "error": {"type": "x" * 201}}, "error.type"),
        ({"outcome": "failed", "retry_after": -1}, "retry_after"),
        ({"outcome": "failed", "retry_after": True}, "retry_after"),
        ({"result": "x" * 20_000}, "result"),
    ],
)
def test_what_is_no_outcome_is_refused(ledger: Ledger, body: dict[str, Any], field: str) -> None:
    claim, token = waiting(ledger)
    refusal(complete(claim, token, **body), 400, field)
    assert LiveRun.objects.get().state == LiveState.WAITING_CALLBACK


def test_an_address_that_is_no_run_is_answered_like_a_run_that_is_not_there() -> None:
    body = json.dumps({"outcome": "succeeded"})
    answer = Client().post("/api/v1/runs/nonsense/complete", body, content_type="application/json")
    assert "Beatkeeper-Callback-Token" in refusal(answer, 401)["hint"]
    assert answer["WWW-Authenticate"].startswith("Bearer ")


def test_a_deadline_that_is_missed_ends_the_attempt(ledger: Ledger) -> None:
    claim, token = waiting(ledger)
    assert give_up() == 0
    make_overdue()
    assert give_up() == 1
    live = LiveRun.objects.get()
    assert (live.state, live.attempt, live.losses) == (LiveState.DELAYED, 1, 0)
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.error_type) == ("timeout", "CallbackTimeout")
    assert attempt.error_line == "No callback came within PT1H."
    problem = refusal(complete(claim, token), 409)
    assert "timeout" in problem["detail"]


def test_the_last_deadline_that_is_missed_is_the_end(ledger: Ledger) -> None:
    job = make_job(
        spec={"target": TARGET, "target_key": "kind:http", "retry": {"max_attempts": 1}}, max_concurrency=1
    )
    waiting(ledger, job)
    held = make_run(job, LiveState.BLOCKED, reason="concurrency")
    make_overdue()
    assert give_up() == 1
    assert Run.objects.get(state="dead").error_class == "timeout"
    assert LiveRun.objects.get().pk == held.pk and LiveRun.objects.get().state == LiveState.READY


def test_a_cancel_ends_what_waits_at_once(ledger: Ledger) -> None:
    claim, token = waiting(ledger, log=LogPointer("there", 3, 4))
    run = services.cancel_run(Run.objects.get(), "not needed")
    assert (run.state, run.ended_from, run.reason) == (
        "cancelled",
        "waiting_callback",
        "cancelled: not needed",
    )
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.next_state, attempt.number) == ("cancelled", "cancelled", 1)
    assert attempt.worker == claim.incarnation
    problem = refusal(complete(claim, token), 409)
    assert "cancelled" in problem["detail"]


def test_accepted_after_a_cancel_was_asked_is_cancelled(ledger: Ledger) -> None:
    claim = claimed(ledger)
    services.cancel_run(Run.objects.get(), "not needed")
    outcome = accepted(claim)
    assert tell(ledger, claim, outcome, verdict_on(outcome, 1, claim.retry)) == "cancelled"


def test_what_waits_counts_for_the_job_s_limit(ledger: Ledger) -> None:
    job = make_job(spec={"target": TARGET, "target_key": "kind:http"}, max_concurrency=1)
    claim, token = waiting(ledger, job)
    held = make_run(job, LiveState.BLOCKED, reason="concurrency")
    complete(claim, token)
    held.refresh_from_db()
    assert held.state == LiveState.READY


def test_the_api_and_the_page_show_that_it_waits(ledger: Ledger) -> None:
    claim, _ = waiting(ledger)
    run = Run.objects.select_related("live").get()
    caller = Caller(run.job.tenant)
    shown = caller.get(f"runs/{claim.run_id}").json()
    assert shown["state"] == "waiting_callback" and shown["callback_expires_at"]
    assert "to report the outcome" in shown["reason_text"]
    [attempt] = caller.get(f"runs/{claim.run_id}/attempts").json()["results"]
    assert (attempt["state"], attempt["number"], attempt["finished_at"]) == ("waiting_callback", 1, None)
    assert "waiting callback" in attempt_rows(run)[0]["outcome"] and "until" in reason_of(run)


def test_a_lost_worker_does_not_lose_what_waits(ledger: Ledger) -> None:
    """It has let go of it."""
    waiting(ledger)
    job = Job.objects.get()
    make_worker(job.pool)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE beatkeeper_worker_node SET state = 'lost'")
    for name in ("claims_of_lost_workers", "unlisted_claims", "overdue_claims"):
        assert rows(connection.connection, name, {"most": 10, "now": now() + timedelta(days=1)}) == []
