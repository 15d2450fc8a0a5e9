"""Reasons: each code is written once, fits its columns, and is the only one that SQL names."""

import re
from pathlib import Path

import pytest

from runs.models import LiveRun, MissedSpan, Queue
from runs.reasons import BLOCKED, MAX_REASON, Reason, code_of, describe
from runs.sql import SQL
from scheduler_project.sdk.ledger.postgres import SQL as LEDGER

# `reason = 'code'`, `reason IN ('code', …)`, and the branches of a CASE that a reason is set to.
NAMED = re.compile(
    r"reason\s*(?:=|<>)\s*'(\w*)'|reason IN \(([^)]*)\)|reason = CASE (.*?) END[,\s]", re.DOTALL
)
LITERAL = re.compile(r"(?:THEN|ELSE|^|,)\s*'([^']*)'")


def codes_in(sql: str) -> set[str]:
    found = set()
    for single, several, branches in NAMED.findall(sql):
        found |= {single} | set(LITERAL.findall(several)) | set(LITERAL.findall(branches))
    return found - {""}


def test_a_statement_names_its_codes() -> None:
    sql = (
        "WHERE reason = 'retry' OR live.reason IN ('paused', 'moved')"
        " SET reason = CASE WHEN x THEN 'a b' ELSE 'c' END,"
    )
    assert codes_in(sql) == {"retry", "paused", "moved", "a b", "c"}


def test_every_code_in_sql_is_a_reason() -> None:
    found = {code for sql in (SQL | LEDGER).values() for code in codes_in(sql)}
    assert {"concurrency", "breaker", "overlap", "worker_lost", "given_back"} <= found
    assert found <= set(Reason.values)


def test_no_phrase_is_left_in_sql() -> None:
    """A code has no blank; words for people are in runs/reasons.py alone."""
    words = {reason.label for reason in Reason}
    for folder in ("runs/sql", "scheduler_project/sdk"):
        for file in Path(folder).rglob("*.sql"):
            text = file.read_text()
            assert not [phrase for phrase in words if f"'{phrase}'" in text and " " in phrase], file


@pytest.mark.parametrize("model", [LiveRun, MissedSpan, Queue])
def test_a_code_fits_its_column(model: type) -> None:
    longest = model._meta.get_field("reason").max_length  # type: ignore[attr-defined]
    assert longest == MAX_REASON
    assert all(re.fullmatch(r"[a-z_]+", reason) and len(reason) <= longest for reason in Reason.values)


@pytest.mark.django_db
def test_partial_indexes_name_reasons() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexdef ~ 'reason.*='")
        found = {code for (text,) in cursor for code in re.findall(r"reason\)::text = '(\w+)'", text)}
    assert found == {Reason.CONCURRENCY}


def test_a_blocked_run_says_what_lets_it_go() -> None:
    assert all(Reason(reason).unblocked_by for reason in BLOCKED)


def test_a_note_follows_the_code() -> None:
    noted = Reason.BLACKOUT.with_words("year end: all banks")
    assert (noted, Reason.BLACKOUT.with_words("")) == ("blackout: year end: all banks", "blackout")
    assert (code_of(noted), code_of("retry"), code_of("")) == ("blackout", "retry", "")
    assert describe(noted) == "held by a blackout: year end: all banks"
    assert (describe(""), describe("unheard of")) == ("", "unheard of")
