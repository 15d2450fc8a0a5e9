"""A run whose target answered 202 waits for its outcome, which whoever has the attempt's token brings.

The end of such an attempt is a report like a worker's: the same statement, fenced by claim_seq and the digest of the
token. So of two callbacks, of a callback and a deadline, or of a callback and a cancel, one ends the attempt, and the
other is told what became of it. A callback may also be faster than the report of the 202: that then finds the
attempt over, which is a normal answer.
"""

import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from django.db import connection as django_connection

from jobs.input_checks import Json, expect_object, refuse_unknown, refused, shown
from jobs.models import JobVersion
from jobs.refusals import Conflict, Missing
from runs.ledger_here import LedgerHere
from runs.models import Attempt, LiveRun
from runs.queries import Connection, rows
from runs.states import LiveState
from scheduler_project.sdk.callbacks import digest_of, token_of
from scheduler_project.sdk.capture import secrets_in
from scheduler_project.sdk.claim_details import claim_of
from scheduler_project.sdk.execute import MAX_RESULT
from scheduler_project.sdk.ledger import Claim, Ended
from scheduler_project.sdk.masking import Masker
from scheduler_project.sdk.outcomes import (
    PERMANENT,
    SUCCEEDED,
    TIMEOUT,
    TRANSIENT,
    USER,
    Outcome,
    now_utc,
    stated_failure,
)
from scheduler_project.sdk.retries import classified, decide

logger = logging.getLogger(__name__)

OUTCOMES = ("succeeded", "failed")
CLASSES = (TRANSIENT, PERMANENT, USER)
LONGEST_ERROR = 2000
LONGEST_RETRY_AFTER = 7 * 86_400
NOBODY = "0" * 64


class CallbackOver(Conflict):
    """The run no longer waits for this callback."""

    code = "callback_over"


class Unawaited(Missing):
    """There is no run here that this token may complete."""


@dataclass(frozen=True)
class Content:
    """What a callback says, and by what its repetition is known."""

    outcome: Outcome
    digest: str
    given: Json


class Awaiting(NamedTuple):
    """A run that may be completed: by whom, and what its end needs."""

    claim: Claim
    digest: str


def complete(run: UUID, token: str, data: object) -> Json:
    """Ends the attempt that the token is good for. The same content again gets the same answer."""
    content = read_content(data)
    digest = digest_of(token)
    awaiting = _awaiting(run, digest)
    if awaiting is not None:
        django_connection.ensure_connection()
        ledger = LedgerHere(django_connection.connection)
        outcome = masked_content(content, ledger.with_secrets(awaiting.claim)).outcome
        outcome = replace(outcome, callback_digest=digest, callback_content=content.digest)
        outcome = classified(outcome, awaiting.claim.retry)
        verdict = decide(outcome, awaiting.claim.attempt, awaiting.claim.retry, losses=awaiting.claim.losses)
        ledger.report([Ended(awaiting.claim, outcome, verdict)])
    return _became(run, digest, content)


def read_content(data: object) -> Content:
    given = expect_object(data, "")
    refuse_unknown(given, ("outcome", "result", "error", "retry_after"), "")
    if given.get("outcome") not in OUTCOMES:
        said = shown(given.get("outcome"))
        raise refused("outcome", f"{said} is not an outcome", f"one of {', '.join(OUTCOMES)}")
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    now = now_utc()
    if given["outcome"] == SUCCEEDED:
        for name in ("error", "retry_after"):
            if given.get(name) is not None:
                raise refused(name, f"a success has no {name}", "leave it out")
        return Content(Outcome(SUCCEEDED, now, now, result=_read_result(given.get("result"))), digest, given)
    if given.get("result") is not None:
        raise refused("result", "a failure has no result", "say what went wrong in `error`")
    error_class, error_type, line = _read_error(given.get("error"))
    delay = _read_retry_after(given.get("retry_after"))
    return Content(stated_failure(error_class, error_type, line, now, now, retry_after=delay), digest, given)


def masked_content(content: Content, claim: Claim) -> Content:
    """The target knows the secrets it was called with, and may say them again."""
    masked = Masker([*secrets_in(claim.target), *claim.secrets.values()])
    if not masked:
        return content
    given = {**content.given, "result": masked.value(content.given.get("result"))}
    error = content.given.get("error")
    if isinstance(error, str):
        given["error"] = masked(error)
    elif isinstance(error, dict):
        given["error"] = {name: text if name == "class" else masked(text) for name, text in error.items()}
    return read_content(given)


def _read_result(value: Any) -> Any:
    size = len(json.dumps(value))
    if size > MAX_RESULT:
        hint = "store large data elsewhere and pass a reference to it"
        raise refused("result", f"{size} bytes are over the limit of {MAX_RESULT}", hint, "too_large")
    return value


def _read_error(value: object) -> tuple[str, str, str]:
    """A text, or an object with class, type and message."""
    if value is None or isinstance(value, str):
        value = {"message": value or "The target told that it failed."}
    given = expect_object(value, "error")
    refuse_unknown(given, ("class", "type", "message"), "error")
    error_class = given.get("class", TRANSIENT)
    if error_class not in CLASSES:
        raise refused("error.class", f"{shown(error_class)} is not a class", f"one of {', '.join(CLASSES)}")
    texts = {"type": given.get("type", "CallbackFailed"), "message": given.get("message", "")}
    for name, most in (("type", 200), ("message", LONGEST_ERROR)):
        if not isinstance(texts[name], str) or len(texts[name]) > most:
            raise refused(
                f"error.{name}", f"{shown(texts[name])} is not its {name}", f"at most {most} characters"
            )
    return error_class, texts["type"] or "CallbackFailed", texts["message"]


def _read_retry_after(value: object) -> float | None:
    if value is None:
        return None
    seconds = isinstance(value, int | float) and not isinstance(value, bool)
    if not seconds or not 0 <= value <= LONGEST_RETRY_AFTER:  # type: ignore[operator]
        hint = f"seconds, from 0 to {LONGEST_RETRY_AFTER}"
        raise refused("retry_after", f"{shown(value)} is not a delay", hint)
    return float(value)  # type: ignore[arg-type]


def _awaiting(run: UUID, digest: str) -> Awaiting | None:
    """None: no live attempt of the run has this token. As much is done for a run that is not there."""
    live = LiveRun.objects.filter(pk=run, state__in=(LiveState.RUNNING, LiveState.WAITING_CALLBACK)).first()
    if not hmac.compare_digest(_expected(live), digest) or live is None or live.worker is None:
        return None
    spec = JobVersion.objects.get(job=live.job_id, version=live.version)
    claim = claim_for(
        run=live.run_id,
        seq=live.claim_seq,
        worker=live.worker,
        attempt=live.attempt,
        losses=live.losses,
        job=live.job_id,
        gated=live.gated,
        retry=spec.retry,
    )
    return Awaiting(replace(claim, tenant_id=live.tenant_id, target=spec.target, input=live.input), digest)


def _expected(live: LiveRun | None) -> str:
    if live is None:
        return NOBODY
    if live.state == LiveState.RUNNING and live.claim_token is not None:
        return digest_of(token_of(live.claim_token, live.run_id, live.claim_seq))
    return live.callback_digest or NOBODY


def claim_for(
    *,
    run: UUID,
    seq: int,
    worker: UUID,
    attempt: int,
    losses: int,
    job: UUID,
    gated: bool,
    retry: dict[str, Any],
) -> Claim:
    """As much of it as its end needs."""
    nowhere: dict[str, Any] = {"version": 0, "tenant_id": 0, "tenant": "", "timeout": 0.0}
    ids = {"run_id": str(run), "token": str(run), "incarnation": str(worker), "job_id": str(job)}
    numbers = {"claim_seq": seq, "attempt": attempt, "losses": losses, "gated": gated, "retry": retry}
    return claim_of({**nowhere, **ids, **numbers})


def _became(run: UUID, digest: str, content: Content) -> Json:
    """What the attempt of this token came to, if this content is what ended it."""
    for attempt in _attempts_of(run):
        if not hmac.compare_digest(attempt.callback_digest or NOBODY, digest):
            continue
        if attempt.callback_content == content.digest:
            return {"run": str(run), "attempt": attempt.number, "state": attempt.next_state}
        how = (
            "was completed with another content" if attempt.callback_content else f"ended: {attempt.outcome}"
        )
        raise CallbackOver(f"the attempt {how}", hint="what ended once is never changed")
    raise Unawaited


def _attempts_of(run: UUID) -> Iterator[Attempt]:
    """Its ids lie beside that of the run, so one partition is looked at."""
    first, beyond = UUID(int=run.int >> 80 << 80), UUID(int=((run.int >> 80) + 1) << 80)
    found = Attempt.objects.filter(run_id=run, id__gte=first, id__lt=beyond)
    yield from found.filter(callback_digest__isnull=False).order_by("-claim_seq")


def give_up(connection: Connection, now: datetime, most: int) -> int:
    """The attempts whose callback did not come in time end like one that ran into its time limit."""
    ended = [
        _missed(Overdue(*row), now)
        for row in rows(connection, "overdue_callbacks", {"now": now, "most": most})
    ]
    ledger, given_up = LedgerHere(connection), 0
    for one in ended:
        try:
            [state] = ledger.report([one]).states
        except psycopg.errors.LockNotAvailable:
            # Somebody has the gate of its job; we come again.
            continue
        if state is not None:
            logger.warning("run %s got no callback in time and is %s", one.claim.run_id, state)
            given_up += 1
    return given_up


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


def _missed(overdue: Overdue, now: datetime) -> Ended:
    retry = json.loads(overdue.retry)
    claim = claim_for(
        run=overdue.run,
        seq=overdue.seq,
        worker=overdue.worker,
        attempt=overdue.attempt,
        losses=overdue.losses,
        job=overdue.job,
        gated=overdue.gated,
        retry=retry,
    )
    within = f" within {overdue.patience}" if overdue.patience else ""
    outcome = stated_failure(TIMEOUT, "CallbackTimeout", f"No callback came{within}.", now, now)
    outcome = classified(outcome, retry)
    verdict = decide(outcome, overdue.attempt, retry, losses=overdue.losses)
    return Ended(claim, replace(outcome, callback_digest=overdue.digest), verdict)
