"""Write one line of a log as JSON, such that nothing in it acts on the terminal or page where a person reads it."""

from __future__ import annotations

import json
import logging
import math
import re
import unicodedata
from collections.abc import Mapping
from itertools import islice
from typing import Any

from ..outcomes import now_utc
from ..secret_values.masking import Masker

# Characters of a text, and bytes of what `extra` brings.
MAX_LINE = 64 * 1024
MAX_EXTRA = 4 * 1024
MAX_NAME = 200
# Of what is nested in it.
MAX_DEPTH, MAX_ITEMS = 3, 30
Extra = Mapping[str, Any] | None
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
    number: int, stream: str, text: str, level: str = "", logger: str = "", extra: Extra = None
) -> bytes:
    """Return a line: its number in the attempt, time, stream, level and text, and what a log record has besides."""
    line: dict[str, Any] = {
        "n": number,
        "t": now_utc().isoformat(timespec="milliseconds"),
        "s": stream,
        "l": level,
        # An escape is longer than what it stands for.
        "m": visible(text)[:MAX_LINE],
    }
    if logger:
        line["g"] = visible(logger)
    if extra:
        line["x"] = extra
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


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
    extra: dict[str, Any] = {}
    left = MAX_EXTRA
    for name, value in vars(record).items():
        if name in NOT_EXTRA:
            continue
        key = visible(masked.shortened(name, MAX_NAME))
        try:
            written = _plain(value, masked)
            size = len(key) + len(json.dumps(written))
        except Exception:
            # Whatever an object does when it is asked for its text: the record must not be lost.
            written = f"a {type(value).__name__} that cannot be written"
            size = len(key) + len(written)
        left -= size
        if left < 0:
            return {**extra, "...": f"more than {MAX_EXTRA} bytes"}
        extra[key] = written
    return extra or None


def _plain(value: Any, masked: Masker, depth: int = 0) -> Any:
    """Return the value if JSON can hold it, else its repr. It is masked as it is, then cut, then made visible."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return masked.value(value)
    if isinstance(value, str):
        return visible(masked.shortened(value, MAX_EXTRA))
    if depth < MAX_DEPTH and isinstance(value, dict):
        items = islice(value.items(), MAX_ITEMS)
        return {
            visible(masked.shortened(str(name), MAX_NAME)): _plain(item, masked, depth + 1)
            for name, item in items
        }
    if depth < MAX_DEPTH and isinstance(value, (list, tuple)):
        return [_plain(item, masked, depth + 1) for item in value[:MAX_ITEMS]]
    return visible(masked.shortened(repr(value), MAX_EXTRA))
