"""Five secrets are used in every way a job can use one, by bodies that tell all they know; then each is searched for
in everything the platform leaves behind. That the search finds what is there is shown in every place."""

import base64
import gzip
import json
import os
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID

import kombu
import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from jobs.models import Job, Secret
from runs.models import Lane
from scheduler_project.sdk.masking import MASK
from tests.api_client import Caller
from tests.factories import make_worker
from tests.processes import Processes
from tests.system.platform import Platform, our_connection
from tests.system.telling_tasks import digest
from tests.system.trace_search import Traces

USES = ("HEADER", "BODY", "ENV", "KWARG", "INPUT")
ONCE = {"max_attempts": 1}


class Far:
    """The far side: keeps what it was sent, and sends it back."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []
        far = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                far.seen.append((dict(self.headers), body))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(f"{self.headers}\n".encode() + body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def far() -> Iterator[Far]:
    far = Far()
    yield far
    far.close()


class Scene:
    """The API and the admin as people use them, with everything they answer kept."""

    def __init__(self, platform: Platform, far: Far) -> None:
        self.platform, self.far, self.traces = platform, far, Traces(platform)
        self.values = {name: f"{secrets.token_hex(9)}/+ %&{secrets.token_hex(9)}" for name in USES}
        with our_connection():
            platform.pool.exported_tasks.append("tests.tells")
            platform.pool.save()
            platform.tenant.allowed_hosts = [far.address]
            platform.tenant.save()
            self.caller = Caller(platform.tenant)
            self.staff = Client()
            self.staff.force_login(get_user_model().objects.create_superuser("olga", password="x"))

    def post(self, path: str, body: Any) -> Any:
        with our_connection():
            return self.traces.note(f"POST {path}", self.caller.post(path, body))

    def get(self, path: str) -> Any:
        with our_connection():
            return self.traces.note(f"GET {path}", self.caller.get(path))

    def page(self, name: str, *arguments: Any) -> Any:
        address = reverse(f"admin:{name}", args=arguments)
        with our_connection():
            return self.traces.note(f"page {address}", self.staff.get(address))

    def keep_secrets(self) -> None:
        for name, value in self.values.items():
            made = self.post("secrets", {"name": name, "value": value})
            assert made.status_code == 201, made.content
            # What a person sends by mistake must not come back either.
            for wrong in (
                {"name": value, "value": name},
                [value],
                f'{{"value": "{value}',
                {"value": {value: 1}},
            ):
                assert self.post("secrets", wrong).status_code == 400

    def job(self, name: str, target: dict[str, Any]) -> Job:
        spec = {"name": name, "target": target, "retry": ONCE, "overlap": "allow_all"}
        made = self.post("jobs", spec)
        assert made.status_code == 201, made.content
        with our_connection():
            return Job.objects.get(pk=made.json()["id"])

    def run(self, job: Job, given: dict[str, Any] | None = None) -> None:
        made = self.post(f"jobs/{job.pk}/run", {"input": given} if given else {})
        assert made.status_code == 201, made.content

    def jobs(self) -> dict[str, Job]:
        calls = {"kind": "http", "url": f"http://{self.far.address}/hook"}
        secret = {name: f"${{secret:{name}}}" for name in USES}
        had = 'printf "had %s\\n" "$(printf %s "$KEY" | sha256sum)"'
        shell = f'{had}; echo "$KEY"; printf %s "$KEY" | base64 >&2; exit 3'
        return {
            "header": self.job(
                "header", {**calls, "headers": {"X-Auth": f"Key {secret['HEADER']}"}, "body": {}}
            ),
            "body": self.job("body", {**calls, "body": {"deep": [secret["BODY"]]}}),
            "env": self.job(
                "env", {"kind": "command", "argv": ["sh", "-c", shell], "env": {"KEY": secret["ENV"]}}
            ),
            "kwarg": self.job(
                "kwarg",
                {
                    "kind": "celery",
                    "task": "tests.tells",
                    "kwargs": {"key": secret["KWARG"], "raising": True},
                },
            ),
            "input": self.job("input", {"kind": "celery", "task": "tests.tells", "kwargs": {"key": "none"}}),
        }

    def look_at_everything(self, jobs: dict[str, Job]) -> None:
        for path in ("secrets", "jobs", "runs", "queues", *(f"secrets/{name}" for name in USES)):
            assert self.get(path).status_code == 200
        for name, job in jobs.items():
            for path in ("", "/runs", "/explain"):
                assert self.get(f"jobs/{job.pk}{path}").status_code == 200
            self.page("beatkeeper_jobs_job_change", job.pk)
            for run in self.platform.finished(job):
                for path in ("", "/attempts", "/log", "/log?format=jsonl", "/explain"):
                    self.get(f"runs/{run['id']}{path}")
                assert self.page("beatkeeper_runs_run_change", run["id"]).status_code == 200, name
        for model in ("jobs_job", "jobs_secret", "runs_run", "runs_attempt", "auditlog_auditentry"):
            assert self.page(f"beatkeeper_{model}_changelist").status_code == 200, model
        with our_connection():
            rows = list(Secret.objects.values_list("pk", flat=True))
        entries = self.platform.rows("SELECT id FROM beatkeeper_audit_entry")
        for row in rows:
            self.page("beatkeeper_jobs_secret_change", row)
        for entry in entries:
            self.page("beatkeeper_auditlog_auditentry_change", entry["id"])


@pytest.fixture
def scene(platform: Platform, far: Far) -> Scene:
    return Scene(platform, far)


def test_no_secret_is_found_anywhere_after_real_runs(scene: Scene, processes: Processes) -> None:
    platform = scene.platform
    scheduler = platform.scheduler()
    workers = [
        platform.worker(app=app, slots=1) for app in ("tests.system.telling_tasks", "scheduler_project")
    ]
    scene.keep_secrets()
    jobs = scene.jobs()
    given = {"kwargs": {"key": "${secret:INPUT}"}}
    for name, job in jobs.items():
        scene.run(job, given if name == "input" else None)
    wanted = {
        "header": "succeeded",
        "body": "succeeded",
        "env": "dead",
        "kwarg": "dead",
        "input": "succeeded",
    }
    runs = {name: platform.run_of(jobs[name], state, 40) for name, state in wanted.items()}

    assert_each_body_had_its_secret(scene, runs)
    assert_it_is_masked_where_it_was_told(scene, runs)
    while_it_runs_only_the_command_itself_has_it(scene)
    scene.look_at_everything(jobs)

    for worker in workers:
        worker.kill_whole()
    # A worker that is only said to live: permits are sent, and stay where they are.
    with our_connection():
        make_worker(platform.pool, known_targets=["tests.tells"])
    for job in (jobs["input"], jobs["kwarg"]):
        scene.run(job, given)
    permits = platform.wait(scene.traces.drain_queues, 20, "permits in the queues")
    assert permits and scheduler.is_alive()
    assert scene.traces.found(scene.values.values()) == set()
    assert_the_search_finds_what_is_there(scene, processes)


def assert_each_body_had_its_secret(scene: Scene, runs: dict[str, Any]) -> None:
    values, seen = scene.values, scene.far.seen
    assert f"Key {values['HEADER']}" in [headers.get("X-Auth") for headers, _ in seen]
    assert {"deep": [values["BODY"]]} in [json.loads(body) for _, body in seen]
    for name in ("env", "kwarg", "input"):
        assert f"had {digest(values[name.upper()])}" in scene.platform.log_of(runs[name]), name
    assert runs["input"]["result"]["digest"] == digest(values["INPUT"])


def assert_it_is_masked_where_it_was_told(scene: Scene, runs: dict[str, Any]) -> None:
    for name, run in runs.items():
        assert MASK in scene.platform.log_of(run), name
    assert runs["kwarg"]["error_line"] == f"nobody takes '{MASK}'"
    assert runs["input"]["result"]["given"] == [MASK]


def while_it_runs_only_the_command_itself_has_it(scene: Scene) -> None:
    mark = f"60.{secrets.randbelow(10**9):09}"
    target = {"kind": "command", "argv": ["sleep", mark], "env": {"KEY": "${secret:ENV}"}}
    job = scene.job("waits", target)
    scene.run(job)
    needle = scene.values["ENV"].encode()
    bodies = scene.platform.wait(lambda: with_environment(needle), 30, "the command")
    assert [command for command in bodies.values() if mark.encode() not in command] == []
    assert scene.traces.found(scene.values.values()) == set()
    scene.platform.cancel(job)
    scene.platform.run_of(job, "cancelled")


def with_environment(needle: bytes) -> dict[int, bytes]:
    """Every process of the machine that has it, and its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            continue
    return found


def assert_the_search_finds_what_is_there(scene: Scene, processes: Processes) -> None:
    """One more secret is left in every place by hand, each time written in another way."""
    planted, platform = f"{secrets.token_hex(9)}/+ {secrets.token_hex(9)}", scene.platform
    coded = base64.b64encode(f"user:{planted}".encode()).decode()
    made = scene.post(
        "jobs", {"name": "planted", "description": coded, "target": {"kind": "celery", "task": "tests.tells"}}
    )
    scene.page("beatkeeper_jobs_job_change", UUID(made.json()["id"]))
    (platform.spool / "planted").write_text(base64.urlsafe_b64encode(planted.encode()).decode())
    (platform.folder / "planted.log").write_text(planted)
    (platform.folder / "logs" / "planted.jsonl.gz").write_bytes(gzip.compress(json.dumps(planted).encode()))
    env = {**platform.env(), "PLANTED": quote_plus(planted)}
    child = processes.start("sleep", "60", env=env, name="planted")
    drained = len(scene.traces.messages)
    with our_connection():
        queue = Lane.objects.exclude(queue="").values_list("queue", flat=True)[0]
        with kombu.Connection(platform.broker_url) as broker:
            channel: Any = broker.default_channel
            channel.basic_publish(
                channel.prepare_message("{}", 0, "application/json", "utf-8", {"planted": coded}), "", queue
            )
        platform.wait(lambda: scene.traces.drain_queues() > drained, 10, "the message left by hand")
    found = scene.traces.found([planted])
    kinds = {kind for kind, _ in found}
    assert kinds == {"database", "log", "spool", "output", "environment", "answer", "queue"}, found
    places = {place for kind, place in found if kind == "answer"}
    assert "POST jobs" in places and any(place.startswith("page ") for place in places)
    assert ("environment", str(child.pid)) in found and os.environ["BEATKEEPER_QUEUE_PREFIX"] in queue
