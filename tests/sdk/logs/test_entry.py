"""Attacks what a line of a log may hold: nothing in it acts on a terminal or a page, and nothing of it is lost."""

import json
import logging
from typing import Any

import pytest

from scheduler_project.sdk.logs.entry import MAX_EXTRA, MAX_LINE, entry, extra_of, visible
from scheduler_project.sdk.secret_values.masking import Masker

COLOURED = "\x1b[1;31mred\x1b[0m and \x1b[38:5:200mpink\x1b[m"


def record(**extra: Any) -> logging.LogRecord:
    return logging.makeLogRecord(extra)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 漢字 🙂", "plain ünï 漢字 🙂"),
        (COLOURED, COLOURED),
        ("a\tb", "a\tb"),
        ("Traceback:\n  line", "Traceback:\n  line"),
        ("ends as on Windows\r", "ends as on Windows"),
        ("10 %\r20 %", "10 %\\r20 %"),
        ("bell \x07, null \x00, delete \x7f", "bell \\x07, null \\x00, delete \\x7f"),
        ("\x1b[2Jcleared", "\\x1b[2Jcleared"),
        ("\x1b]8;;https://evil.example\x07click", "\\x1b]8;;https://evil.example\\x07click"),
        ("\x9b31m", "\\x9b31m"),
        ("user \u202egnp.exe", "user \\u202egnp.exe"),
        ("\u2066isolate\u2069", "\\u2066isolate\\u2069"),
        ("half \ud83d of a pair", "half \N{REPLACEMENT CHARACTER} of a pair"),
        ("line\u2028separator", "line\\u2028separator"),
    ],
)
def test_what_would_act_on_a_terminal_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_line_is_one_line_of_json_with_its_number() -> None:
    written = entry(7, "log", "one\ntwo", "INFO", "app.pay", {"order": 5})
    assert written.endswith(b"\n") and written.count(b"\n") == 1
    line = json.loads(written)
    assert (line["n"], line["s"], line["l"], line["m"]) == (7, "log", "INFO", "one\ntwo")
    assert (line["g"], line["x"]) == ("app.pay", {"order": 5})


def test_a_print_has_neither_logger_nor_extra() -> None:
    assert set(json.loads(entry(1, "stdout", "hello", "", "", None))) == {"n", "t", "s", "l", "m"}


def test_what_every_record_has_is_no_extra() -> None:
    assert extra_of(record(msg="hello", message="hello", task_id="5", task_name="t"), Masker()) is None


def test_extra_is_what_json_can_hold() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd \x1b[2J>"

    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    extra = extra_of(
        record(order=5, nested={"a": [1, (2, None)], 3: True}, nan=float("nan"), odd=Odd(), broken=Broken()),
        Masker(),
    )
    assert extra is not None
    assert extra["order"] == 5
    assert extra["nested"] == {"a": [1, [2, None]], "3": True}
    assert extra["nan"] == "nan" and extra["odd"] == "<odd \\x1b[2J>"
    assert extra["broken"] == "a Broken that cannot be written"
    json.dumps(extra, allow_nan=False)


def test_a_value_that_holds_itself_ends_somewhere() -> None:
    round_: dict[str, Any] = {}
    round_["again"] = round_
    extra = extra_of(record(given=round_), Masker())
    assert "again" in json.dumps(extra) and len(json.dumps(extra)) < MAX_EXTRA


def test_extra_is_masked_in_names_and_values() -> None:
    extra = extra_of(record(**{"key s3cr3t": ["is s3cr3t", {"s3cr3t": 1}]}), Masker(["s3cr3t"]))
    assert extra == {"key ***": ["is ***", {"***": 1}]}


def test_extra_is_bounded_and_says_so() -> None:
    extra = extra_of(record(first=1, big="x" * 2 * MAX_EXTRA, last=2), Masker())
    assert extra == {"first": 1, "...": f"more than {MAX_EXTRA} bytes"}


def test_a_secret_is_masked_before_extra_is_cut() -> None:
    key = "\n".join(f"{number:02}" + "k" * 62 for number in range(80))
    extra = extra_of(record(key=key), Masker([key]))
    assert extra is not None and "kkk" not in json.dumps(extra)


def test_a_secret_with_control_characters_is_masked() -> None:
    assert extra_of(record(key="is p\x00q\rs3cr3t"), Masker(["p\x00q\rs3cr3t"])) == {"key": "is ***"}


def test_a_number_too_large_for_a_text_costs_nothing_else() -> None:
    extra = extra_of(record(first=1, n=10**5000), Masker())
    assert extra == {"first": 1, "n": "a int that cannot be written"}


def test_the_longest_line_is_bounded_in_bytes() -> None:
    for character in ("\N{PILE OF POO}", "\u202e", "\x07", '"', "\\"):
        assert len(entry(1, "stdout", character * MAX_LINE)) < 5 * MAX_LINE
