"""Masks secrets before an entry is written: an entry can never be corrected."""

import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

MASK = "•••"
WORDS = (
    "auth|authorization|bearer|cookie|credential|credentials|dsn|key|apikey|passphrase|passwd|password|pwd|"
    "secret|secrets|session|signature|token|tokens"
)
# Whole words only, or `monkey` would be a secret; `apiKey` and `API_KEY` both hold the word.
SECRET_NAME = re.compile(rf"(?:^|[^a-z])(?:{WORDS})(?:[^a-z]|$)", re.IGNORECASE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
ASSIGNMENT = re.compile(r"(-{0,2}[A-Za-z][\w.-]*)=(.*)", re.DOTALL)


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
    if "://" in text:
        return _redact_url(text)
    named = ASSIGNMENT.fullmatch(text)
    return f"{named[1]}={MASK}" if named and is_secret(named[1]) else text


def _redact_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        host = parts.netloc.rpartition("@")
    except ValueError:
        return text
    netloc = f"{MASK}@{host[2]}" if host[1] else parts.netloc
    query = "&".join(_redact_text(pair) for pair in parts.query.split("&"))
    return urlunsplit(parts._replace(netloc=netloc, query=query))
