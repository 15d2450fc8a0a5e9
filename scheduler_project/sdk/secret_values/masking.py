"""Mask secrets in texts, as they are and in the forms in which programs write them into a text."""

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
MIN_SECRET = 4
# Each line of a secret of several lines is masked alone: that is how it appears in a log.
MIN_PART = 8
# The beginning of a secret that is masked where a text was cut off.
MIN_BEGINNING = 6
# Forms are grouped by their first characters.
HEAD = 4
# Characters that programs escape by number in JSON although they need not, and how they write a slash.
JSON_WRITERS = (
    ("", "/"),
    # PHP, plain and in Symfony and Laravel.
    ("", "\\/"),
    ("\"&'<>", "\\/"),
    # Go and Rails, Jinja, Gson, .NET.
    ("&<>", "/"),
    ("&'<>", "/"),
    ("&'<=>", "/"),
    ("\"&'+<>`", "/"),
    # All of them together.
    ("&'+/<=>", "/"),
)
JSON_NUMBERS = ("\\u{:04x}", "\\u{:04X}")
JSON_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
# Characters that stay unquoted in a URL: in its path and elsewhere, by JavaScript's encodeURIComponent and encodeURI,
# by Go's PathEscape, in forms as browsers and Java write them, and by .NET.
URL_SAFE = ("/", "", "!'()*", "!#$&'()*+,/:;=?@", "$&+:=@", "*", "!()*")


class Masker:
    """Mask longer forms first, so that nothing of one is left around a shorter one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= MIN_SECRET for form in forms_of(secret)}
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
        """Mask the text and cut it to the length, without the beginning of a secret at its end."""
        text = self(text)
        return text if len(text) <= length else self.without_beginning(text[:length])

    def without_beginning(self, text: str) -> str:
        """Mask the piece of a secret at the end of a text that was cut off."""
        end = text[-MIN_BEGINNING:]
        longest = max((_overlap(text, form) for form in self._forms if end in form), default=0)
        return text[: len(text) - longest] + MASK if longest else text

    def cut(self, text: str) -> int:
        """Return where a text that goes on may be cut without cutting through a secret."""
        at = max(0, len(text) - max(0, self.longest - 1))
        if self._forms:
            for found in self._pattern.finditer(text):
                if found.start() < at < found.end():
                    return found.end()
        return at

    def value(self, value: Any) -> Any:
        """Mask what JSON can hold, names and numbers included."""
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
    """Match any of the forms, in their order where they begin alike.

    Their common beginning is matched once: most forms of a secret share it, and almost no text has it.
    """
    alike: dict[str, list[str]] = {}
    for form in forms:
        alike.setdefault(form[:HEAD], []).append(re.escape(form[HEAD:]))
    return re.compile("|".join(f"{re.escape(head)}(?:{'|'.join(ends)})" for head, ends in alike.items()))


def unmasked(text: str) -> str:
    return text


Mask = Callable[[str], str]


def forms_of(secret: str) -> Iterator[str]:
    parts = [line.strip() for line in secret.splitlines() if len(line.strip()) >= MIN_PART]
    for text in {secret, *parts}:
        yield text
        # As JSON, as Python's repr of text and of bytes, and as HTML.
        yield from _in_json(text)
        yield repr(text)[1:-1]
        yield repr(text.encode("utf-8", "surrogatepass"))[2:-1]
        yield html.escape(text)
        yield from _url_encoded(text)
    data = secret.encode("utf-8", "surrogatepass")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        # The characters that depend on the secret alone, for each of three alignments, and at the end of a text.
        for before in range(3):
            encoded = encode(b"\0" * before + data).decode()
            first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
            yield encoded[first:last]
            yield encoded[first:].rstrip("=")


def _in_json(text: str) -> Iterator[str]:
    """Yield it with characters beyond ASCII as they are and by number, with the numbers in either case."""
    plain, in_ascii = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    for written in {plain, in_ascii, JSON_ESCAPE.sub(_in_capitals, in_ascii)}:
        for characters, slash in JSON_WRITERS:
            for number in JSON_NUMBERS:
                yield _numbered(written, characters, slash, number)


def _in_capitals(escape: re.Match[str]) -> str:
    return "\\u" + escape[0][2:].upper() if escape[0].startswith("\\u") else escape[0]


def _numbered(written: str, characters: str, slash: str, number: str) -> str:
    """Escape characters by number in a text that is JSON already, where a quotation mark has a backslash."""
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


def _overlap(text: str, form: str) -> int:
    """Return how much of the form's beginning stands at the end of the text."""
    for length in range(min(len(form) - 1, len(text)), MIN_BEGINNING - 1, -1):
        if text.endswith(form[:length]):
            return length
    return 0


_in_use: dict[int, Masker] = {}


@contextlib.contextmanager
def in_use(masker: Masker) -> Iterator[None]:
    """Mask what this process sends to Sentry while a body has the secrets."""
    _in_use[id(masker)] = masker
    try:
        yield
    finally:
        del _in_use[id(masker)]


def masked_event(event: Any, hint: Any = None) -> Any:
    """Mask an event; `sentry_sdk.init(before_send=…, before_breadcrumb=…)` calls it, in code bases too."""
    for masker in list(_in_use.values()):
        event = masker.value(event)
    return event
