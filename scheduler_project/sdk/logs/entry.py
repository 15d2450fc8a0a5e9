"""Write one line of a log as JSON, such that nothing in it acts on the terminal or page where a person reads it."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from ..outcomes import now_utc
from ..secret_values.masking import Masker

# Characters of a text, and bytes of what `extra` brings.
MAX_LINE = 64 * 1024
MAX_EXTRA = 4 * 1024
# What every record has and no body has written into it; and what formatters add, Celery's among them. The rest was
# given as `extra`.
PLAIN_RECORD = frozenset(vars(logging.makeLogRecord({}))) - {"stack_info"}
NOT_EXTRA = PLAIN_RECORD | {"stack_info", "message", "asctime", "taskName", "task_id", "task_name"}
# Colours and styles stay. Tabs do, and the ends of the lines of a traceback.
STYLE = r"\x1b\[[0-9;:]*m"
# Control characters, halves of surrogate pairs, ends of lines of Unicode, and what turns the direction of a text.
UNSAFE = re.compile(
    f"({STYLE})|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def entry(
    number: int, stream: str, text: str, level: str, logger: str, extra: Mapping[str, Any] | None
) -> bytes:
    """Return a line: its number in the attempt, time, stream, level and text, and what a log record has besides."""
    line: dict[str, Any] = {
        "n": number,
        "t": now_utc().isoformat(timespec="milliseconds"),
        "s": stream,
        "l": level,
        "m": visible(text),
    }
    if logger:
        line["g"] = visible(logger)
    if extra:
        line["x"] = extra
    return json.dumps(line).encode() + b"\n"


def visible(text: str) -> str:
    """Show what would act on a terminal or a page as an escape, and what is no character as its replacement."""
    text = text.removesuffix("\r")
    return UNSAFE.sub(_escaped, text) if UNSAFE.search(text) else text


def _escaped(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    character = found[0]
    if "\ud800" <= character <= "\udfff":
        return "\N{REPLACEMENT CHARACTER}"
    if unicodedata.category(character) == "Cc":
        return character.encode("unicode_escape").decode()
    return f"\\u{ord(character):04x}"


def extra_of(record: logging.LogRecord, masked: Masker) -> dict[str, Any] | None:
    """Return what was given as `extra`, as JSON can hold it, masked and bounded in size."""
    given = {name: value for name, value in vars(record).items() if name not in NOT_EXTRA}
    if not given:
        return None
    extra: dict[str, Any] = {}
    left = MAX_EXTRA
    for name, value in given.items():
        written = _plain(masked.value(_plain(value)))
        left -= len(name) + len(json.dumps(written))
        if left < 0:
            return {**extra, "...": f"more than {MAX_EXTRA} bytes"}
        extra[visible(masked(name))] = written
    return extra


def _plain(value: Any, depth: int = 0) -> Any:
    """Return the value if JSON can hold it, else its repr."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return visible(value[:MAX_EXTRA])
    if isinstance(value, float) and value - value == 0:
        return value
    if depth < 4 and isinstance(value, dict):
        return {visible(str(name)): _plain(item, depth + 1) for name, item in list(value.items())[:100]}
    if depth < 4 and isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value[:100]]
    try:
        return visible(repr(value)[:MAX_EXTRA])
    except Exception:
        return object.__repr__(value)
