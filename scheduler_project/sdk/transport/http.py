"""HTTPS to the platform with the standard library, for a code base and for its workers.

A request is never sent twice: a claim whose answer was lost must be repeated as such, and only the caller knows that it
was. So a kept connection is checked before it is used, and one that the server has closed is replaced before anything
is sent.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import select
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from ..errors import PlatformAway, error_of

T = TypeVar("T")

BASE = "/api/v1"
JSON = "application/json"
MAX_REPLY = 64 * 1024 * 1024
MAX_IDLE = 8
LOCAL = ("localhost", "127.0.0.1", "::1")
# Statuses of a proxy without a platform behind it.
AWAY = range(502, 600)


class NoReply(Exception):
    """No whole reply came; the request may or may not have been carried out."""


class TransportReply(NamedTuple):
    status: int
    content_type: str
    body: bytes
    retry_after: str = ""

    def problem(self) -> Mapping[str, Any]:
        """Read problem+json; empty for a reply of something else that stands before the platform."""
        with suppress(ValueError):
            problem = json.loads(self.body) if self.content_type.endswith("json") else None
            if isinstance(problem, dict):
                return problem
        return {}


class HttpTransport:
    """Keep as many connections as are used at once. No process uses one that another opened.

    Its repr and its errors never show the key.
    """

    def __init__(
        self, url: str, key: str, ca_file: str = "", *, connect_seconds: float, reply_seconds: float
    ) -> None:
        self.url = checked_url(url)
        self._key, self._ca_file = checked_key(key), ca_file
        self._connect_seconds, self._reply_seconds = connect_seconds, reply_seconds
        self._parts = urlsplit(self.url)
        # Threads share the list without a lock: append and pop are atomic.
        self._idle: list[http.client.HTTPConnection] = []
        self._pid = os.getpid()

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._ca_file or None)

    def send(
        self, method: str, path: str, body: bytes | None = None, content_type: str = JSON
    ) -> TransportReply:
        """Send one request below /api/v1 and return its reply; raise NoReply if none came."""
        headers = {"Authorization": f"Bearer {self._key}", "Accept": JSON}
        if body is not None:
            headers["Content-Type"] = content_type
        connection = None
        try:
            connection = self._connection()
            # A server that refuses a long body answers and closes before it has read it.
            with suppress(ConnectionError):
                connection.request(method, f"{self._parts.path}{BASE}{path}", body, headers)
            response = connection.getresponse()
            reply = response.read(MAX_REPLY + 1)
            if len(reply) > MAX_REPLY:
                raise http.client.HTTPException("the answer is too large")
        except BaseException as error:
            # A run that is stopped here must not leave half a reply for the next request.
            if connection is not None:
                connection.close()
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise NoReply(describe(error)) from error
            raise
        if connection.sock is not None and not response.will_close and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        retry_after = response.headers.get("Retry-After", "")
        return TransportReply(response.status, response.headers.get_content_type(), reply, retry_after)

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._pid != os.getpid():
            # After a fork both processes would write into the same stream.
            self._idle, self._pid = [], os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:  # also when another thread took the last one
                break
            if is_quiet(connection):
                return connection
            connection.close()
        host, port, seconds = str(self._parts.hostname), self._parts.port, self._connect_seconds
        if self._parts.scheme == "http":
            connection = http.client.HTTPConnection(host, port, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=self.tls)
        connection.connect()
        connection.sock.settimeout(self._reply_seconds)
        return connection


class ApiClient(HttpTransport):
    """Call the platform's API with JSON."""

    def __init__(self, url: str, key: str, *, ca_file: str | None = None, timeout: float = 10.0) -> None:
        super().__init__(url, key, ca_file or "", connect_seconds=timeout, reply_seconds=timeout)

    def get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self.call("GET", f"{path}?{urlencode(given, doseq=True)}" if given else path)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, {} if body is None else body)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the reply's JSON; raise PlatformRefused for an error status and PlatformAway without a reply."""
        try:
            reply = self.send(method, path, None if body is None else json.dumps(body).encode())
        except NoReply as error:
            raise PlatformAway(f"{self.url} does not answer: {error}") from error
        if reply.status in AWAY:
            raise PlatformAway(f"{self.url} is not at work: it answered {reply.status}")
        if not 200 <= reply.status < 300:
            raise error_of(reply.status, reply.problem())
        try:
            return json.loads(reply.body) if reply.body else None
        except ValueError:
            raise PlatformAway(
                f"{self.url} answers in another language: is it the address of Beatkeeper?"
            ) from None


def is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Tell whether it is open with nothing to read: without a request a server sends nothing but that it closes."""
    if connection.sock is None:
        return False
    if not hasattr(select, "poll"):
        # Eventlet takes it away.
        return not select.select([connection.sock], [], [], 0)[0]
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def checked_url(url: str) -> str:
    """Return it without a slash at its end. The key is part of every request, so only local ones go unencrypted."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is not the address of a platform: use https://beatkeeper.example.com")
    if parts.username or parts.password:
        raise ValueError("The address of the platform holds a login: give the key as api_key")
    if parts.scheme == "http" and parts.hostname not in LOCAL:
        raise ValueError(f"{url!r} would send the key unencrypted: use https://")
    return url.rstrip("/").removesuffix(BASE)


def checked_key(key: str) -> str:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("The API key is not usable: give it as it was shown, bk_…, without spaces")
    return key


def within(seconds: float, call: Callable[[], T], what: str) -> T:
    """Return the call's result, or raise PlatformAway when it takes longer, whatever blocks it.

    A name server or a server that sends a byte now and then outlasts the time-outs of a socket. A call that was given
    up goes on in a thread that keeps no process alive.
    """
    results: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def carry_out() -> None:
        try:
            results.put((True, call()))
        except BaseException as error:
            results.put((False, error))

    threading.Thread(target=carry_out, name="beatkeeper-call", daemon=True).start()
    try:
        done, result = results.get(timeout=seconds)
    except queue.Empty:
        raise PlatformAway(f"{what} gave no answer within {seconds:g} s") from None
    if not done:
        raise result
    return cast(T, result)


def describe(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); name the CA in BEATKEEPER_CA_FILE"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
