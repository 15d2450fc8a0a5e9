"""Masks secrets before an entry is written: an entry can never be corrected."""

import re
from typing import Any

MASK = "•••"
# Anywhere in a name: PGPASSWORD and ACCESSTOKEN have no word of their own.
PARTS = (
    "password|passwd|passphrase|secret|token(?!i[sz])|credential|authorization|"
    "api[._-]?key|access[._-]?key|private[._-]?key"
)
# Whole words only, or `monkey` would be a secret; `sshKey` and `SSH_KEY` both hold the word.
WORDS = "auth|bearer|cookies?|dsn|jwt|key|pass|pwd|session|signature"
SECRET_NAME = re.compile(rf"{PARTS}|(?:^|[^a-z])(?:{WORDS})(?:[^a-z]|$)", re.IGNORECASE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
ASSIGNMENT = re.compile(r"(-{0,2}[A-Za-z][\w.-]*)=(.*)", re.DOTALL)
LOGIN = re.compile(r"(?<=://)[^/\s?#]*@")
# `name=value`, `Name: value` or `"name": "value"` inside a text. A name begins where a word does, or a long text
# would be read once from each of its characters; a host with its port is no pair.
PAIR = re.compile(r"(?<![\w.@-])(?<!//)(?P<name>[\w.-]+)[\"']?[ \t]*(?P<sign>[:=])(?!//)[ \t]*")
QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
LINE = re.compile(rf"{QUOTED}|[^\r\n]*")
WORD = re.compile(rf"{QUOTED}|\S*")
QUERY_VALUE = re.compile(rf"{QUOTED}|[^\s&#]*")


def redact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mask(item) if is_secret(str(name)) else redact(item) for name, item in value.items()}
    if isinstance(value, list):
        return _redact_list(value)
    return _redact_text(value) if isinstance(value, str) else value


def is_secret(name: str) -> bool:
    return bool(SECRET_NAME.search(CAMEL.sub("_", name)))


def _mask(value: Any) -> Any:
    return value if value is None or isinstance(value, bool) else MASK


def _redact_list(items: list[Any]) -> list[Any]:
    """Also an argument list: `--token abc` keeps the name and loses the value."""
    redacted, follows_secret = [], False
    for item in items:
        plain = isinstance(item, str)
        redacted.append(MASK if plain and follows_secret and not item.startswith("-") else redact(item))
        follows_secret = plain and item.startswith("-") and "=" not in item and is_secret(item)
    return redacted


def _redact_text(text: str) -> str:
    whole = ASSIGNMENT.fullmatch(text)
    if whole and is_secret(whole[1]):
        return f"{whole[1]}={MASK}"
    return _mask_pairs(LOGIN.sub(f"{MASK}@", text))


def _mask_pairs(text: str) -> str:
    word = QUERY_VALUE if "://" in text else WORD
    masked, done = "", 0
    for pair in PAIR.finditer(text):
        if pair.start() < done or not is_secret(pair["name"]):
            continue
        value = (LINE if pair["sign"] == ":" else word).match(text, pair.end())
        if value and value[0]:
            masked += text[done : pair.end()] + MASK
            done = value.end()
    return masked + text[done:]
