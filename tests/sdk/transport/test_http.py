"""The API client against a server that does what servers do: refuse, hang, drip, close, answer nonsense."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from scheduler_project.sdk.errors import (
    KeyRefused,
    PlatformAway,
    PlatformConflict,
    PlatformRefused,
    UnknownToPlatform,
)
from scheduler_project.sdk.transport.http import ApiClient, HttpTransport, within
from tests.support.waiting import join

Answer = tuple[int, str, bytes]


class Server:
    """Answer as the test says, and keep the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any, str]] = []
        self.answer: Callable[[], Answer] = lambda: (200, "application/json", b"{}")
        self.connections = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server.connections += 1

            def do_GET(self) -> None:  # noqa: N802
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                server.requests.append((self.command, self.path, body, self.headers["Authorization"]))
                status, kind, text = server.answer()
                self.close_connection = not status
                if not status:
                    return
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_arguments: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=[0.01], daemon=True).start()

    def answers(self, status: int, body: Any, kind: str = "application/problem+json") -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answer = lambda: (status, kind, text)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def api(server: Server) -> Iterator[ApiClient]:
    api = ApiClient(server.url, "bk_secret", timeout=2)
    yield api
    api.close()


def test_requests_carry_the_key_and_keep_the_connection(server: Server, api: ApiClient) -> None:
    server.answers(200, {"results": [1]}, "application/json")
    assert api.get("/jobs", tag=["a:b"], pool=None) == {"results": [1]}
    api.post("/jobs", {"name": "x"})
    assert server.requests == [
        ("GET", "/api/v1/jobs?tag=a%3Ab", None, "Bearer bk_secret"),
        ("POST", "/api/v1/jobs", {"name": "x"}, "Bearer bk_secret"),
    ]
    assert server.connections == 1


def test_an_answer_counts_that_comes_before_the_body_was_read() -> None:
    """A key that is refused is not taken for an outage."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1)
                client.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        server = threading.Thread(target=refuse)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        transport = HttpTransport(url, "bk_secret", connect_seconds=10, reply_seconds=10)
        assert transport.send("PUT", "/worker/logs/x/1", bytes(20_000_000)).status == 401
        join(server)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, PlatformRefused),
        (401, KeyRefused),
        (403, KeyRefused),
        (404, UnknownToPlatform),
        (409, PlatformConflict),
        (422, PlatformConflict),
        (500, PlatformRefused),
    ],
)
def test_a_problem_becomes_an_exception_that_names_field_detail_and_hint(
    server: Server, api: ApiClient, status: int, kind: type[PlatformRefused]
) -> None:
    server.answers(status, {"code": "invalid", "field": "cron", "detail": "is no cron", "hint": "5 fields"})
    with pytest.raises(kind) as caught:
        api.get("/jobs")
    refused = caught.value
    assert (refused.field, refused.detail, refused.hint, refused.code) == (
        "cron",
        "is no cron",
        "5 fields",
        "invalid",
    )
    assert refused.status == status and str(refused) == "cron: is no cron (5 fields)"


def test_all_mistakes_are_named_when_there_are_several(server: Server, api: ApiClient) -> None:
    errors = [
        {"field": "a", "detail": "wrong", "hint": None},
        {"field": "b", "detail": "too", "hint": "less"},
    ]
    server.answers(400, {"detail": "wrong", "errors": errors})
    with pytest.raises(PlatformRefused, match=r"^a: wrong; b: too \(less\)$"):
        api.get("/jobs")


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b""])
def test_a_refusal_in_another_language_is_still_a_refusal(
    server: Server, api: ApiClient, body: bytes
) -> None:
    server.answers(418, body, "text/html")
    with pytest.raises(PlatformRefused, match="answered 418"):
        api.get("/jobs")


@pytest.mark.parametrize("status", [502, 503, 504, 522])
def test_a_proxy_without_a_platform_behind_it_is_a_silence(
    server: Server, api: ApiClient, status: int
) -> None:
    server.answers(status, b"<html>", "text/html")
    with pytest.raises(PlatformAway, match=str(status)):
        api.get("/jobs")


def test_a_page_of_another_site_is_no_answer(server: Server, api: ApiClient) -> None:
    server.answers(200, b"<html>", "text/html")
    with pytest.raises(PlatformAway, match="another language"):
        api.get("/jobs")


def test_nobody_there_is_a_silence_without_the_key_in_its_words() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(PlatformAway) as caught:
        ApiClient(f"http://127.0.0.1:{port}", "bk_secret", timeout=2).get("/jobs")
    assert "bk_secret" not in str(caught.value) + repr(caught.value.__cause__)


def test_a_kept_connection_that_the_server_has_closed_is_opened_anew(server: Server, api: ApiClient) -> None:
    api.get("/jobs")
    kept = api._idle[0].sock
    kept.shutdown(socket.SHUT_RDWR)
    assert api.get("/jobs") == {}
    assert server.connections == 2


def test_a_request_whose_reply_was_lost_is_not_sent_again(server: Server, api: ApiClient) -> None:
    """Only the caller knows whether it may be repeated."""
    api.get("/jobs")
    server.answer = lambda: (0, "", b"")
    with pytest.raises(PlatformAway, match="does not answer"):
        api.post("/jobs", {"name": "x"})
    assert [method for method, *_ in server.requests] == ["GET", "POST"]


def test_who_accepts_and_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(PlatformAway, match="no answer in time"):
            ApiClient(url, "bk_secret", timeout=0.3).get("/jobs")
        assert time.monotonic() - began < 10


def test_whatever_it_hangs_in_a_call_is_bounded() -> None:
    """A server that sends a byte now and then keeps every socket's time-out from coming."""
    gate = threading.Event()
    began = time.monotonic()
    with pytest.raises(PlatformAway, match=r"the platform gave no answer within 0\.2 s"):
        within(0.2, gate.wait, "the platform")
    assert time.monotonic() - began < 10
    gate.set()


def test_within_hands_on_what_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0, "nothing")
    assert within(5, lambda: 7, "seven") == 7


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://beatkeeper.example.com", "unencrypted"),
        ("beatkeeper.example.com", "is not the address"),
        ("ftp://beatkeeper.example.com", "is not the address"),
        ("https://bk_key@beatkeeper.example.com", "holds a login"),
    ],
)
def test_an_address_that_is_none_is_refused_at_once(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ApiClient(url, "bk_secret")


@pytest.mark.parametrize("key", ["", "bk secret", "bk_\n", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_at_once(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        ApiClient("https://beatkeeper.example.com", key)
    assert not key or key not in str(caught.value)


def test_the_key_is_in_no_repr() -> None:
    assert "bk_secret" not in repr(ApiClient("https://beatkeeper.example.com/", "bk_secret"))
