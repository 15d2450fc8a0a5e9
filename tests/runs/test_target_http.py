"""HTTP targets against a real server on this machine, and what is refused before anything is sent."""

import gzip
import ipaddress
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from runs.targets import http
from runs.targets.http import AddressRefused, CheckedAddresses, execute, is_public
from scheduler_project.sdk.capture import secrets_in
from scheduler_project.sdk.outcomes import PermanentError
from scheduler_project.sdk.targets import TargetFailed
from tests.runs.carried_out import OneSlot
from tests.sdk.test_celery_target import make_claim

ROOT = Path(__file__).resolve().parents[2]


class Server(ThreadingHTTPServer):
    """Answers as the path says: /status/503, /retry/7, /moved, /long, /echo, and with the `answer` it was given."""

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
        self.server.requests.append({"path": self.path, "headers": dict(self.headers), "body": body.decode()})
        kind, _, value = self.path.lstrip("/").partition("?")[0].partition("/")
        status = {"status": int(value or 0), "retry": 429, "moved": 302}.get(kind, 200)
        self.send_response(status)
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

    do_GET = do_POST  # noqa: N815 - the standard library's name

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


class Caller(OneSlot):
    def __call__(self, url: str, allowed: list[str], **values: Any) -> dict[str, Any]:
        claimed = {name: values.pop(name) for name in ("input", "attempt", "timeout") if name in values}
        target = {"kind": "http", "url": url, **values}
        claim = make_claim(target, allowed_hosts=allowed, **claimed)
        return self.carry_out(execute, claim, secrets_in(target))


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
    [("7", 7.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("nonsense", None), ("-3", None), (None, None)],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, expected: float | None) -> None:
    assert http.retry_after(value) == expected


def test_a_redirect_is_not_followed(call: Caller, server: Server) -> None:
    with pytest.raises(TargetFailed, match="redirects are not followed") as failed:
        call(f"http://{server.host}/moved", [server.host])
    assert failed.value.error_class == "permanent"
    assert len(server.requests) == 1


def test_a_long_answer_is_not_read_to_its_end(call: Caller, server: Server) -> None:
    call(f"http://{server.host}/long", [server.host])
    assert len(call.log) < 11_000


@pytest.mark.parametrize("charset", ["nonsense", "base64", "undefined", "idna", "utf-8; x", '"'])
def test_a_success_in_an_unknown_charset_is_a_success(call: Caller, server: Server, charset: str) -> None:
    server.answer = {"Content-Type": f"text/plain; charset={charset}"}, "grüße".encode()
    assert call(f"http://{server.host}/echo", [server.host]) == {"status": 200}
    assert "gr\\u00fc\\u00dfe" in call.log


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
FEED_S = "from scheduler_project.sdk.feed import load_app; load_app('scheduler_project', 'w', logging.DEBUG)"


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
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=env)
    assert told.stdout.strip() == "[False, False, True]", told.stderr


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
        "http://user:password@127.0.0.1/",
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


def test_a_name_that_leads_inside_is_refused(call: Caller, server: Server) -> None:
    inside = [(0, 0, 0, "", ("127.0.0.1", 0))]
    with patch.object(http, "getaddrinfo", lambda *_, **__: inside), pytest.raises(AddressRefused):
        call(f"http://rebinding.example:{server.server_address[1]}/x", [])
    assert server.requests == []


def test_the_connection_goes_to_the_address_that_was_checked(call: Caller, server: Server) -> None:
    """The name is looked up once: a second look could answer differently."""
    looks: list[str] = []

    def look(host: str, *_: Any, **__: Any) -> Any:
        looks.append(host)
        return [(0, 0, 0, "", ("127.0.0.1", 0))]

    port = server.server_address[1]
    with patch.object(http, "getaddrinfo", look):
        call(f"http://team.example:{port}/x", [f"team.example:{port}"])
    assert looks == ["team.example"]
    assert server.requests[0]["headers"]["Host"] == f"team.example:{port}"


def test_one_inside_address_among_others_refuses_the_name() -> None:
    addresses = [(0, 0, 0, "", ("8.8.8.8", 0)), (0, 0, 0, "", ("10.0.0.1", 0))]
    with patch.object(http, "getaddrinfo", lambda *_, **__: addresses), pytest.raises(AddressRefused):
        CheckedAddresses([]).addresses("mixed.example", 80)


def test_an_allowed_host_may_name_its_port() -> None:
    checked = CheckedAddresses(["Inside.example", "127.0.0.1:8000"])
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
