"""End runs whose target answered 202 by a callback with the attempt's token, or by its deadline.

The end of such an attempt is a report like a worker's: the same statement, fenced by claim_seq and the digest of the
token. So of two callbacks, of a callback and a deadline, or of a callback and a cancel, one ends the attempt, and the
other is answered what became of it. A callback may also be faster than the report of the 202: that then finds the
attempt over, which is a normal answer.
"""

import hashlib
import hmac
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from jobs.errors import Conflict, Unauthenticated
from jobs.models import JobVersion
from jobs.validation.checks import Json, abbreviate, expect_object, invalid
from runs import history
from runs.events import CallbacksMissed, emit
from runs.ledger.local import LocalLedger, worker_rows
from runs.models import LiveRun
from runs.sql import SQL, Connection, django_session
from runs.states import LiveState
from scheduler_project.sdk import outcomes
from scheduler_project.sdk.execution.attempt import MAX_RESULT
from scheduler_project.sdk.ids import EPOCH
from scheduler_project.sdk.ledger.callback_token import digest_of, token_of
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim
from scheduler_project.sdk.retries import classified, verdict_on
from scheduler_project.sdk.secret_values.masking import Masker
from scheduler_project.sdk.secret_values.names import secret_values_of

OUTCOMES = ("succeeded", "failed")
CLASSES = (outcomes.TRANSIENT, outcomes.PERMANENT, outcomes.USER)
MAX_ERROR_LENGTH = 2000
MAX_RETRY_AFTER = 7 * 86_400
NOBODY = "0" * 64


class CallbackOver(Conflict):
    """The run no longer waits for this callback."""

    code = "callback_over"


class Unawaited(Unauthenticated):
    """There is no run here that this token may complete."""


@dataclass(frozen=True)
class Content:
    """The outcome that a callback brings, and a digest by which its repetition is recognised."""

    outcome: outcomes.Outcome
    digest: str
    given: Json


def complete(run: UUID, token: str, data: object) -> Json:
    """End the attempt that the token is good for. The same content again gets the same answer."""
    content = read_content(data)
    digest = digest_of(token)
    claim = _awaiting(run, digest)
    if claim is not None:
        ledger = LocalLedger(django_session())
        [claim] = ledger.with_secrets([claim])
        outcome = masked_content(content, claim).outcome
        outcome = replace(outcome, callback_digest=digest, callback_content=content.digest)
        ledger.report([_decided(claim, outcome)])
    return _became(run, digest, content)


def read_content(data: object) -> Content:
    given = expect_object(data, "", ("outcome", "result", "error", "retry_after"))
    if given.get("outcome") not in OUTCOMES:
        wrong = f"{abbreviate(given.get('outcome'))} is not an outcome"
        raise invalid("outcome", wrong, f"one of {', '.join(OUTCOMES)}")
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    now = outcomes.now_utc()
    if given["outcome"] == outcomes.SUCCEEDED:
        for name in ("error", "retry_after"):
            if given.get(name) is not None:
                raise invalid(name, f"a success has no {name}", "leave it out")
        result = given.get("result")
        if (size := len(json.dumps(result))) > MAX_RESULT:
            hint = "store large data elsewhere and pass a reference to it"
            raise invalid("result", f"{size} bytes are over the limit of {MAX_RESULT}", hint, "too_large")
        return Content(outcomes.Outcome(outcomes.SUCCEEDED, now, now, result=result), digest, given)
    if given.get("result") is not None:
        raise invalid("result", "a failure has no result", "say what went wrong in `error`")
    error_class, error_type, line = _read_error(given.get("error"))
    delay = _read_retry_after(given.get("retry_after"))
    failure = outcomes.stated_failure(error_class, error_type, line, now, now)
    return Content(replace(failure, retry_after=delay), digest, given)


def masked_content(content: Content, claim: Claim) -> Content:
    """Redact the secrets that the target was called with: it may repeat them."""
    named = [*secret_values_of(claim.target), *secret_values_of(claim.input or {})]
    masked = Masker([*named, *claim.secrets.values()])
    if not masked:
        return content
    given = {**content.given, "result": masked.value(content.given.get("result"))}
    error = content.given.get("error")
    if isinstance(error, str):
        given["error"] = masked(error)
    elif isinstance(error, dict):
        given["error"] = {name: text if name == "class" else masked(text) for name, text in error.items()}
    return read_content(given)


def _read_error(value: object) -> tuple[str, str, str]:
    """Read a text, or an object with class, type and message."""
    if value is None or isinstance(value, str):
        value = {"message": value or "The target reported that it failed."}
    given = expect_object(value, "error", ("class", "type", "message"))
    error_class = given.get("class", outcomes.TRANSIENT)
    if error_class not in CLASSES:
        hint = f"one of {', '.join(CLASSES)}"
        raise invalid("error.class", f"{abbreviate(error_class)} is not a class", hint)
    texts = {"type": given.get("type", "CallbackFailed"), "message": given.get("message", "")}
    for name, most in (("type", 200), ("message", MAX_ERROR_LENGTH)):
        if not isinstance(texts[name], str) or len(texts[name]) > most:
            wrong = f"{abbreviate(texts[name])} is not its {name}"
            raise invalid(f"error.{name}", wrong, f"at most {most} characters")
    return error_class, texts["type"] or "CallbackFailed", texts["message"]


def _read_retry_after(value: object) -> float | None:
    if value is None:
        return None
    seconds = isinstance(value, int | float) and not isinstance(value, bool)
    if not seconds or not 0 <= value <= MAX_RETRY_AFTER:  # type: ignore[operator]
        hint = f"seconds, from 0 to {MAX_RETRY_AFTER}"
        raise invalid("retry_after", f"{abbreviate(value)} is not a delay", hint)
    return float(value)  # type: ignore[arg-type]


def _awaiting(run: UUID, digest: str) -> Claim | None:
    """Return the claim of the live attempt that has this token. An unknown run takes as long: timing tells nothing."""
    live = LiveRun.objects.filter(pk=run, state__in=(LiveState.RUNNING, LiveState.WAITING_CALLBACK)).first()
    expected = (live.callback_digest if live else None) or NOBODY
    if live is not None and live.state == LiveState.RUNNING and live.claim_token is not None:
        expected = digest_of(token_of(live.claim_token, live.run_id, live.claim_seq))
    if not hmac.compare_digest(expected, digest) or live is None or live.worker is None:
        return None
    spec = JobVersion.objects.get(job=live.job_id, version=live.version)
    kept = ("run_id", "claim_seq", "attempt", "losses", "job_id", "gated", "tenant_id", "input")
    known = {name: getattr(live, name) for name in kept}
    return claim_for(incarnation=live.worker, retry=spec.retry, target=spec.target, **known)


def claim_for(run_id: UUID, **known: Any) -> Claim:
    """Build a claim of which only what its end needs is known."""
    numbers = {"attempt": 0, "version": 0, "tenant_id": 0, "timeout": 0.0}
    texts = dict.fromkeys(("tenant", "job_name", "trigger"), "")
    instants = dict.fromkeys(("planned_at", "claimed_at"), EPOCH)
    unknown: Json = {"token": run_id, "target": {}, "input": None, "retry": {}, "allowed_hosts": []}
    return Claim(**{"run_id": run_id, **numbers, **texts, **instants, **unknown, **known})


def _decided(claim: Claim, outcome: outcomes.Outcome) -> CompletedClaim:
    outcome = classified(outcome, claim.retry)
    return CompletedClaim(
        claim, outcome, verdict_on(outcome, claim.attempt, claim.retry, losses=claim.losses)
    )


def _became(run: UUID, digest: str, content: Content) -> Json:
    """Answer what the attempt of this token came to, if this content is what ended it."""
    for attempt in reversed(history.attempts_of(run)):
        if not hmac.compare_digest(attempt.callback_digest or NOBODY, digest):
            continue
        if attempt.callback_content == content.digest:
            return {"run": str(run), "attempt": attempt.number, "state": attempt.next_state}
        other = "was completed with another content"
        how = other if attempt.callback_content else f"ended: {attempt.outcome}"
        raise CallbackOver(f"the attempt {how}", hint="what ended once is never changed")
    raise Unawaited(hint="send `Authorization: Bearer <Beatkeeper-Callback-Token>`, as the call had it")


def give_up(connection: Connection, now: datetime, most: int) -> int:
    """End attempts whose callback did not come in time, like those that ran into their time limit."""
    ledger, given_up = LocalLedger(connection), dict[UUID, str]()
    for one in overdue(connection, now, most):
        try:
            [state] = ledger.report([one]).states
        except psycopg.errors.LockNotAvailable:
            # Another process holds the gate of its job; the next pass retries.
            continue
        if state is not None:
            given_up[one.claim.run_id] = state
    if given_up:
        emit(CallbacksMissed(states=given_up))
    return len(given_up)


def overdue(connection: Connection, now: datetime, most: int) -> list[CompletedClaim]:
    """Find attempts whose callback did not come in time, and what becomes of their runs."""
    with worker_rows(connection) as session:
        found = session.execute(SQL["overdue_callbacks"], {"now": now, "most": most}).fetchall()
    return [_missed(now, **row) for row in found]


def _missed(now: datetime, digest: str, patience: str | None, **claimed: Any) -> CompletedClaim:
    line = f"No callback came within {patience}." if patience else "No callback came."
    outcome = outcomes.stated_failure(outcomes.TIMEOUT, "CallbackTimeout", line, now, now)
    ended = _decided(claim_for(**claimed), outcome)
    return replace(ended, outcome=replace(ended.outcome, callback_digest=digest))
