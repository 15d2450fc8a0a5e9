"""Mask secrets before an entry is written: an entry can never be corrected."""

import re
from typing import Any

from scheduler_project.sdk.secret_values.names import is_secret_name

MASK = "•••"
ASSIGNMENT = re.compile(r"(-{0,2}[A-Za-z][\w.-]*)=(.*)", re.DOTALL)
LOGIN = re.compile(r"(?<=://)[^/\s?#]*@")
# `name=value`, `Name: value` or `"name": "value"` inside a text. A name begins where a word does: from each character
# of a long text it would take quadratic time. A host with its port is no pair.
PAIR = re.compile(r"(?<![\w.@-])(?<!//)(?P<name>[\w.-]+)[\"']?[ \t]*(?P<sign>[:=])(?!//)[ \t]*")
QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
LINE = re.compile(rf"{QUOTED}|[^\r\n]*")
WORD = re.compile(rf"{QUOTED}|\S*")
QUERY_VALUE = re.compile(rf"{QUOTED}|[^\s&#]*")


def redact(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _mask(item) if is_secret_name(str(name)) else redact(item) for name, item in value.items()
        }
    if isinstance(value, list):
        return _redact_list(value)
    return _redact_text(value) if isinstance(value, str) else value


def _mask(value: Any) -> Any:
    return value if value is None or isinstance(value, bool) else MASK


def _redact_list(items: list[Any]) -> list[Any]:
    """Redact an argument list too: `--token abc` keeps the name and loses the value."""
    redacted, follows_secret = [], False
    for item in items:
        plain = isinstance(item, str)
        redacted.append(MASK if plain and follows_secret and not item.startswith("-") else redact(item))
        follows_secret = plain and item.startswith("-") and "=" not in item and is_secret_name(item)
    return redacted


def _redact_text(text: str) -> str:
    whole = ASSIGNMENT.fullmatch(text)
    if whole and is_secret_name(whole[1]):
        return f"{whole[1]}={MASK}"
    return _mask_pairs(LOGIN.sub(f"{MASK}@", text))


def _mask_pairs(text: str) -> str:
    word = QUERY_VALUE if "://" in text else WORD
    masked, done = "", 0
    for pair in PAIR.finditer(text):
        if pair.start() < done or not is_secret_name(pair["name"]):
            continue
        value = (LINE if pair["sign"] == ":" else word).match(text, pair.end())
        if value and value[0]:
            masked += text[done : pair.end()] + MASK
            done = value.end()
    return masked + text[done:]
