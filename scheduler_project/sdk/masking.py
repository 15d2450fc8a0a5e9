"""Takes secrets out of texts: as they are, and as programs write them on their way into a text."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
SHORTEST_SECRET = 4
# Of a secret of several lines, each is masked alone: that is how they come into a log.
SHORTEST_PART = 8
# What is left of a secret where a text was cut off.
SHORTEST_BEGINNING = 6
# By which forms are told apart.
BEGINNING = 4
# What programs write by number in JSON beside what they must, and how a slash.
JSON_WRITERS = (
    ("", "/"),
    # PHP, by itself and in Symfony and Laravel.
    ("", "\\/"),
    ("\"&'<>", "\\/"),
    # Go and Rails, Jinja, Gson, .NET.
    ("&<>", "/"),
    ("&'<>", "/"),
    ("&'<=>", "/"),
    ("\"&'+<>`", "/"),
    # All that anybody does.
    ("&'+/<=>", "/"),
)
JSON_NUMBERS = ("\\u{:04x}", "\\u{:04X}")
JSON_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
# What stays as it is in a URL: in its path and elsewhere, after JavaScript's encodeURIComponent and encodeURI, after
# Go's PathEscape, in forms as browsers and Java write them, and .NET.
URL_SAFE = ("/", "", "!'()*", "!#$&'()*+,/:;=?@", "$&+:=@", "*", "!()*")


class Masker:
    """Masks longer forms first, so that none is left over around a shorter one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in forms_of(secret)}
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = pattern_of(self._forms)
        self.longest = len(self._forms[0]) if self._forms else 0

    def __repr__(self) -> str:
        return "Masker()"

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __call__(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._forms else text

    def shortened(self, text: str, length: int) -> str:
        """At most so much of it, and of no secret the beginning."""
        text = self(text)
        return text if len(text) <= length else self.without_beginning(text[:length])

    def without_beginning(self, text: str) -> str:
        """Of a text that was cut off: without the piece of a secret at its end."""
        end = text[-SHORTEST_BEGINNING:]
        longest = max((_overlap(text, form) for form in self._forms if end in form), default=0)
        return text[: len(text) - longest] + MASK if longest else text

    def cut(self, text: str) -> int:
        """Where a text that goes on may be cut, so that no secret is cut through."""
        at = max(0, len(text) - max(0, self.longest - 1))
        if self._forms:
            for found in self._pattern.finditer(text):
                if found.start() < at < found.end():
                    return found.end()
        return at

    def value(self, value: Any) -> Any:
        """Of what JSON can hold, also the names and the numbers."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self(str(name)): self.value(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return MASK if self(str(value)) != str(value) else value
        return value


def pattern_of(forms: Iterable[str]) -> re.Pattern[str]:
    """Any of them, the first of those that begin alike. Their beginning is looked at once: most forms of a secret
    share it, and almost no text has it."""
    alike: dict[str, list[str]] = {}
    for form in forms:
        alike.setdefault(form[:BEGINNING], []).append(re.escape(form[BEGINNING:]))
    return re.compile("|".join(f"{re.escape(head)}(?:{'|'.join(ends)})" for head, ends in alike.items()))


def unmasked(text: str) -> str:
    return text


Mask = Callable[[str], str]


def forms_of(secret: str) -> Iterator[str]:
    parts = [line.strip() for line in secret.splitlines() if len(line.strip()) >= SHORTEST_PART]
    for text in {secret, *parts}:
        yield text
        yield from _escaped(text)
        yield from _url_encoded(text)
    data = secret.encode("utf-8", "surrogatepass")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _base64(data, encode)


def _escaped(text: str) -> Iterator[str]:
    """As JSON, as Python's repr of a text and of bytes, as HTML."""
    yield from _in_json(text)
    yield repr(text)[1:-1]
    yield repr(text.encode("utf-8", "surrogatepass"))[2:-1]
    yield html.escape(text)


def _in_json(text: str) -> Iterator[str]:
    """Beyond ASCII as it is and by number, all numbers in either case."""
    plain, in_ascii = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    for written in {plain, in_ascii, JSON_ESCAPE.sub(_in_capitals, in_ascii)}:
        for characters, slash in JSON_WRITERS:
            for number in JSON_NUMBERS:
                yield _numbered(written, characters, slash, number)


def _in_capitals(escape: re.Match[str]) -> str:
    return "\\u" + escape[0][2:].upper() if escape[0].startswith("\\u") else escape[0]


def _numbered(written: str, characters: str, slash: str, number: str) -> str:
    """Of what is JSON already; a quotation mark in it has a backslash."""
    if '"' in characters:
        written = written.replace('\\"', number.format(ord('"')))
    numbers = {ord(character): number.format(ord(character)) for character in characters}
    return written.translate({ord("/"): slash, **numbers})


def _url_encoded(text: str) -> Iterator[str]:
    for encode in (quote, quote_plus):
        for safe in URL_SAFE:
            encoded = encode(text, safe=safe, errors="surrogatepass")
            for written in {encoded, encoded.replace("~", "%7E")}:
                yield written
                yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), written)


def _base64(data: bytes, encode: Callable[[bytes], bytes]) -> Iterator[str]:
    """Whatever stands before it: three alignments, of each the characters that are all the secret's.
    And those at the end of everything."""
    for before in range(3):
        encoded = encode(b"\0" * before + data).decode()
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        yield encoded[first:last]
        yield encoded[first:].rstrip("=")


def _overlap(text: str, form: str) -> int:
    """How much of the beginning of a form stands at the end of the text."""
    for length in range(min(len(form) - 1, len(text)), SHORTEST_BEGINNING - 1, -1):
        if text.endswith(form[:length]):
            return length
    return 0


_in_use: dict[int, Masker] = {}


@contextlib.contextmanager
def in_use(masker: Masker) -> Iterator[None]:
    """While a body has the secrets in its hands, what this process tells Sentry is masked too."""
    if not masker:
        yield
        return
    _in_use[id(masker)] = masker
    try:
        yield
    finally:
        del _in_use[id(masker)]


def masked_event(event: Any, hint: Any = None) -> Any:
    """For `sentry_sdk.init(before_send=…, before_breadcrumb=…)`, in a code base of one's own too."""
    for masker in list(_in_use.values()):
        event = masker.value(event)
    return event
