"""Read and check an HTTP target. runs/targets/http/call.py makes the call."""

import re
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlsplit

from jobs.spec.targets.kind import TargetKind
from jobs.validation import durations
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, whole_number
from jobs.validation.schema import STRINGS, duration, number, obj, optional, text

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
ANY_SUCCESS = [200, 201, 202, 204]
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
# A job that set these could reach another host than the one checked, or smuggle in a second request.
CONNECTION_HEADERS = (
    *("host", "content-length", "transfer-encoding", "te", "trailer"),
    *("connection", "keep-alive", "upgrade", "expect"),
)
CONNECTION_PREFIX = "proxy-"
# The platform sends these to the receiver.
PLATFORM_HEADERS = ("idempotency-key", "traceparent")
PLATFORM_PREFIX = "beatkeeper-"
SECRET_NAME = re.compile(r"(?:\$\{secret:)?([A-Za-z_][A-Za-z0-9_]{0,59})\}?")
MAX_REDIRECTS = 10
# The code of what only reading a URL shows, beyond its pattern.
NOT_A_URL = "not_a_url"
MIN_TIMEOUT, MAX_TIMEOUT = timedelta(seconds=1), timedelta(days=30)


HEADERS = {
    "type": "object",
    "propertyNames": {"pattern": f"^{HEADER_NAME.pattern}$"},
    "additionalProperties": text(pattern="^[ -~]*$"),
}


class HttpKind(TargetKind):
    name = "http"
    properties = {
        "method": text(enum=list(METHODS)),
        "url": text(
            "ASCII: other characters are percent-encoded, those of the host in Punycode.",
            format="http-url",
            maxLength=2000,
            pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[!-\[\]-~]+$",
            example="https://shop.example.com/reports",
        ),
        "headers": HEADERS,
        "body": {"description": "Any JSON.", "nullable": True},
        "expect": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": number(minimum=200, maximum=599),
            "default": ANY_SUCCESS,
        },
        "timeout": optional(
            duration("Of the call with its redirects; the run's own still holds.", MIN_TIMEOUT, MAX_TIMEOUT)
        ),
        "redirects": optional(
            number(
                "How many are followed. Another host gets neither the job's headers nor its signature nor a body.",
                minimum=0,
                maximum=MAX_REDIRECTS,
                default=0,
            )
        ),
        "sign": optional(
            obj(
                {
                    "secret": text(
                        "Name of the secret that holds the key; two keys, a line each, while it rotates.",
                        pattern=f"^{SECRET_NAME.pattern}$",
                        example="HOOK_KEY",
                    )
                },
                required=("secret",),
                title="Signing",
                description="Adds the header Beatkeeper-Signature.",
            )
        ),
        "callback": optional(
            obj(
                {"timeout": duration("How long the outcome may take.", MIN_TIMEOUT, MAX_TIMEOUT)},
                required=("timeout",),
                title="Callback",
                description="An answer 202 means that the outcome follows by `POST …/runs/{id}/complete`.",
            )
        ),
    }
    input_properties = {
        "body": {"description": "Any JSON, instead of the job's body.", "nullable": True},
        "query": {
            **STRINGS,
            "description": "Added to the URL's query, instead of parameters of the same name.",
        },
        "headers": {**HEADERS, "description": "Added to the job's, instead of those of the same name."},
    }
    required = ("url",)
    may_lack = ("timeout", "redirects", "sign", "callback")
    example = '{"kind": "http", "url": "https://…", "method": "POST", "headers": {}, "body": {}}'
    executor = "runs.targets.http.call.execute"

    def read(self, given: Json) -> Json:
        method = given.get("method", "POST" if given.get("body") is not None else "GET")
        if not isinstance(method, str) or method.upper() not in METHODS:
            hint = f"one of {', '.join(METHODS)}"
            raise invalid("target.method", f"{abbreviate(method)} is not a method", hint)
        optional = {name: OPTIONAL[name](given[name]) for name in OPTIONAL if given.get(name) is not None}
        return {
            "method": method.upper(),
            "url": _read_url(given.get("url")),
            "headers": _read_headers(given.get("headers", {}), "target.headers"),
            "body": given.get("body"),
            "expect": _read_expect(given.get("expect", ANY_SUCCESS)),
            **optional,
        }

    def check_input(self, given: Json, target: Json) -> None:
        method = target.get("method")
        if given.get("body") is not None and target.get("body") is None and method in ("GET", "HEAD"):
            detail = f"the job's method is {method}, which sends no body"
            raise invalid("input.body", detail, "leave it out, or give the job the method POST")
        for name, value in expect_object(given.get("query", {}), "input.query").items():
            if not isinstance(value, str):
                where = f"input.query.{name[:60]}"
                raise invalid(where, f"{abbreviate(value)} is not a string", "every value is a string")
        _read_headers(given.get("headers", {}), "input.headers")

    def recipient(self, target: Json) -> object:
        return urlsplit(str(target.get("url")))[:2]


def is_connection_header(name: str) -> bool:
    """Test whether the connection itself sets this header."""
    return name.lower() in CONNECTION_HEADERS or name.lower().startswith(CONNECTION_PREFIX)


def is_platform_header(name: str) -> bool:
    """Test whether the platform sends this header to the receiver."""
    return name.lower() in PLATFORM_HEADERS or name.lower().startswith(PLATFORM_PREFIX)


def _read_url(value: object) -> str:
    hint = "an absolute http or https URL"
    if not isinstance(value, str) or not 1 <= len(value) <= 2000:
        raise invalid("target.url", f"{abbreviate(value)} is not a URL", hint)
    try:
        parts = urlsplit(value)
        host, _port, login = parts.hostname, parts.port, parts.username or parts.password
    except ValueError as error:
        raise invalid("target.url", f"{value[:60]} is not a URL: {error}", hint, NOT_A_URL) from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise invalid("target.url", f"{value[:60]} is not an http or https URL", hint, NOT_A_URL)
    if login:
        hint = "use an Authorization header instead"
        raise invalid("target.url", "the URL holds a login", hint, NOT_A_URL)
    if "\\" in value:
        raise invalid("target.url", "the URL holds a backslash", "write %5C, or / between its parts")
    if any(character.isspace() or not character.isprintable() for character in value):
        raise invalid("target.url", "the URL holds white space", "write %20 for a space")
    if not value.isascii():
        hint = "write the host in Punycode (xn--…), and other characters as %…"
        raise invalid("target.url", "the URL holds characters that are not ASCII", hint)
    return value


def _read_headers(value: object, field: str) -> dict[str, str]:
    headers = expect_object(value, field)
    for name, given in headers.items():
        where = f"{field}.{name[:60]}"
        if not HEADER_NAME.fullmatch(name):
            detail = f"{abbreviate(name)} is not the name of a header"
            raise invalid(where, detail, "letters, digits and hyphens")
        if is_connection_header(name) or is_platform_header(name):
            raise invalid(where, f"{name} is set by the call itself", "leave it out", "reserved_name")
        if not isinstance(given, str) or not given.isascii() or not (given.isprintable() or given == ""):
            detail = f"{abbreviate(given)} is not the value of a header"
            raise invalid(where, detail, "one line of ASCII text")
    return headers


def _read_expect(value: object) -> list[int]:
    listed_codes = isinstance(value, list) and 1 <= len(value) <= 100
    if not listed_codes or not all(_is_status(code) for code in value):  # type: ignore[attr-defined]
        detail = f"{abbreviate(value)} is not a list of HTTP statuses"
        raise invalid("target.expect", detail, "such as [200, 204]")
    return [int(code) for code in value]  # type: ignore[attr-defined]


def _is_status(code: object) -> bool:
    return isinstance(code, int | float) and not isinstance(code, bool) and code in range(200, 600)


def _read_timeout(value: object, field: str = "target.timeout") -> str:
    return durations.as_text(durations.read(value, field, MIN_TIMEOUT, MAX_TIMEOUT))


def _read_sign(value: object) -> Json:
    given = expect_object(value, "target.sign", ("secret",))
    name = given.get("secret")
    found = SECRET_NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        # Not echoed: it may be the key itself.
        hint = "such as HOOK_KEY; the key is kept there"
        raise invalid("target.sign.secret", "it is not the name of a secret", hint)
    return {"secret": f"${{secret:{found[1]}}}"}


def _read_callback(value: object) -> Json:
    given = expect_object(value, "target.callback", ("timeout",))
    if "timeout" not in given:
        raise invalid("target.callback.timeout", "timeout is required", "such as PT1H", "required")
    return {"timeout": _read_timeout(given["timeout"], "target.callback.timeout")}


OPTIONAL: dict[str, Callable[[object], object]] = {
    "timeout": _read_timeout,
    "redirects": lambda value: whole_number(value, "target.redirects", 0, MAX_REDIRECTS),
    "sign": _read_sign,
    "callback": _read_callback,
}
