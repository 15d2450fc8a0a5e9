"""Compare an answer with its abbreviation on a page.

`…` stands for what is left out: any part of a text, any value, further members of an object, further items of a list,
further headers, lines of a text. All else is as shown.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

ETC = "…"
# What a bare … is read as, and no text on a page.
LEFT_OUT = "\ue000"
ABBREVIATED = re.compile(r'"(?:\\.|[^"\\])*"|:\s*(?P<value>…)|(?P<members>…)(?=\s*\})|(?P<items>…)(?=\s*\])')


def differences(language: str, shown: str, real: str) -> Iterator[str]:
    """Say where what was printed is not what the page shows."""
    if language == "json":
        yield from _json(shown, real)
    elif language == "http":
        yield from _http(shown, real)
    elif not _fits(shown.strip(), real.strip()):
        yield f"{shown.strip()!r} is shown"


def problem_status(language: str, shown: str) -> int | None:
    """Read the status of a refusal, if the page shows one."""
    if language == "http":
        status = int(shown.split()[1])
        return status if status >= 400 else None
    found = re.search(r'^\{.*"status": (4\d\d|5\d\d)\b', shown, re.DOTALL)
    return int(found[1]) if found and language == "json" else None


def read_abbreviated(shown: str) -> Any:
    def marked(found: re.Match[str]) -> str:
        if found["value"]:
            return f': "{LEFT_OUT}"'
        if found["members"]:
            return f'"{LEFT_OUT}": 0'
        return f'"{LEFT_OUT}"' if found["items"] else found[0]

    return json.loads(ABBREVIATED.sub(marked, shown))


def _json(shown: str, real: str) -> Iterator[str]:
    try:
        found = json.loads(real)
    except ValueError:
        yield "it is no JSON"
        return
    yield from _values(read_abbreviated(shown), found, "answer")


def _http(shown: str, real: str) -> Iterator[str]:
    (head, body), (real_head, real_body) = _parts(shown), _parts(real.replace("\r", ""))
    status, *headers = head.splitlines()
    if not _fits(status, real_head.splitlines()[0]):
        yield f"{status!r} is shown"
    for header in headers:
        if header != ETC and not any(_fits(header.lower(), line.lower()) for line in real_head.splitlines()):
            yield f"the header {header!r} is shown"
    if body:
        yield from _json(body, real_body) if body[0] in "{[" else differences("text", body, real_body)


def _parts(answer: str) -> tuple[str, str]:
    head, _, body = answer.strip().partition("\n\n")
    return head, body.strip()


def _values(shown: Any, real: Any, at: str) -> Iterator[str]:
    if shown == LEFT_OUT:
        return
    if isinstance(shown, dict) and isinstance(real, dict):
        yield from _members(shown, real, at)
    elif isinstance(shown, list) and isinstance(real, list):
        yield from _items(shown, real, at)
    elif isinstance(shown, str) and isinstance(real, str):
        if not _fits(shown, real):
            yield f"{at}: {shown!r} is shown, {real!r} was answered"
    elif shown != real or type(shown) is not type(real):
        yield f"{at}: {shown!r} is shown, {real!r} was answered"


def _members(shown: dict[str, Any], real: dict[str, Any], at: str) -> Iterator[str]:
    for name in sorted(real.keys() - shown.keys()) if LEFT_OUT not in shown else ():
        yield f"{at}.{name} is not shown"
    for name in sorted(shown.keys() - {LEFT_OUT}):
        if name in real:
            yield from _values(shown[name], real[name], f"{at}.{name}")
        else:
            yield f"{at}.{name} was not answered"


def _items(shown: list[Any], real: list[Any], at: str) -> Iterator[str]:
    more = shown[-1:] == [LEFT_OUT]
    items = shown[:-1] if more else shown
    if len(real) < len(items) or len(real) > len(items) and not more:
        yield f"{at}: {len(items)} items are shown, {len(real)} were answered"
    for number, (one, other) in enumerate(zip(items, real, strict=False)):
        yield from _values(one, other, f"{at}[{number}]")


def _fits(shown: str, real: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, shown.split(ETC))), real, re.DOTALL) is not None
