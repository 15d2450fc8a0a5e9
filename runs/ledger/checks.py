"""Check what a worker reports over the API, beyond what the wire format checks."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Sequence

from jobs.validation.checks import invalid, refuse_large
from runs.models import ErrorClass
from runs.states import FinalState, LiveState
from scheduler_project.sdk.ledger.interface import GIVEN_BACK, READY
from scheduler_project.sdk.ledger.wire import RunEnding
from scheduler_project.sdk.logs.open_files import MAX_BYTES
from scheduler_project.sdk.outcomes import FAILED, SUCCEEDED

# Lines that say what is missing come on top.
MAX_LOG = MAX_BYTES + 64 * 1024
MAX_CLAIM_SEQ = 2**31 - 1
MAX_DELAY = 31 * 86_400.0
DIGEST = re.compile("[0-9a-f]{64}")
FINGERPRINT = re.compile("[0-9a-f]{0,32}")
# What may become of a run, by what came of the attempt. The retry policy is the worker's to apply.
NEXT_STATES = {
    SUCCEEDED: (FinalState.SUCCEEDED, LiveState.WAITING_CALLBACK),
    FAILED: (FinalState.DEAD, LiveState.DELAYED),
    GIVEN_BACK: (READY,),
}


def read_member(text: str, field: str) -> bytes:
    try:
        member = base64.b64decode(text, validate=True)
    except ValueError:
        raise invalid(field, "is no base64") from None
    check_member(member, field)
    return member


def check_member(member: bytes, field: str) -> None:
    """Require one whole gzip member that unpacks to no more than a log may hold: readers unpack it."""
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        lines = unpacking.decompress(member, MAX_LOG + 1)
    except zlib.error:
        raise invalid(field, "is no gzip member") from None
    if len(lines) > MAX_LOG:
        raise invalid(field, f"unpacks to more than {MAX_LOG} bytes", code="too_large")
    if not unpacking.eof or unpacking.unused_data:
        raise invalid(field, "is not one whole gzip member")


def check_end(end: RunEnding, at: str) -> None:
    outcome, verdict = end.outcome, end.verdict
    if not 0 < end.claim_seq <= MAX_CLAIM_SEQ:
        raise invalid(f"{at}.claim_seq", f"{end.claim_seq} is out of range", code="out_of_range")
    if verdict.state not in NEXT_STATES.get(outcome.kind, ()):
        wrong = f"{verdict.state[:40]!r} does not follow {outcome.kind[:40]!r}"
        raise invalid(f"{at}.verdict.state", wrong, code="inconsistent")
    expect_between(0, verdict.delay, MAX_DELAY, f"{at}.verdict.delay", f"{verdict.delay:g} s is")
    if outcome.error_class is not None and outcome.error_class not in ErrorClass.values:
        raise invalid(f"{at}.outcome.error_class", f"{outcome.error_class[:40]!r} is no class of errors")
    if verdict.state == LiveState.WAITING_CALLBACK and not DIGEST.fullmatch(outcome.callback_digest or ""):
        raise invalid(
            f"{at}.outcome.callback_digest", "is no digest", "64 hexadecimal digits", "inconsistent"
        )
    if not FINGERPRINT.fullmatch(outcome.fingerprint or ""):
        raise invalid(f"{at}.outcome.fingerprint", "is no fingerprint", "up to 32 hexadecimal digits")
    for name in ("result", "next_input"):
        refuse_large(getattr(outcome, name, None), f"{at}.outcome.{name}")


def expect_between(least: float, given: float, most: float, field: str, words: str, hint: str = "") -> None:
    """Require a number within these bounds; `words` begin the refusal."""
    if not least <= given <= most:
        raise invalid(field, f"{words} out of range", hint or f"{least:g} to {most:g}", "out_of_range")


def refuse_many(field: str, values: Sequence[object], most: int) -> None:
    if len(values) > most:
        raise invalid(field, f"{len(values)} are over the limit of {most}", code="too_large")
