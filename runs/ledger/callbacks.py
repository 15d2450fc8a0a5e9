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
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from jobs.errors import Conflict, Missing
from jobs.models import JobVersion
from jobs.validation.checks import Json, abbreviate, expect_object, invalid
from runs import history
from runs.events import CallbacksMissed, emit
from runs.ledger.local import LocalLedger
from runs.models import LiveRun
from runs.sql import Connection, django_session, rows
from runs.states import LiveState
from scheduler_project.sdk import outcomes
from scheduler_project.sdk.execution.attempt import MAX_RESULT
from scheduler_project.sdk.ledger.callback_token import digest_of, token_of
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim
from scheduler_project.sdk.retries import classified, verdict_on
from scheduler_project.sdk.secret_values.masking import Masker
from scheduler_project.sdk.secret_values.names import secret_values_of
from scheduler_project.sdk.shared.claim_record import unpack_claim

OUTCOMES = ("succeeded", "failed")
CLASSES = (outcomes.TRANSIENT, outcomes.PERMANENT, outcomes.USER)
MAX_ERROR_LENGTH = 2000
MAX_RETRY_AFTER = 7 * 86_400
NOBODY = "0" * 64


class CallbackOver(Conflict):
    """The run no longer waits for this callback."""

    code = "callback_over"


class Unawaited(Missing):
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
        outcome = masked_content(content, ledger.with_secrets(claim)).outcome
        outcome = replace(outcome, callback_digest=digest, callback_content=content.digest)
        outcome = classified(outcome, claim.retry)
        verdict = verdict_on(outcome, claim.attempt, claim.retry, losses=claim.losses)
        ledger.report([CompletedClaim(claim, outcome, verdict)])
    return _became(run, digest, content)


def read_content(data: object) -> Content:
    given = expect_object(data, "", ("outcome", "result", "error", "retry_after"))
    if given.get("outcome") not in OUTCOMES:
        said = abbreviate(given.get("outcome"))
        raise invalid("outcome", f"{said} is not an outcome", f"one of {', '.join(OUTCOMES)}")
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
    masked = Masker([*secret_values_of(claim.target), *claim.secrets.values()])
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
    tries = (live.attempt, live.losses)
    claim = claim_for(live.run_id, live.claim_seq, live.worker, *tries, live.job_id, live.gated, spec.retry)
    return replace(claim, tenant_id=live.tenant_id, target=spec.target, input=live.input)


def claim_for(
    run: UUID, seq: int, worker: UUID, attempt: int, losses: int, job: UUID, gated: bool, retry: Json
) -> Claim:
    """Build as much of a claim as its end needs."""
    nowhere: dict[str, Any] = {"version": 0, "tenant_id": 0, "tenant": "", "timeout": 0.0}
    ids = {"run_id": str(run), "token": str(run), "incarnation": str(worker), "job_id": str(job)}
    numbers = {"claim_seq": seq, "attempt": attempt, "losses": losses, "gated": gated, "retry": retry}
    return unpack_claim({**nowhere, **ids, **numbers})


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
    raise Unawaited


def give_up(connection: Connection, now: datetime, most: int) -> int:
    """End attempts whose callback did not come in time, like those that ran into their time limit."""
    overdue = rows(connection, "overdue_callbacks", {"now": now, "most": most})
    ended = [_missed(Overdue(*row), now) for row in overdue]
    ledger, given_up = LocalLedger(connection), dict[UUID, str]()
    for one in ended:
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


class Overdue(NamedTuple):
    run: UUID
    seq: int
    worker: UUID
    attempt: int
    losses: int
    job: UUID
    gated: bool
    digest: str
    retry: str
    patience: str | None


def _missed(overdue: Overdue, now: datetime) -> CompletedClaim:
    retry = json.loads(overdue.retry)
    claim = claim_for(*overdue[:7], retry)
    line = f"No callback came within {overdue.patience}." if overdue.patience else "No callback came."
    outcome = outcomes.stated_failure(outcomes.TIMEOUT, "CallbackTimeout", line, now, now)
    outcome = classified(outcome, retry)
    verdict = verdict_on(outcome, overdue.attempt, retry, losses=overdue.losses)
    return CompletedClaim(claim, replace(outcome, callback_digest=overdue.digest), verdict)
