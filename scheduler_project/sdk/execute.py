"""One attempt: its log opened, its target called, and what came of it as an Outcome. Nothing is told here."""

from __future__ import annotations

import json
import logging
import signal
from dataclasses import replace
from datetime import datetime
from typing import Any

from .callbacks import digest_of, token_of
from .capture import AttemptLog, captured, secrets_in
from .hand import Hand
from .interrupts import Interrupts
from .ledger import Claim
from .log_store import LogStore
from .masking import Masker
from .outcomes import (
    SUCCEEDED,
    TRANSIENT,
    LogPointer,
    Outcome,
    as_stopped,
    failure,
    now_utc,
    stated_failure,
)
from .references import (
    LEAD,
    SecretMissing,
    SecretUnreadable,
    resolved,
    resolved_target,
    restored,
    strings_in,
)
from .retries import classified
from .targets import Attempt, RetryAfter, TargetFailed, Targets, WaitForCallback

logger = logging.getLogger(__name__)

# A cold shutdown, `revoke --terminate`.
TOLD_TO_END = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGINT, signal.SIGUSR2)
MAX_RESULT = 10_000
MAX_REPR = 1_000


def execute(
    claim: Claim, hand: Hand, targets: Targets, store: LogStore, interrupts: Interrupts, name: str
) -> Outcome:
    started_at = now_utc()
    try:
        given = with_secrets(claim)
    except (SecretMissing, SecretUnreadable) as error:
        return classified(failure(error, started_at, now_utc()), claim.retry)
    log = AttemptLog(store, claim.run_id, claim.claim_seq, mask=hidden(given))
    attempt = Attempt(given, hand, log, name)
    with captured(log):
        outcome = call(attempt, targets, interrupts, started_at)
    outcome = classified(as_stopped(outcome, hand.kill_reason, claim.timeout), claim.retry)
    return outcome if log.empty else replace(outcome, log=sealed(store, claim))


def with_secrets(claim: Claim) -> Claim:
    """With target and input as the body gets them. The claim that is reported keeps the references."""
    if claim.unreadable:
        raise SecretUnreadable(claim.unreadable)
    if not any(LEAD in text for text in strings_in([claim.target, claim.input])):
        return claim
    target = resolved_target(claim.target, claim.secrets)
    return replace(claim, target=target, input=resolved(claim.input, claim.secrets))


def hidden(claim: Claim) -> list[str]:
    """What a body is given and its log must not have. A call's far side may answer with the token it was told."""
    found = [*secrets_in(claim.target), *claim.secrets.values()]
    if claim.target.get("callback"):
        found.append(token_of(claim.token, claim.run_id, claim.claim_seq))
    return found


def call(attempt: Attempt, targets: Targets, interrupts: Interrupts, started_at: datetime) -> Outcome:
    """Everything a target can do to its caller becomes an outcome, SystemExit too. Whoever may read a run may read
    that, and not what its target hides."""
    masked = attempt.log.masked
    try:
        executor = targets.executor(str(attempt.target.get("kind")))
        result = interrupts.during(executor, attempt)
    except WaitForCallback as wait:
        digest = digest_of(attempt.callback_token)
        return Outcome(
            SUCCEEDED, started_at, now_utc(), callback_digest=digest, callback_timeout=wait.seconds
        )
    except TargetFailed as failed:
        return stated_failure(
            failed.error_class,
            failed.error_type,
            masked(failed.line),
            started_at,
            now_utc(),
            exit_code=failed.exit_code,
            retry_after=failed.retry_after,
        )
    except RetryAfter as retry:
        return failure(
            retry.cause,
            started_at,
            now_utc(),
            error_class=TRANSIENT,
            retry_after=retry.delay,
            next_input=masked.value(restored(retry.next_input, attempt.claim.secrets)),
            masked=masked,
        )
    except BaseException as error:
        if ends_process(error):
            raise
        return failure(error, started_at, now_utc(), masked=masked)
    return Outcome(SUCCEEDED, started_at, now_utc(), result=storable(result, masked))


def ends_process(error: BaseException) -> bool:
    """A pool's child was told to end: its handler of the signal raises the number as an exit code. That is no outcome
    of the body, which might well be tried again in the same child; the guard tells what became of it."""
    if not isinstance(error, SystemExit) or not isinstance(error.code, int):
        return False
    return error.code in {number - 256 for number in TOLD_TO_END}


def sealed(store: LogStore, claim: Claim) -> LogPointer | None:
    """A log that cannot be stored costs the log, not the result."""
    try:
        return store.seal(claim.run_id, claim.claim_seq, claim.tenant, claim.incarnation)
    except OSError:
        logger.exception("The log of run %s cannot be stored", claim.run_id)
        return None


def storable(result: Any, masked: Masker) -> Any:
    """What PostgreSQL takes as jsonb and is small; anything else by its repr."""
    if result is None:
        return None
    try:
        text = json.dumps(result, allow_nan=False)
        json.dumps(result, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return described(result, masked)
    if len(text) > MAX_RESULT or "\\u0000" in text:
        return described(result, masked)
    return masked.value(json.loads(text))


def described(result: Any, masked: Masker) -> dict[str, str]:
    try:
        text = repr(result)
    except Exception:
        text = object.__repr__(result)
    clean = text.replace("\x00", "").encode("utf-8", "backslashreplace").decode()
    return {"repr": masked.shortened(clean, MAX_REPR)}
