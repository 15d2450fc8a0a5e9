"""The platform's API from a code base: JSON over HTTPS with the standard library, every call within a stated time."""

from __future__ import annotations

import http.client
import json
import queue
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from .errors import PlatformAway, refusal

T = TypeVar("T")

BASE = "/api/v1"
LARGEST_ANSWER = 32 * 1024 * 1024
LOCAL = ("localhost", "127.0.0.1", "::1")
# What a server says when it is not the platform that answers, but what stands before it, or nothing behind it.
AWAY = range(502, 600)
# Kept open by us, closed by the server a moment ago: the request was not read.
STALE = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)


class ApiClient:
    """One connection a thread, kept open. Its repr and its errors never show the key."""

    def __init__(self, url: str, key: str, *, ca_file: str | None = None, timeout: float = 10.0) -> None:
        self.url = checked_url(url)
        self.timeout = timeout
        self._key = checked_key(key)
        self._ca_file = ca_file or None
        self._local = threading.local()
        self._context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"ApiClient({self.url!r})"

    def get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self.call("GET", f"{path}?{urlencode(given, doseq=True)}" if given else path)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, {} if body is None else body)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON; a refusal and a silence are raised."""
        text = None if body is None else json.dumps(body).encode()
        try:
            status, kind, answer = self._exchange(method, path, text)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise PlatformAway(f"{self.url} does not answer: {in_words(error)}") from error
        if status in AWAY:
            raise PlatformAway(f"{self.url} is not at work: it answered {status}")
        if not 200 <= status < 300:
            raise refusal(status, problem_of(kind, answer))
        return self._read(answer)

    def close(self) -> None:
        connection, self._local.connection = getattr(self._local, "connection", None), None
        if connection is not None:
            connection.close()

    def _read(self, answer: bytes) -> Any:
        try:
            return json.loads(answer) if answer else None
        except ValueError:
            raise PlatformAway(
                f"{self.url} answers in another language: is it the address of Beatkeeper?"
            ) from None

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, str, bytes]:
        kept = getattr(self._local, "connection", None)
        if kept is not None:
            try:
                return self._over(kept, method, path, body)
            except STALE:
                self.close()
        self._local.connection = self._connect()
        return self._over(self._local.connection, method, path, body)

    def _over(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> tuple[int, str, bytes]:
        headers = {"Authorization": f"Bearer {self._key}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, f"{urlsplit(self.url).path}{BASE}{path}", body, headers)
        response = connection.getresponse()
        answer = response.read(LARGEST_ANSWER + 1)
        if len(answer) > LARGEST_ANSWER:
            raise http.client.HTTPException("the answer is too large")
        return response.status, response.headers.get_content_type(), answer

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host = str(parts.hostname)
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, parts.port, timeout=self.timeout)
        return http.client.HTTPSConnection(host, parts.port, timeout=self.timeout, context=self._tls())

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._ca_file)
        return self._context


def checked_url(url: str) -> str:
    """Without a slash at its end. The key goes along with every call, so it goes in the clear to this machine only."""
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
    """Its answer, or PlatformAway when that takes longer, whatever it hangs in: a name server, a slow drip of bytes.

    A call given up goes on by itself, in a thread that keeps no process alive.
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def carry_out() -> None:
        try:
            answers.put((True, call()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=carry_out, name="beatkeeper-call", daemon=True).start()
    try:
        done, answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise PlatformAway(f"{what} gave no answer within {seconds:g} s") from None
    if not done:
        raise answer
    found: T = answer
    return found


def in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); name the CA in BEATKEEPER_CA_FILE"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def problem_of(kind: str, answer: bytes) -> Mapping[str, Any]:
    """Of an answer that is none in problem+json, but of something before the platform: nothing is known."""
    try:
        problem = json.loads(answer) if kind.endswith("json") else None
    except ValueError:
        problem = None
    return problem if isinstance(problem, dict) else {}
