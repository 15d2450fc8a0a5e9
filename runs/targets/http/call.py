"""Execute an HTTP target: a request that cannot reach what only the worker should (`ssrf.py`)."""

import json
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from urllib.parse import quote, unquote_plus, urlencode, urlsplit

import httpcore
import httpx
from django.conf import settings

from jobs.spec.targets.http import (
    MAX_TIMEOUT,
    METHODS,
    MIN_TIMEOUT,
    HttpKind,
    is_connection_header,
    is_platform_header,
)
from jobs.validation import durations
from runs.targets.http.answer import beginning_of, judge, result_of
from runs.targets.http.signature import MAX_KEYS, SIGNATURE, keys_in, signature
from runs.targets.http.ssrf import CheckedAddresses
from scheduler_project.sdk.outcomes import PermanentError
from scheduler_project.sdk.targets.registry import TargetCall, WaitForCallback

CONNECT_TIMEOUT = 10.0
CALLBACK = "Beatkeeper-Callback"
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"([!-~]([ \t!-~]*[!-~])?)?")
# All that another host gets of the job's headers: they hold no credentials.
FOR_ANY_HOST = ("accept", "accept-language", "content-type", "user-agent")
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class SignedCall:
    """A request; `given` are the job's headers, `ours` the platform's, and `keys` sign it."""

    method: str
    url: str
    given: Mapping[str, str]
    ours: Mapping[str, str]
    body: bytes = b""
    keys: tuple[bytes, ...] = ()

    def headers(self) -> dict[str, str]:
        plain = {"User-Agent": "Beatkeeper", "Accept-Encoding": "gzip, deflate", **self.given, **self.ours}
        if self.keys:
            path = httpx.URL(self.url).raw_path.decode("ascii")
            plain[SIGNATURE] = signature(self.keys, int(time.time()), self.method, path, self.body)
        return plain


def execute(attempt: TargetCall) -> dict[str, Any]:
    target = attempt.target
    call, most = first_call(attempt), int(target.get("redirects") or 0)
    ends_at = time.monotonic() + seconds_for(attempt)
    for hops_left in range(most, -1, -1):
        answer, text = made(attempt, call, ends_at)
        if not hops_left or not answer.has_redirect_location:
            break
        call = redirected(call, answer.headers["location"], answer.status_code)
    judge(answer, target.get("expect"), most)
    if answer.status_code == httpx.codes.ACCEPTED and (patience := patience_of(target)):
        raise WaitForCallback(patience)
    return result_of(answer, text, attempt)


def patience_of(target: Mapping[str, Any]) -> float:
    """Return how long the outcome of an accepted call may take; 0 if there is no callback."""
    callback = target.get("callback")
    return seconds_of(callback["timeout"], "target.callback.timeout") if callback else 0.0


def seconds_of(given: Any, field: str) -> float:
    return durations.read(given, field, MIN_TIMEOUT, MAX_TIMEOUT).total_seconds()


def seconds_for(attempt: TargetCall) -> float:
    """Return the time limit of all hops together, never longer than the run's."""
    given = attempt.target.get("timeout")
    if given is None:
        return attempt.claim.timeout
    return min(seconds_of(given, "target.timeout"), attempt.claim.timeout)


def first_call(attempt: TargetCall) -> SignedCall:
    target, of_run = attempt.target, attempt.given(*HttpKind.input_properties)
    method, url = str(target.get("method", "POST")).upper(), str(target["url"])
    refuse_nonsense(method, url)
    url = with_query(url, of_run.get("query") or {})
    given = headers_given(replaced(target.get("headers") or {}, of_run.get("headers") or {}))
    body, kind = content_of(attempt)
    if kind and "content-type" not in (name.lower() for name in given):
        given["Content-Type"] = kind
    return SignedCall(method, url, given, own_headers(attempt), body, signing_keys(target.get("sign")))


def refuse_nonsense(method: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # Its message quotes what it could not read.
        raise PermanentError("The target's URL cannot be read") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise PermanentError(f"{without_secrets(url)} is neither http nor https")
    if parts.username or parts.password:
        raise PermanentError(f"The URL of {without_secrets(url)} holds a login")
    if method not in METHODS:
        raise PermanentError(f"{method[:20]!r} is not a method that a target may use")


def with_query(url: str, query: Mapping[str, str]) -> str:
    """Add parameters to a URL, in place of those of the same name; the others stay as they are written."""
    if not query:
        return url
    parts = urlsplit(url)
    kept = [
        pair for pair in parts.query.split("&") if pair and unquote_plus(pair.partition("=")[0]) not in query
    ]
    return parts._replace(query="&".join([*kept, urlencode(query, quote_via=quote, safe="")])).geturl()


def replaced(headers: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers with those of a run in place of the same ones, in whatever case they are written."""
    names = {name.lower() for name in by}
    return {**{name: value for name, value in headers.items() if name.lower() not in names}, **by}


def headers_given(headers: Mapping[str, Any]) -> dict[str, str]:
    given = {str(name): str(value) for name, value in headers.items()}
    for name, value in given.items():
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise PermanentError(f"The header {name!r} cannot be sent: its name or value is not HTTP")
        if is_connection_header(name):
            raise PermanentError(f"The header {name!r} is set by the call itself")
    return {name: value for name, value in given.items() if not is_platform_header(name)}


def own_headers(attempt: TargetCall) -> dict[str, str]:
    claim = attempt.claim
    ours = {
        "Idempotency-Key": str(claim.run_id),
        "Beatkeeper-Run": str(claim.run_id),
        "Beatkeeper-Attempt": str(claim.attempt),
    }
    if claim.traceparent:
        ours["traceparent"] = claim.traceparent
    if patience_of(attempt.target):
        ours[f"{CALLBACK}-Url"] = f"{settings.PUBLIC_URL}/api/v1/runs/{claim.run_id}/complete"
        ours[f"{CALLBACK}-Token"] = attempt.callback_token
    return ours


def content_of(attempt: TargetCall) -> tuple[bytes, str]:
    """Return the bytes that are sent and signed, and their content type."""
    body = attempt.input.get("body", attempt.target.get("body"))
    if body is None:
        return b"", ""
    if isinstance(body, str):
        return body.encode(), ""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(), "application/json"


def signing_keys(sign: Mapping[str, Any] | None) -> tuple[bytes, ...]:
    if not sign:
        return ()
    keys = keys_in(str(sign.get("secret", "")))
    if not 1 <= len(keys) <= MAX_KEYS:
        raise PermanentError(f"The signing secret holds {len(keys)} keys: one, or two during a rotation")
    if any(key.startswith(b"${secret:") for key in keys):
        raise PermanentError("The signing secret was not resolved: this worker is of an earlier release")
    return tuple(keys)


def made(attempt: TargetCall, call: SignedCall, ends_at: float) -> tuple[httpx.Response, str]:
    """Make one request with a client of its own, which keeps neither cookies nor a connection for the next.

    Return the response, which is closed, and the beginning of its body.
    """
    began = time.monotonic()
    try:
        with client(attempt.claim.allowed_hosts, ends_at) as http:
            with http.stream(call.method, call.url, headers=call.headers(), content=call.body) as answer:
                text = beginning_of(answer)
    except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeError):
        # Their messages may quote what they refuse, and that may be a secret.
        raise PermanentError("The request cannot be sent: its URL, method or headers are not HTTP") from None
    took = time.monotonic() - began
    line = f"{call.method} {without_secrets(call.url)} answered {answer.status_code} in {took:.3f} s"
    attempt.log.write("http", line)
    if text:
        attempt.log.write("http", text)
    return answer, text


def redirected(call: SignedCall, location: str, status: int) -> SignedCall:
    """Follow a redirect as a browser would, without what only the first host may have."""
    try:
        url = httpx.URL(call.url).join(location)
    except (httpx.InvalidURL, ValueError, UnicodeError):
        raise PermanentError("The target redirects to what is not a URL") from None
    onward = replace(call, url=str(url.copy_with(fragment=None)))
    if status == 303 or (status in (301, 302) and call.method == "POST"):
        method = call.method if call.method == "HEAD" else "GET"
        untyped = {name: value for name, value in call.given.items() if name.lower() != "content-type"}
        onward = replace(onward, method=method, body=b"", given=untyped)
    try:
        refuse_nonsense(onward.method, onward.url)
    except PermanentError as refused:
        raise PermanentError(f"The redirect of {without_secrets(call.url)} is refused: {refused}") from None
    return onward if same_host(call.url, onward.url) else for_stranger(onward, call.url)


def same_host(one: str, other: str) -> bool:
    """Return whether both are one host, or the same name by TLS instead, a common redirect."""
    before, after = origin(one), origin(other)
    return before == after or (before[1:] == (after[1], 80) and (after[0], after[2]) == ("https", 443))


def origin(url: str) -> tuple[str, str, int]:
    parts = httpx.URL(url)
    return parts.scheme, parts.host.lower().rstrip("."), parts.port or DEFAULT_PORTS[parts.scheme]


def for_stranger(call: SignedCall, before: str) -> SignedCall:
    if call.body:
        raise PermanentError(f"{without_secrets(before)} redirects to another host, which would get the body")
    if before.startswith("https:") and not call.url.startswith("https:"):
        raise PermanentError(f"{without_secrets(before)} redirects to a URL without TLS")
    given = {name: value for name, value in call.given.items() if name.lower() in FOR_ANY_HOST}
    ours = {name: value for name, value in call.ours.items() if not name.startswith(CALLBACK)}
    return replace(call, given=given, ours=ours, keys=())


def without_secrets(url: str) -> str:
    """Return the URL without user, password and query, which may be secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def client(allowed_hosts: Iterable[str], ends_at: float) -> httpx.Client:
    """Make a client that ignores the environment's proxy, which would connect in our place, unchecked."""
    transport = httpx.HTTPTransport(verify=tls(), trust_env=False)
    backend = CheckedAddresses(allowed_hosts, ends_at)
    transport._pool = httpcore.ConnectionPool(ssl_context=tls(), network_backend=backend)
    seconds = max(0.001, ends_at - time.monotonic())
    limits = httpx.Timeout(seconds, connect=min(seconds, CONNECT_TIMEOUT))
    return httpx.Client(transport=transport, timeout=limits, follow_redirects=False, trust_env=False)


@cache
def tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
