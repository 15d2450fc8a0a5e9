"""One attempt: open its log, call its target, and return an Outcome. Nothing is reported here."""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..ledger.callback_token import digest_of, token_of
from ..ledger.interface import Claim
from ..logs.capture import AttemptLog, captured
from ..logs.store import LogStore
from ..outcomes import SUCCEEDED, TRANSIENT, Outcome, as_stopped, failure, now_utc, stated_failure
from ..retries import classified
from ..secret_values.masking import Masker
from ..secret_values.names import secret_values_of
from ..secret_values.references import (
    LEAD,
    SecretMissing,
    SecretUnreadable,
    resolved,
    resolved_target,
    strings_in,
    with_references,
)
from ..shared.folder import seal_log
from ..shared.owned_slot import OwnedSlot
from ..targets.registry import RetryAfter, TargetCall, TargetFailed, Targets, WaitForCallback
from .interrupts import Interrupts

# Sent by a cold shutdown and by `revoke --terminate`.
END_SIGNALS = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGINT, signal.SIGUSR2)
MAX_RESULT = 10_000
MAX_REPR = 1_000


def execute(
    claim: Claim, owned_slot: OwnedSlot, targets: Targets, store: LogStore, interrupts: Interrupts, name: str
) -> Outcome:
    started_at = now_utc()
    try:
        given = resolve_secrets(claim)
    except (SecretMissing, SecretUnreadable) as error:
        return classified(failure(error, started_at, now_utc()), claim.retry)
    log = AttemptLog(store, claim.run_id, claim.claim_seq, mask=values_to_mask(given))
    attempt = TargetCall(given, owned_slot, log, name)
    with captured(log):
        outcome = call(attempt, targets, interrupts, started_at)
    outcome = classified(as_stopped(outcome, owned_slot.kill_reason, claim.timeout), claim.retry)
    return outcome if log.empty else replace(outcome, log=seal_log(store, claim))


def resolve_secrets(claim: Claim) -> Claim:
    """Return the claim with target and input as the body gets them; the reported claim keeps the references."""
    if claim.unreadable:
        raise SecretUnreadable(claim.unreadable)
    if not any(LEAD in text for text in strings_in([claim.target, claim.input])):
        return claim
    target = resolved_target(claim.target, claim.secrets)
    return replace(claim, target=target, input=resolved(claim.input, claim.secrets))


def values_to_mask(claim: Claim) -> list[str]:
    """Collect the values that the body gets and its log must not show.

    An HTTP server may send back the callback token that it was given.
    """
    found = [*secret_values_of(claim.target), *secret_values_of(claim.input or {}), *claim.secrets.values()]
    if claim.target.get("callback"):
        found.append(token_of(claim.token, claim.run_id, claim.claim_seq))
    return found


def call(attempt: TargetCall, targets: Targets, interrupts: Interrupts, started_at: datetime) -> Outcome:
    """Turn everything a target can do to its caller into an outcome, SystemExit included.

    An outcome is masked: more people may read a run than the secrets of its target.
    """
    masked = attempt.log.masked
    try:
        executor = targets.executor(str(attempt.target.get("kind")))
        result = interrupts.during(executor, attempt)
    except WaitForCallback as wait:
        digest, now = digest_of(attempt.callback_token), now_utc()
        return Outcome(SUCCEEDED, started_at, now, callback_digest=digest, callback_timeout=wait.seconds)
    except TargetFailed as failed:
        line, now = masked(failed.line), now_utc()
        outcome = stated_failure(failed.error_class, failed.error_type, line, started_at, now)
        return replace(outcome, exit_code=failed.exit_code, retry_after=failed.retry_after)
    except RetryAfter as retry:
        outcome = failure(retry.cause, started_at, now_utc(), masked)
        given = masked.value(with_references(retry.next_input, attempt.claim.secrets))
        return replace(outcome, error_class=TRANSIENT, retry_after=retry.delay, next_input=given)
    except BaseException as error:
        if ends_process(error):
            raise
        return failure(error, started_at, now_utc(), masked)
    stored = storable_result(result, masked)
    return Outcome(SUCCEEDED, started_at, now_utc(), exit_code=attempt.exit_code, result=stored)


def ends_process(error: BaseException) -> bool:
    """Return whether a pool's child was signalled to end, by a handler that raises the signal's number as an exit code.

    That is no outcome of the body, which might be tried again in the same child; the guard reports it.
    """
    if not isinstance(error, SystemExit) or not isinstance(error.code, int):
        return False
    return error.code in {number - 256 for number in END_SIGNALS}


def storable_result(result: Any, masked: Masker) -> Any:
    """Return a result as it is if PostgreSQL takes it as jsonb and it is small, or else its repr."""
    if result is None:
        return None
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        text = json.dumps(result, allow_nan=False)
        json.dumps(result, ensure_ascii=False).encode()
        if len(text) <= MAX_RESULT and "\\u0000" not in text:
            return masked.value(json.loads(text))
    return describe_result(result, masked)


def describe_result(result: Any, masked: Masker) -> dict[str, str]:
    try:
        text = repr(result)
    except Exception:
        text = object.__repr__(result)
    clean = text.replace("\x00", "").encode("utf-8", "backslashreplace").decode()
    return {"repr": masked.shortened(clean, MAX_REPR)}
