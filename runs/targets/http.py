"""HTTP targets: one request, made so that a tenant cannot reach what only the worker should.

Names are resolved here, every address is checked, and the connection goes to the checked address itself, so a
name that answers differently the second time gains nothing. TLS is still verified against the name.
"""

import ipaddress
import re
import ssl
import time
import zlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import cache
from socket import IPPROTO_TCP, gaierror, getaddrinfo
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx
from httpcore import ConnectError, NetworkStream, SyncBackend
from httpcore._backends.base import SOCKET_OPTION

from scheduler_project.sdk.outcomes import PERMANENT, TRANSIENT, PermanentError
from scheduler_project.sdk.targets import Attempt, TargetFailed

CONNECT_TIMEOUT = 10.0
LOGGED_BODY = 10_000
TRIED_AGAIN = (408, 425, 429)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"([!-~]([ \t!-~]*[!-~])?)?")
AUTO_DETECTED = zlib.MAX_WBITS | 32

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# `is_global` depends on the version of Python, and knows nothing of clouds: 168.63.129.16 is the inside of Azure.
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        """
        0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
        192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
        168.63.129.16/32
        ::/96 ::ffff:0:0:0/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 3fff::/20 5f00::/16
        fc00::/7 fe80::/10 fec0::/10 ff00::/8
        """.split(),
    )
)


class AddressRefused(PermanentError):
    """The host is not on the public internet, and the tenant's allowed hosts do not name it."""


def execute(attempt: Attempt) -> dict[str, Any]:
    target = attempt.target
    method, url = str(target.get("method", "POST")).upper(), str(target["url"])
    refuse_nonsense(url)
    began = time.monotonic()
    try:
        with client(attempt.claim.allowed_hosts, attempt.claim.timeout) as http:
            with http.stream(method, url, headers=headers_of(attempt), **content_of(attempt)) as response:
                text = beginning_of(response)
    except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeError):
        # Their messages may quote what they refuse, and that may be a secret.
        raise PermanentError("The request cannot be sent: its URL, method or headers are not HTTP") from None
    took = time.monotonic() - began
    attempt.log.write("http", f"{method} {shown(url)} answered {response.status_code} in {took:.3f} s")
    if text:
        attempt.log.write("http", text)
    judge(response, target.get("expect"))
    return {"status": response.status_code}


def refuse_nonsense(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # Its message quotes what it could not read.
        raise PermanentError("The target's URL cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise PermanentError(f"{shown(url)} is neither http nor https")


def judge(response: httpx.Response, expected: Sequence[int] | None) -> None:
    status = response.status_code
    if status in expected if expected else response.is_success:
        return
    again = status in TRIED_AGAIN or status >= 500
    line = f"The target answered {status} {response.reason_phrase}".strip()
    if response.is_redirect:
        line += "; redirects are not followed"
    raise TargetFailed(
        TRANSIENT if again else PERMANENT,
        f"HTTP {status}",
        line,
        retry_after=retry_after(response.headers.get("retry-after")) if again else None,
    )


def headers_of(attempt: Attempt) -> dict[str, str]:
    claim = attempt.claim
    ours = {
        "Idempotency-Key": str(claim.run_id),
        "Beatkeeper-Run": str(claim.run_id),
        "Beatkeeper-Attempt": str(claim.attempt),
    }
    if claim.traceparent:
        ours["traceparent"] = claim.traceparent
    given = {str(name): str(value) for name, value in (attempt.target.get("headers") or {}).items()}
    for name, value in given.items():
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise PermanentError(f"The header {name!r} cannot be sent: its name or value is not HTTP")
    reserved = {name.lower() for name in ours}
    kept = {name: value for name, value in given.items() if name.lower() not in reserved}
    return {"User-Agent": "Beatkeeper", **kept, **ours}


def content_of(attempt: Attempt) -> dict[str, Any]:
    body = attempt.input.get("body", attempt.target.get("body"))
    if body is None:
        return {}
    return {"content": body} if isinstance(body, str) else {"json": body}


def beginning_of(response: httpx.Response) -> str:
    """What is worth keeping of the answer; the rest is not read. The status has come, and it alone says whether
    the call succeeded: a body that breaks off or is badly encoded must not have it made again."""
    read, note = b"", ""
    try:
        for chunk in response.iter_raw():
            read += chunk
            if len(read) >= LOGGED_BODY:
                break
    except httpx.HTTPError as error:
        note = f"\nThe answer broke off: {type(error).__name__}"
    return decoded(unpacked(read[:LOGGED_BODY], response), response.charset_encoding) + note


def unpacked(data: bytes, response: httpx.Response) -> bytes:
    """No more than is kept: a few bytes may unpack to gigabytes."""
    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if packing in ("gzip", "x-gzip", "deflate"):
        try:
            return zlib.decompressobj(AUTO_DETECTED).decompress(data, LOGGED_BODY)
        except zlib.error:
            return f"{len(data)} bytes that are not {packing}".encode()
    return data


def decoded(data: bytes, charset: str | None) -> str:
    try:
        return data.decode(charset or "utf-8", "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")


def retry_after(value: str | None) -> float | None:
    """Seconds, or a date."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return max(0.0, (at - datetime.now(timezone.utc)).total_seconds())


def shown(url: str) -> str:
    """Without user, password and query, which may be secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def client(allowed_hosts: Iterable[str], timeout: float) -> httpx.Client:
    """No proxy from the environment: it would connect in our place, unchecked."""
    transport = httpx.HTTPTransport(verify=tls(), trust_env=False)
    transport._pool = httpcore.ConnectionPool(
        ssl_context=tls(), network_backend=CheckedAddresses(allowed_hosts)
    )
    limits = httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT))
    return httpx.Client(transport=transport, timeout=limits, follow_redirects=False, trust_env=False)


@cache
def tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


class CheckedAddresses(SyncBackend):
    def __init__(self, allowed_hosts: Iterable[str]) -> None:
        self._allowed = {host.lower() for host in allowed_hosts}

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> NetworkStream:
        error: Exception | None = None
        for address in self.addresses(host, port):
            try:
                return super().connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error or ConnectError(f"{host} has no address")

    def connect_unix_socket(self, *_arguments: Any, **_options: Any) -> NetworkStream:
        raise AddressRefused("Sockets of this machine are not for targets")

    def addresses(self, host: str, port: int) -> list[Address]:
        found = resolve(host, port)
        if not self.is_allowed(host, port):
            for address in found:
                if not is_public(address):
                    raise AddressRefused(f"{host} leads to {address}, which is not on the public internet")
        return found

    def is_allowed(self, host: str, port: int) -> bool:
        name = host.lower().rstrip(".")
        return not self._allowed.isdisjoint({name, f"{name}:{port}", f"[{name}]:{port}"})


def resolve(host: str, port: int) -> list[Address]:
    try:
        entries = getaddrinfo(host, port, proto=IPPROTO_TCP)
    except (gaierror, UnicodeError) as error:
        raise ConnectError(f"{host} cannot be resolved: {error}") from error
    # A scope such as fe80::1%eth0 is link-local either way.
    return list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries))


def is_public(address: Address) -> bool:
    """Also of the IPv4 address that an IPv6 one carries inside."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not any(address in network for network in NOT_PUBLIC)
