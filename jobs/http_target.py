"""An HTTP target as a team writes it down. Making the call is runs/targets/http.py."""

import re
from datetime import timedelta
from urllib.parse import urlsplit

from jobs import durations
from jobs.input_checks import Json, expect_object, refuse_unknown, refused, shown, whole_number

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
ANY_SUCCESS = [200, 201, 202, 204]
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
# Who else could set them would speak to another host than was checked, or slip in a second request.
OWN_HEADERS = (
    "host",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "connection",
    "keep-alive",
    "upgrade",
    "expect",
)
OWN_PREFIX = "proxy-"
# What the platform tells the receiver.
TOLD_HEADERS = ("idempotency-key", "traceparent")
TOLD_PREFIX = "beatkeeper-"
SECRET_NAME = re.compile(r"(?:\$\{secret:)?([A-Za-z_][A-Za-z0-9_]{0,59})\}?")
MOST_REDIRECTS = 10
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(days=30)
OPTIONAL = ("timeout", "redirects", "sign", "callback")


def read_http(given: Json) -> Json:
    refuse_unknown(given, ("kind", "method", "url", "headers", "body", "expect", *OPTIONAL), "target")
    method = given.get("method", "POST" if given.get("body") is not None else "GET")
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise refused("target.method", f"{shown(method)} is not a method", f"one of {', '.join(METHODS)}")
    optional = {name: READERS[name](given[name]) for name in OPTIONAL if given.get(name) is not None}
    return {
        "method": method.upper(),
        "url": _read_url(given.get("url")),
        "headers": _read_headers(given.get("headers", {})),
        "body": given.get("body"),
        "expect": _read_expect(given.get("expect", ANY_SUCCESS)),
        **optional,
    }


def is_own_header(name: str) -> bool:
    """Of the connection itself."""
    return name.lower() in OWN_HEADERS or name.lower().startswith(OWN_PREFIX)


def is_told_header(name: str) -> bool:
    return name.lower() in TOLD_HEADERS or name.lower().startswith(TOLD_PREFIX)


def _read_url(value: object) -> str:
    hint = "an absolute http or https URL"
    if not isinstance(value, str) or not 1 <= len(value) <= 2000:
        raise refused("target.url", f"{shown(value)} is not a URL", hint)
    try:
        parts = urlsplit(value)
        host, _port, login = parts.hostname, parts.port, parts.username or parts.password
    except ValueError as error:
        raise refused("target.url", f"{value[:60]} is not a URL: {error}", hint) from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise refused("target.url", f"{value[:60]} is not an http or https URL", hint)
    if login:
        raise refused("target.url", "the URL holds a login", "use an Authorization header instead")
    if "\\" in value:
        raise refused("target.url", "the URL holds a backslash", "write %5C, or / between its parts")
    if any(character.isspace() or not character.isprintable() for character in value):
        raise refused("target.url", "the URL holds white space", "write %20 for a space")
    return value


def _read_headers(value: object) -> dict[str, str]:
    headers = expect_object(value, "target.headers")
    for name, text in headers.items():
        where = f"target.headers.{name[:60]}"
        if not HEADER_NAME.fullmatch(name):
            raise refused(where, f"{shown(name)} is not the name of a header", "letters, digits and hyphens")
        if is_own_header(name) or is_told_header(name):
            raise refused(where, f"{name} is set by the call itself", "leave it out")
        if not isinstance(text, str) or not text.isascii() or not (text.isprintable() or text == ""):
            raise refused(where, f"{shown(text)} is not the value of a header", "one line of ASCII text")
    return headers


def _read_expect(value: object) -> list[int]:
    listed_codes = isinstance(value, list) and 1 <= len(value) <= 100
    if not listed_codes or not all(_is_status(code) for code in value):  # type: ignore[attr-defined]
        raise refused("target.expect", f"{shown(value)} is not a list of HTTP statuses", "such as [200, 204]")
    return list(value)  # type: ignore[call-overload, no-any-return]


def _is_status(code: object) -> bool:
    return isinstance(code, int) and not isinstance(code, bool) and 200 <= code <= 599


def _read_timeout(value: object) -> str:
    return durations.as_text(durations.read(value, "target.timeout", SHORTEST, LONGEST))


def _read_redirects(value: object) -> int:
    return whole_number(value, "target.redirects", 0, MOST_REDIRECTS)


def _read_sign(value: object) -> Json:
    given = expect_object(value, "target.sign")
    refuse_unknown(given, ("secret",), "target.sign")
    name = given.get("secret")
    found = SECRET_NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        # Not echoed: it may be the key itself.
        raise refused(
            "target.sign.secret", "it is not the name of a secret", "such as HOOK_KEY; the key is kept there"
        )
    return {"secret": f"${{secret:{found[1]}}}"}


def _read_callback(value: object) -> Json:
    given = expect_object(value, "target.callback")
    refuse_unknown(given, ("timeout",), "target.callback")
    if "timeout" not in given:
        raise refused("target.callback.timeout", "timeout is required", "such as PT1H", "required")
    length = durations.read(given["timeout"], "target.callback.timeout", SHORTEST, LONGEST)
    return {"timeout": durations.as_text(length)}


READERS = {
    "timeout": _read_timeout,
    "redirects": _read_redirects,
    "sign": _read_sign,
    "callback": _read_callback,
}
