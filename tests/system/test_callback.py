"""A target that answers 202 and brings the outcome later, through real processes: scheduler, worker, API."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from jobs.secrets import service as tenant_secrets
from tests.support.factories import make_tenant
from tests.system.platform import Platform


class Receiver(ThreadingHTTPServer):
    """Accepts what it is asked, and keeps how it may answer."""

    daemon_threads = True

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        self.server.calls.append(dict(self.headers))
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def bring(call: dict[str, Any], **outcome: Any) -> Any:
    path = urlsplit(call["Beatkeeper-Callback-Url"]).path
    token = {"Authorization": f"Bearer {call['Beatkeeper-Callback-Token']}"}
    return Client().post(path, json.dumps(outcome), content_type="application/json", headers=token).json()


def test_a_run_waits_for_its_target_without_a_slot_and_is_tried_again_as_it_says(
    platform: Platform, receiver: Receiver
) -> None:
    host = f"127.0.0.1:{receiver.server_address[1]}"
    tenant = make_tenant(allowed_hosts=[host])
    tenant_secrets.create_secret(tenant, {"name": "HOOK_KEY", "value": "the new key\nthe old key"})
    platform.scheduler()
    worker = platform.worker(app="scheduler_project")
    target = {
        "kind": "http",
        "method": "POST",
        "url": f"http://{host}/begin",
        "callback": {"timeout": "PT1H"},
        "sign": {"secret": "HOOK_KEY"},
    }
    retry = {"max_attempts": 3, "backoff": "fixed", "base": 0.1, "cap": 0.1}
    job = platform.run_once(tenant, target=target, retry=retry)

    platform.wait(lambda: len(receiver.calls) == 1, 40, "the first call")
    platform.wait(lambda: waiting(platform), 20, "the run to wait")
    platform.wait(lambda: worker.busy == 0, 20, "the worker to be free")
    assert receiver.calls[0]["Beatkeeper-Signature"].count("v1=") == 2
    assert bring(receiver.calls[0], outcome="failed", error="not yet", retry_after=0)["state"] == "delayed"

    platform.wait(lambda: len(receiver.calls) == 2, 40, "the second call")
    platform.wait(lambda: waiting(platform), 20, "the run to wait again")
    assert bring(receiver.calls[0], outcome="succeeded")["code"] == "callback_over"
    answer = bring(receiver.calls[1], outcome="succeeded", result={"rows": 7})
    assert answer["state"] == "succeeded"
    run = platform.run_of(job, "succeeded")
    assert run["result"] == {"rows": 7}
    assert platform.outcomes(run) == ["failed", "succeeded"]
    assert "answered 202" in platform.log_of(run)


def waiting(platform: Platform) -> bool:
    return bool(platform.rows("SELECT FROM beatkeeper_live_run WHERE state = 'waiting_callback'"))
