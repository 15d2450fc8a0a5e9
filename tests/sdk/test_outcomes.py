from datetime import datetime, timezone

import pytest

from scheduler_project.sdk.outcomes import (
    CANCELLED,
    PERMANENT,
    TIMEOUT,
    TRANSIENT,
    USER,
    BadArguments,
    PermanentError,
    RunCancelled,
    TimeLimitReached,
    UnknownTarget,
    as_stopped,
    classify,
    failure,
    fingerprint,
    first_line,
    stated_failure,
)

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), TRANSIENT),
        (TypeError("a body's own"), TRANSIENT),
        (SystemExit(1), TRANSIENT),
        (PermanentError("x"), PERMANENT),
        (BadArguments("x"), USER),
        (UnknownTarget("x"), USER),
        (TimeLimitReached("x"), TIMEOUT),
        (RunCancelled("x"), CANCELLED),
    ],
)
def test_the_class_follows_the_exception(error: BaseException, expected: str) -> None:
    assert classify(error) == expected


def raised(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def raised_elsewhere(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_the_fingerprint_ignores_numbers_and_addresses() -> None:
    assert fingerprint(raised("row 17 at 0x7f01")) == fingerprint(raised("row 18 at 0x7f99"))


def test_the_fingerprint_distinguishes_place_and_message() -> None:
    assert fingerprint(raised("one")) != fingerprint(raised("two"))
    assert fingerprint(raised("one")) != fingerprint(raised_elsewhere("one"))


def test_the_first_line_is_short_and_without_nul() -> None:
    assert first_line("\n  one\x00two  \nthree") == "onetwo"
    assert len(first_line("x" * 5_000)) == 500
    assert first_line("") == ""


def test_an_error_line_the_database_cannot_store_is_made_storable() -> None:
    line = failure(ValueError("bad \ud800 text"), AT, AT).error_line or ""
    assert line.encode()


def test_our_own_errors_are_named_without_their_module() -> None:
    assert failure(PermanentError("never"), AT, AT).error_type == "PermanentError"
    assert failure(ValueError("x"), AT, AT).error_type == "ValueError"


def test_what_a_stopped_body_raised_does_not_matter() -> None:
    outcome = failure(ValueError("cleaning up failed"), AT, AT)
    assert as_stopped(outcome, TIMEOUT, 5).error_class == TIMEOUT
    assert as_stopped(outcome, CANCELLED, 5).error_class == CANCELLED
    assert as_stopped(outcome, "", 5) is outcome


def test_stated_failures_of_one_kind_share_a_fingerprint() -> None:
    first = stated_failure(TRANSIENT, "exit 3", "made 17 of 20", AT, AT)
    second = stated_failure(TRANSIENT, "exit 3", "made 18 of 20", AT, AT)
    assert first.fingerprint == second.fingerprint


def test_the_type_is_cut_to_what_the_ledger_keeps() -> None:
    """A refused report would be taken for a lost worker, and the body run again."""
    kind = type("E" * 300, (Exception,), {})
    assert len(failure(kind("x"), AT, AT).error_type or "") == 200
