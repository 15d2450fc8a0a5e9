"""HTTP targets against a real server on this machine, and what is refused before anything is sent."""

import gzip
import hashlib
import hmac
import ipaddress
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from runs.targets.http import call as http
from runs.targets.http import ssrf as addresses
from runs.targets.http.answer import retry_after
from runs.targets.http.call import execute
from runs.targets.http.ssrf import AddressRefused, CheckedAddresses, is_public
from scheduler_project.sdk.ledger.callback_token import token_of
from scheduler_project.sdk.outcomes import BadArguments, PermanentError, now_utc, stated_failure
from scheduler_project.sdk.retries import MAX_REQUESTED_DELAY, verdict_on
from scheduler_project.sdk.secret_values.names import secret_values_of
from scheduler_project.sdk.targets.registry import TargetCall, TargetFailed, WaitForCallback
from tests.runs.targets.executed import OneSlot
from tests.sdk.targets.test_celery_task import make_claim

FAR = float("inf")
SNIPPET = re.compile(r"```python\n(.*?def is_from_beatkeeper.*?)```", re.DOTALL)
ROOT = Path(__file__).resolve().parents[4]


class Server(ThreadingHTTPServer):
    """Answer as the path says: /status/503, /retry/7, /moved, /to/307?URL, /long, /echo.

    Any other path gets the `answer` that was set.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answer: tuple[dict[str, str], bytes] | None = None
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        received = {
            "method": self.command,
            "path": self.path,
            "headers": dict(self.headers),
            "body": body.decode(),
        }
        self.server.requests.append(received)
        kind, _, value = self.path.lstrip("/").partition("?")[0].partition("/")
        status = {"status": int(value or 0), "retry": 429, "moved": 302, "to": int(value or 0)}.get(kind, 200)
        self.send_response(status)
        if kind == "to":
            self.send_header("Location", self.path.partition("?")[2])
            self.send_header("Set-Cookie", "session=s3cr3t")
        if kind == "retry":
            self.send_header("Retry-After", value)
        if kind == "moved":
            self.send_header("Location", "http://169.254.169.254/latest")
        headers, content = self.server.answer or ({}, b"")
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        if content:
            self.wfile.write(content)
            return
        self.wfile.write(b"x" * 1_000_000 if kind == "long" else b"hello from the target")

    do_GET = do_PUT = do_HEAD = do_POST  # noqa: N815 - the standard library's names

    def log_message(self, *_arguments: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def stranger() -> Iterator[Server]:
    with serving() as server:
        yield server


class Caller(OneSlot):
    def __call__(self, url: str, allowed: list[str], **values: Any) -> dict[str, Any]:
        claimed = {name: values.pop(name) for name in ("input", "attempt") if name in values}
        target = {"kind": "http", "url": url, **values}
        claim = make_claim(target, allowed_hosts=allowed, **claimed)
        return self.carry_out(execute, claim, secret_values_of(target))


@pytest.fixture
def call(tmp_path: Path) -> Caller:
    return Caller(tmp_path)


def test_the_call_carries_who_it_is_for(call: Caller, server: Server) -> None:
    """Promise 7: the key is the run's at any attempt, so the other side can tell a repetition."""
    url = f"http://{server.host}/echo?key=s3cr3t"
    result = call(url, [server.host], body={"a": 1}, headers={"X-Team": "red"}, attempt=3)
    assert result == {"status": 200}
    [request] = server.requests
    headers = request["headers"]
    assert headers["Idempotency-Key"] == headers["Beatkeeper-Run"] == str(call.claim.run_id)
    assert (headers["Beatkeeper-Attempt"], headers["X-Team"]) == ("3", "red")
    assert json.loads(request["body"]) == {"a": 1}
    assert "answered 200" in call.log and "hello from the target" in call.log
    assert "s3cr3t" not in call.log


def test_reserved_headers_are_ours(call: Caller, server: Server) -> None:
    call(f"http://{server.host}/echo", [server.host], headers={"idempotency-key": "mine"})
    assert server.requests[0]["headers"]["Idempotency-Key"] == str(call.claim.run_id)


def test_a_run_can_bring_its_own_body(call: Caller, server: Server) -> None:
    call(f"http://{server.host}/echo", [server.host], body={"a": 1}, input={"body": {"a": 2}})
    assert json.loads(server.requests[0]["body"]) == {"a": 2}


def test_a_run_can_bring_its_own_query_and_headers(call: Caller, server: Server) -> None:
    given = {"query": {"day": "1 & 2", "new": "x"}, "headers": {"x-team": "blue", "X-More": "yes"}}
    url = f"http://{server.host}/echo?a=%2Fb&day=0&flag"
    call(url, [server.host], headers={"X-Team": "red", "X-Kept": "1"}, input=given)
    [request] = server.requests
    assert request["path"] == "/echo?a=%2Fb&flag&day=1%20%26%202&new=x"
    headers = {name.lower(): value for name, value in request["headers"].items()}
    assert (headers["x-team"], headers["x-more"], headers["x-kept"]) == ("blue", "yes", "1")


def test_the_query_of_a_run_is_signed_with_the_call(call: Caller, server: Server) -> None:
    given = {"query": {"day": "1"}}
    call(f"http://{server.host}/echo", [server.host], sign={"secret": "key"}, input=given)
    [request] = server.requests
    stamp, _, digest = request["headers"]["Beatkeeper-Signature"].partition(",v1=")
    message = "\n".join([stamp.removeprefix("t="), "POST", "/echo?day=1", ""]).encode()
    assert hmac.new(b"key", message, hashlib.sha256).hexdigest() == digest


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"headers": {"Host": "other"}}, PermanentError),
        ({"headers": {"X": "a\r\nHost: other"}}, PermanentError),
        ({"json": {}}, BadArguments),
    ],
)
def test_an_input_that_came_past_the_api_is_refused_by_the_call(
    call: Caller, server: Server, given: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(f"http://{server.host}/echo", [server.host], input=given)
    assert server.requests == []


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (500, "transient"),
        (503, "transient"),
        (408, "transient"),
        (429, "transient"),
        (404, "permanent"),
        (400, "permanent"),
    ],
)
def test_the_status_decides_whether_to_try_again(
    call: Caller, server: Server, status: int, error_class: str
) -> None:
    with pytest.raises(TargetFailed) as failed:
        call(f"http://{server.host}/status/{status}", [server.host])
    assert (failed.value.error_class, failed.value.error_type) == (error_class, f"HTTP {status}")


def test_an_expected_status_is_success_and_others_are_not(call: Caller, server: Server) -> None:
    assert call(f"http://{server.host}/status/404", [server.host], expect=[404])["status"] == 404
    with pytest.raises(TargetFailed):
        call(f"http://{server.host}/echo", [server.host], expect=[201])


def test_retry_after_is_honoured(call: Caller, server: Server) -> None:
    with pytest.raises(TargetFailed) as failed:
        call(f"http://{server.host}/retry/7", [server.host])
    assert failed.value.retry_after == 7.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0.0),
        ("Mon, 01 Jan 0001 00:00:00 -2359", 0.0),
        ("nonsense", None),
        ("-3", None),
        ("1.5", None),
        ("9" * 400, None),
        ("2026-11-18T12:00:00Z", None),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
        ("Mon, 1 Jan 2027 00:00:00 " + "9" * 50, None),
        ("\x00", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, expected: float | None) -> None:
    assert retry_after(value) == expected


def test_retry_after_may_be_a_date_to_come(call: Caller, server: Server) -> None:
    at = datetime.now(timezone.utc) + timedelta(seconds=90)
    seconds = retry_after(format_datetime(at, usegmt=True))
    assert seconds is not None and 80 < seconds <= 90


@pytest.mark.parametrize("value", ["Fri, 31 Dec 9999 23:59:59 GMT", "9" * 30])
def test_a_retry_after_of_years_is_obeyed_for_days(value: str) -> None:
    failed = stated_failure("transient", "HTTP 503", "busy", now_utc(), now_utc())
    requested = replace(failed, retry_after=retry_after(value))
    assert verdict_on(requested, 1, {}).delay == MAX_REQUESTED_DELAY


def test_a_redirect_is_not_followed(call: Caller, server: Server) -> None:
    with pytest.raises(TargetFailed, match="redirects are not followed") as failed:
        call(f"http://{server.host}/moved", [server.host])
    assert failed.value.error_class == "permanent"
    assert len(server.requests) == 1


def test_as_many_redirects_are_followed_as_are_allowed(call: Caller, server: Server) -> None:
    here = f"http://{server.host}"
    twice = f"{here}/to/302?{here}/to/307?/echo"
    assert call(twice, [server.host], redirects=2)["status"] == 200
    with pytest.raises(TargetFailed, match="more than 1 time") as failed:
        call(twice, [server.host], redirects=1)
    assert (failed.value.error_class, failed.value.error_type) == ("permanent", "HTTP 307")
    assert [request["path"] for request in server.requests[:3]][-1] == "/echo"


@pytest.mark.parametrize(
    ("status", "method", "expected"),
    [
        (301, "POST", ("GET", "")),
        (302, "POST", ("GET", "")),
        (303, "PUT", ("GET", "")),
        (307, "POST", ("POST", "all of it")),
        (308, "PUT", ("PUT", "all of it")),
    ],
)
def test_a_redirect_keeps_method_and_body_as_a_browser_would(
    call: Caller, server: Server, status: int, method: str, expected: tuple[str, str]
) -> None:
    url = f"http://{server.host}/to/{status}?/echo"
    call(url, [server.host], method=method, body="all of it", redirects=1)
    onward = server.requests[1]
    assert (onward["method"], onward["body"]) == expected


def test_the_same_host_gets_the_headers_again_and_a_signature_of_its_own(
    call: Caller, server: Server
) -> None:
    url = f"http://{server.host}/to/307?/echo"
    call(url, [server.host], headers={"X-Team": "red"}, sign={"secret": "k"}, redirects=1)
    first, second = (request["headers"] for request in server.requests)
    assert second["X-Team"] == "red" and "Cookie" not in second
    assert first["Beatkeeper-Signature"] != second["Beatkeeper-Signature"]


def test_another_host_gets_neither_headers_nor_signature(
    call: Caller, server: Server, stranger: Server
) -> None:
    url = f"http://{server.host}/to/302?http://{stranger.host}/echo"
    call(
        url,
        [server.host, stranger.host],
        headers={
            "Authorization": "Bearer s3cr3t",
            "X-Api-Key": "s3cr3t",
            "Cookie": "s3cr3t",
            "Accept": "text/x",
        },
        sign={"secret": "k"},
        redirects=1,
    )
    assert server.requests[0]["headers"]["Authorization"] == "Bearer s3cr3t"
    headers = stranger.requests[0]["headers"]
    assert headers["Accept"] == "text/x" and headers["Idempotency-Key"] == str(call.claim.run_id)
    assert "s3cr3t" not in str(headers) and "Beatkeeper-Signature" not in headers


def test_another_host_does_not_get_the_body(call: Caller, server: Server, stranger: Server) -> None:
    url = f"http://{server.host}/to/307?http://{stranger.host}/echo"
    with pytest.raises(PermanentError, match="another host"):
        call(url, [server.host, stranger.host], method="POST", body="s3cr3t", redirects=1)
    assert stranger.requests == []


def test_a_redirect_does_not_leave_tls() -> None:
    call = http.SignedCall("GET", "https://one.example/", {}, {})
    with pytest.raises(PermanentError, match="without TLS"):
        http.redirected(call, "http://one.example/", 302)


def test_a_redirect_to_tls_on_the_same_host_is_the_same_host() -> None:
    call = http.SignedCall("GET", "http://one.example/", {"Authorization": "Bearer x"}, {}, keys=(b"k",))
    onward = http.redirected(call, "https://one.example/", 302)
    assert onward.given == call.given and onward.keys == call.keys
    assert http.redirected(call, "https://one.example:8443/", 302).keys == ()


def verified(key: bytes, request: dict[str, Any]) -> bool:
    """By the snippet that docs/reference/targets.md shows to receivers."""
    names: dict[str, Any] = {}
    exec(SNIPPET.search((ROOT / "docs" / "reference" / "targets.md").read_text())[1], names)  # type: ignore[index]  # noqa: S102
    header, body = request["headers"]["Beatkeeper-Signature"], request["body"].encode()
    received: bool = names["is_from_beatkeeper"](key, header, request["method"], request["path"], body)
    return received


def test_an_old_signature_is_no_proof(call: Caller, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has seen a call cannot make it again later."""
    long_ago = time.time() - 301
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: long_ago)
        call(f"http://{server.host}/echo", [server.host], sign={"secret": "the key"})
    [request] = server.requests
    assert not verified(b"the key", request)


def test_a_receiver_can_tell_who_called(call: Caller, server: Server) -> None:
    url = f"http://{server.host}/echo?a=b%20c"
    call(url, [server.host], body={"a": "ä"}, sign={"secret": "the key"})
    [request] = server.requests
    assert verified(b"the key", request) and not verified(b"another", request)
    for part, changed in (("method", "PUT"), ("path", "/echo?a=b"), ("body", "{}")):
        assert not verified(b"the key", {**request, part: changed})
    at = request["headers"]["Beatkeeper-Signature"].partition(",")[0]
    later = request["headers"]["Beatkeeper-Signature"].replace(at, f"t={int(time.time()) + 1}")
    assert not verified(b"the key", {**request, "headers": {"Beatkeeper-Signature": later}})


def test_two_keys_are_valid_during_a_rotation(call: Caller, server: Server) -> None:
    call(f"http://{server.host}/echo", [server.host], sign={"secret": "new\nold\n"})
    [request] = server.requests
    assert verified(b"new", request) and verified(b"old", request)
    with pytest.raises(PermanentError, match="3 keys"):
        call(f"http://{server.host}/echo", [server.host], sign={"secret": "a\nb\nc"})


@pytest.mark.parametrize("secret", ["", "  \n", "${secret:HOOK_KEY}"])
def test_nothing_is_sent_unsigned(call: Caller, server: Server, secret: str) -> None:
    with pytest.raises(PermanentError):
        call(f"http://{server.host}/echo", [server.host], sign={"secret": secret})
    assert server.requests == []


def test_an_accepted_call_waits_for_its_callback(call: Caller, server: Server, settings: Any) -> None:
    settings.PUBLIC_URL = "https://beat.example"
    url, callback = f"http://{server.host}/status/202", {"timeout": "PT2M"}
    with pytest.raises(WaitForCallback) as waits:
        call(url, [server.host], callback=callback)
    assert waits.value.seconds == 120.0
    headers = server.requests[0]["headers"]
    complete = f"https://beat.example/api/v1/runs/{call.claim.run_id}/complete"
    assert headers["Beatkeeper-Callback-Url"] == complete
    claim = call.claim
    assert headers["Beatkeeper-Callback-Token"] == token_of(claim.token, claim.run_id, claim.claim_seq)
    assert headers["Beatkeeper-Callback-Token"] not in call.log


def test_a_call_that_was_done_at_once_needs_no_callback(call: Caller, server: Server) -> None:
    assert call(f"http://{server.host}/echo", [server.host], callback={"timeout": 60})["status"] == 200


def test_without_a_callback_accepted_is_done(call: Caller, server: Server) -> None:
    assert call(f"http://{server.host}/status/202", [server.host])["status"] == 202
    assert not any("Callback" in name for name in server.requests[0]["headers"])


def test_another_host_does_not_get_the_callback_s_token(
    call: Caller, server: Server, stranger: Server
) -> None:
    url = f"http://{server.host}/to/302?http://{stranger.host}/echo"
    call(url, [server.host, stranger.host], callback={"timeout": 60}, redirects=1)
    assert "Beatkeeper-Callback-Token" in server.requests[0]["headers"]
    assert not any("Callback" in name for name in stranger.requests[0]["headers"])


def test_a_small_json_answer_is_the_result(call: Caller, server: Server) -> None:
    server.answer = {"Content-Type": "application/problem+json"}, b'{"batch": 7}'
    assert call(f"http://{server.host}/echo", [server.host]) == {"status": 200, "answer": {"batch": 7}}
    server.answer = {"Content-Type": "application/json"}, json.dumps("x" * 3000).encode()
    assert call(f"http://{server.host}/echo", [server.host]) == {"status": 200}
    server.answer = {"Content-Type": "application/json"}, b"{nonsense"
    assert call(f"http://{server.host}/echo", [server.host]) == {"status": 200}


def test_a_call_that_trickles_ends_at_its_own_timeout(call: Caller) -> None:
    """Each byte comes in good time, and there is no end of them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=trickle, args=(listener,), daemon=True).start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(httpx.TimeoutException):
            call(f"http://{host}/", [host], timeout="PT1S")


def trickle(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    with peer, suppress(OSError):
        peer.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            peer.sendall(b"x")
            time.sleep(0.02)


def test_the_run_s_timeout_holds_besides(call: Caller) -> None:
    claim = make_claim({"kind": "http", "url": "http://x/", "timeout": "PT1H"}, timeout=5.0)
    assert http.seconds_for(TargetCall(claim, None, None, "w")) == 5.0  # type: ignore[arg-type]


def test_a_long_answer_is_not_read_to_its_end(call: Caller, server: Server) -> None:
    call(f"http://{server.host}/long", [server.host])
    assert len(call.log) < 11_000


@pytest.mark.parametrize("charset", ["nonsense", "base64", "undefined", "idna", "utf-8; x", '"'])
def test_a_success_in_an_unknown_charset_is_a_success(call: Caller, server: Server, charset: str) -> None:
    server.answer = {"Content-Type": f"text/plain; charset={charset}"}, "grüße".encode()
    assert call(f"http://{server.host}/echo", [server.host]) == {"status": 200}
    assert "grüße" in call.log


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, gzip", "br", "nonsense"])
def test_a_success_that_cannot_be_unpacked_is_a_success(call: Caller, server: Server, encoding: str) -> None:
    server.answer = {"Content-Encoding": encoding}, b"not packed at all"
    assert call(f"http://{server.host}/echo", [server.host]) == {"status": 200}
    assert len(server.requests) == 1


def test_a_failure_that_cannot_be_unpacked_is_judged_by_its_status(call: Caller, server: Server) -> None:
    server.answer = {"Content-Encoding": "gzip"}, b"not packed at all"
    with pytest.raises(TargetFailed) as failed:
        call(f"http://{server.host}/status/404", [server.host])
    assert failed.value.error_type == "HTTP 404"


def test_a_success_that_breaks_off_is_a_success(call: Caller, server: Server) -> None:
    server.answer = {"Content-Length": "1000"}, b"the beginning"
    assert call(f"http://{server.host}/echo", [server.host]) == {"status": 200}
    assert "the beginning" in call.log and "broke off" in call.log


def test_a_packed_answer_is_logged_unpacked_as_far_as_it_is_kept(call: Caller, server: Server) -> None:
    server.answer = {"Content-Encoding": "gzip"}, gzip.compress(b"legible " + b"x" * 10_000_000)
    call(f"http://{server.host}/echo", [server.host])
    assert "legible" in call.log and len(call.log) < 11_000


@pytest.mark.parametrize("value", [" Bearer s3cr3t", "s3cr3t\r\nX: y", "s3cr3t\0", "s3cr3tß", "s3cr3t\n"])
def test_a_header_that_cannot_be_sent_is_not_quoted(call: Caller, server: Server, value: str) -> None:
    with pytest.raises(PermanentError) as refused:
        call(f"http://{server.host}/echo", [server.host], headers={"Authorization": value})
    assert "Authorization" in str(refused.value) and "s3cr3t" not in str(refused.value)
    assert server.requests == []


@pytest.mark.parametrize("url", ["http://u:s3cr3t@host:s3cr3t/", "http://host/\x07s3cr3t", "http://[s3cr3t/"])
def test_a_url_that_is_none_is_not_quoted(call: Caller, url: str) -> None:
    with pytest.raises(PermanentError) as refused:
        call(url, [])
    assert "s3cr3t" not in str(refused.value)


CELERY_S = "app.Worker(loglevel='DEBUG', concurrency=1)"
FEED_S = "from scheduler_project.sdk.worker.feed import load_app; load_app('scheduler_project', 'w', logging.DEBUG)"


@pytest.mark.parametrize("start", [CELERY_S, FEED_S], ids=["celery", "feed"])
def test_a_worker_logs_no_urls(start: str, tmp_path: Path) -> None:
    """Their queries hold keys. A worker sets up logging in its own way, around the settings."""
    script = f"""
import logging
from scheduler_project.celery import app
{start}
print([logging.getLogger(name).isEnabledFor(logging.INFO) for name in ("httpx", "httpcore.http11", "runs")])
"""
    env = {**os.environ, "BEATKEEPER_SPOOL_DIR": str(tmp_path)}
    received = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=env
    )
    assert received.stdout.strip() == "[False, False, True]", received.stderr


def test_a_dead_server_is_transient(call: Caller) -> None:
    with pytest.raises(httpx.ConnectError):
        call("http://127.0.0.1:9/x", ["127.0.0.1"])


def test_a_name_nobody_knows_is_transient(call: Caller) -> None:
    with pytest.raises(httpx.ConnectError):
        call("http://nowhere.invalid/x", [])


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://127.1/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1]/",
        "http://10.1.2.3/",
        "http://172.16.0.1/",
        "http://192.168.1.1/",
        "http://100.100.100.200/",
        "http://224.0.0.1/",
        "https://127.0.0.1/",
    ],
)
def test_the_inside_is_refused_whatever_it_is_called(call: Caller, url: str) -> None:
    with pytest.raises((AddressRefused, httpx.ConnectError)) as refused:
        call(url, ["somewhere.example", "127.0.0.1:1"])
    assert isinstance(refused.value, AddressRefused) or "cannot be resolved" in str(refused.value)


@pytest.mark.parametrize("url", ["ftp://example.com/x", "file:///etc/passwd", "unix:///run/docker.sock"])
def test_only_http_is_spoken(call: Caller, url: str) -> None:
    with pytest.raises(PermanentError):
        call(url, [])


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "Proxy-Authorization", "TE"])
def test_headers_of_the_connection_are_refused(call: Caller, server: Server, name: str) -> None:
    with pytest.raises(PermanentError, match="set by the call itself"):
        call(f"http://{server.host}/echo", [server.host], headers={name: "x"})
    assert server.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "fd00:a9fe:a9fe::1",
        "fd00:100::100:200",
    ],
)
def test_an_allowed_name_does_not_lead_to_what_clouds_hand_out(address: str) -> None:
    metadata = [(0, 0, 0, "", (address, 0))]
    with patch.object(addresses, "getaddrinfo", lambda *_, **__: metadata):
        with pytest.raises(AddressRefused):
            CheckedAddresses(["team.example"], FAR).addresses("team.example", 80)
        assert CheckedAddresses([address], FAR).addresses(address, 80)


def test_an_allowed_name_leads_to_a_network_of_ones_own_beside_them() -> None:
    own = [(0, 0, 0, "", ("fd00:42::43", 0))]
    with patch.object(addresses, "getaddrinfo", lambda *_, **__: own):
        assert CheckedAddresses(["team.example"], FAR).addresses("team.example", 80)


def test_the_machine_s_own_public_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it listens on there may be hidden from the world by a firewall, and not from itself."""
    monkeypatch.setattr(addresses, "is_public", lambda _: True)
    with pytest.raises(AddressRefused, match="this machine"):
        CheckedAddresses([], FAR).addresses("127.0.0.1", 80)
    assert not addresses.is_own(ipaddress.ip_address("8.8.8.8"))


def test_a_name_that_leads_inside_is_refused(call: Caller, server: Server) -> None:
    inside = [(0, 0, 0, "", ("127.0.0.1", 0))]
    with patch.object(addresses, "getaddrinfo", lambda *_, **__: inside), pytest.raises(AddressRefused):
        call(f"http://rebinding.example:{server.server_address[1]}/x", [])
    assert server.requests == []


def test_the_connection_goes_to_the_address_that_was_checked(call: Caller, server: Server) -> None:
    """The name is looked up once: a second look could answer differently."""
    looks: list[str] = []

    def look(host: str, *_: Any, **__: Any) -> Any:
        looks.append(host)
        return [(0, 0, 0, "", ("127.0.0.1", 0))]

    port = server.server_address[1]
    with patch.object(addresses, "getaddrinfo", look):
        call(f"http://team.example:{port}/x", [f"team.example:{port}"])
    assert looks == ["team.example"]
    assert server.requests[0]["headers"]["Host"] == f"team.example:{port}"


def test_one_inside_address_among_others_refuses_the_name() -> None:
    found = [(0, 0, 0, "", ("8.8.8.8", 0)), (0, 0, 0, "", ("10.0.0.1", 0))]
    with patch.object(addresses, "getaddrinfo", lambda *_, **__: found), pytest.raises(AddressRefused):
        CheckedAddresses([], FAR).addresses("mixed.example", 80)


def test_an_allowed_host_may_name_its_port() -> None:
    checked = CheckedAddresses(["Inside.example", "127.0.0.1:8000"], FAR)
    assert checked.is_allowed("inside.example.", 1234)
    assert checked.is_allowed("127.0.0.1", 8000)
    assert not checked.is_allowed("127.0.0.1", 8001)


def test_no_proxy_of_the_environment_is_used(
    call: Caller, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://{server.host}")
    monkeypatch.setenv("ALL_PROXY", f"http://{server.host}")
    with pytest.raises(AddressRefused):
        call("http://10.1.2.3/", [])
    assert server.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "168.63.129.16",
        "100.64.0.1",
        "192.0.0.192",
        "192.88.99.1",
        "198.18.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::7f00:1",
        "::808:808",
        "::ffff:0:7f00:1",
        "::ffff:0:808:808",
        "::ffff:168.63.129.16",
        "64:ff9b::a83f:8110",
        "64:ff9b:1::7f00:1",
        "2002:a83f:8110::",
        "2001:0:1::1",
        "3fff::1",
        "5f00::1",
        "fec0::1",
        "ff02::1",
    ],
)
@pytest.mark.parametrize("python", ["this", "one that calls everything global"])
def test_the_inside_is_not_public(address: str, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if python != "this":
        monkeypatch.setattr(ipaddress.IPv4Address, "is_global", True)
        monkeypatch.setattr(ipaddress.IPv6Address, "is_global", True)
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"])
def test_the_public_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_secret_headers_are_masked_in_the_log(call: Caller, server: Server) -> None:
    call(f"http://{server.host}/echo", [server.host], headers={"Authorization": "Bearer from the target"})
    assert "hello from the target" not in call.log
