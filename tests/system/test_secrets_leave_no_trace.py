"""Search for secrets in everything the platform leaves behind, after every way a job can use one.

Jobs run on a worker of the database and on one over HTTPS, by bodies that print all they know. Each place is also shown
to be searched: what is planted there is found.
"""

import base64
import gzip
import hashlib
import hmac
import json
import os
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote_plus, urlsplit
from uuid import UUID

import kombu
import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from jobs.models import Job, Pool, Role, Secret
from scheduler_project.sdk.secret_values.masking import MASK
from tests.support.api_client import Caller
from tests.support.certificates import OwnCA
from tests.support.factories import make_key, make_pool, make_worker
from tests.support.processes import Processes
from tests.system.leaking_tasks import digest
from tests.system.platform import AT_ONCE, NOT_ITS_OWN, Platform, Worker, our_connection
from tests.system.trace_search import Traces

USES = (
    *("HEADER", "BODY", "URL", "SIGN", "CALLBACK", "ENV", "KWARG", "INPUT", "RETRY"),
    *("REMOTE_KWARG", "REMOTE_INPUT", "REMOTE_RETRY"),
)
TELLS = "tests.leaks"
FAIL = ("env", "kwarg", "remote_kwarg")
# The body of a call tells it to the far side alone, by a signature.
NEVER_TOLD = "sign"
ONCE = {"max_attempts": 1}


class Call(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Far:
    """The far side: keeps what it was sent, and sends it back. At /later it tells the outcome when it is asked to."""

    def __init__(self) -> None:
        self.seen: list[Call] = []
        far = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                far.seen.append(Call(self.path, dict(self.headers), body))
                self.send_response(202 if self.path == "/later" else 200)
                self.end_headers()
                self.wfile.write(f"{self.path}\n{self.headers}\n".encode() + body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def at(self, path: str) -> Call:
        (call,) = (call for call in self.seen if urlsplit(call.path).path == path)
        return call

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
            platform.pool.exported_tasks.append(TELLS)
            platform.pool.save()
            self.remote_pool = make_pool(slug="remote", shared=False, exported_tasks=[TELLS])
            self.remote_pool.tenants.add(platform.tenant)
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

    def remote_worker(self, port: int, ca: OwnCA) -> Worker:
        """Start a worker that has an address, a key of its pool and a CA, and no way to read secrets."""
        with our_connection():
            _, key = make_key(self.platform.tenant, Role.WORKER, pool=self.remote_pool)
        env: dict[str, Any] = dict.fromkeys((*NOT_ITS_OWN, "ENCRYPTION_KEYS"))
        env |= {"BEATKEEPER_URL": f"https://localhost:{port}", "BEATKEEPER_CA_FILE": str(ca.ca)}
        env |= {"BEATKEEPER_API_KEY": key, "SAMPLE_POOL": ""}
        return self.platform.worker(app="tests.system.leaking_tasks", slots=1, **env)

    def job(self, name: str, target: dict[str, Any], **more: Any) -> Job:
        spec = {"name": name, "target": target, "retry": ONCE, "overlap": "allow_all", **more}
        made = self.post("jobs", spec)
        assert made.status_code == 201, made.content
        with our_connection():
            return Job.objects.get(pk=made.json()["id"])

    def run(self, job: Job, given: dict[str, Any] | None = None) -> None:
        made = self.post(f"jobs/{job.pk}/run", {"input": given} if given else {})
        assert made.status_code == 201, made.content

    def jobs(self) -> dict[str, Job]:
        secret = {name: f"${{secret:{name}}}" for name in USES}
        return {
            **self.calls(secret),
            **self.commands(secret),
            **self.tasks(secret),
            **self.remote_tasks(secret),
        }

    def calls(self, secret: dict[str, str]) -> dict[str, Job]:
        def call(name: str, path: str, **more: Any) -> Job:
            return self.job(
                name, {"kind": "http", "url": f"http://{self.far.address}{path}", "body": {}, **more}
            )

        return {
            "header": call("header", "/header", headers={"X-Auth": f"Key {secret['HEADER']}"}),
            "body": call("body", "/body", body={"deep": [secret["BODY"]]}),
            "url": call("url", f"/url?key={secret['URL']}"),
            "sign": call("sign", "/sign", sign={"secret": "SIGN"}),
            "callback": call(
                "callback", "/later", headers={"X-Auth": secret["CALLBACK"]}, callback={"timeout": "PT1H"}
            ),
        }

    def commands(self, secret: dict[str, str]) -> dict[str, Job]:
        had = 'printf "had %s\\n" "$(printf %s "$KEY" | sha256sum)"'
        shell = f'{had}; echo "$KEY"; printf %s "$KEY" | base64 >&2; exit 3'
        target = {"kind": "command", "argv": ["sh", "-c", shell], "env": {"KEY": secret["ENV"]}}
        return {"env": self.job("env", target)}

    def tasks(self, secret: dict[str, str]) -> dict[str, Job]:
        return {
            "kwarg": self.job("kwarg", target_with(key=secret["KWARG"], raising=True)),
            "input": self.job("input", target_with(key="none")),
            "retry": self.job("retry", target_with(key=secret["RETRY"], again=0), retry=AT_ONCE),
        }

    def remote_tasks(self, secret: dict[str, str]) -> dict[str, Job]:
        there = {"pool": self.remote_pool.slug}
        return {
            "remote_kwarg": self.job(
                "remote_kwarg", target_with(key=secret["REMOTE_KWARG"], raising=True), **there
            ),
            "remote_input": self.job("remote_input", target_with(key="none"), **there),
            "remote_retry": self.job(
                "remote_retry", target_with(key=secret["REMOTE_RETRY"], again=0), retry=AT_ONCE, **there
            ),
        }

    def bring(self, outcome: dict[str, Any]) -> None:
        """As the far side does that was called at /later."""
        waiting = "SELECT FROM beatkeeper_live_run WHERE state = 'waiting_callback'"
        self.platform.wait(lambda: self.platform.rows(waiting), 40, "a run that waits for its callback")
        headers = self.far.at("/later").headers
        path = urlsplit(headers["Beatkeeper-Callback-Url"]).path
        token = {"Authorization": f"Bearer {headers['Beatkeeper-Callback-Token']}"}
        with our_connection():
            answer = Client().post(path, json.dumps(outcome), content_type="application/json", headers=token)
        assert self.traces.note(f"POST {path}", answer).status_code == 200, answer.content

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


def target_with(**kwargs: Any) -> dict[str, Any]:
    return {"kind": "celery", "task": TELLS, "kwargs": kwargs}


@pytest.fixture
def scene(platform: Platform, far: Far) -> Scene:
    return Scene(platform, far)


def test_no_secret_is_found_anywhere_after_real_runs(
    scene: Scene, processes: Processes, api_port: int, own_ca: OwnCA
) -> None:
    platform = scene.platform
    scheduler = platform.scheduler()
    workers = [
        platform.worker(app=app, slots=1) for app in ("tests.system.leaking_tasks", "scheduler_project")
    ]
    workers.append(scene.remote_worker(api_port, own_ca))
    for worker in workers:
        worker.wait_until_known()
    scene.keep_secrets()
    jobs = scene.jobs()
    inputs = {name: {"kwargs": {"key": f"${{secret:{name.upper()}}}"}} for name in ("input", "remote_input")}
    for name, job in jobs.items():
        scene.run(job, inputs.get(name))
    scene.bring({"outcome": "succeeded", "result": {"given": [scene.values["CALLBACK"]]}})
    runs = {
        name: platform.run_of(job, "dead" if name in FAIL else "succeeded", 40) for name, job in jobs.items()
    }

    assert_each_body_had_its_secret(scene, runs)
    assert_it_is_masked_where_it_was_printed(scene, runs)
    while_it_runs_only_the_command_itself_has_it(scene)
    while_they_wait_for_a_retry_only_their_references_are_kept(scene)
    scene.look_at_everything(jobs)

    for worker in workers:
        worker.kill_whole()
    # A worker that is only said to live: wake-ups are sent, and stay where they are.
    with our_connection():
        for pool in (platform.pool, scene.remote_pool):
            make_worker(pool, known_targets=[TELLS])
    for name in ("input", "kwarg", "remote_input", "remote_kwarg"):
        scene.run(jobs[name], inputs.get(name))
    platform.wait(
        lambda: queues(platform) <= queues_with_wakeups(scene), 20, "wake-ups in both pools' queues"
    )
    assert scheduler.is_alive()
    assert scene.traces.found(scene.values.values()) == set()
    assert_the_search_finds_what_is_there(scene, processes)


def queues(platform: Platform) -> set[str]:
    """Of both pools. Other queues of this run may hold what other tests left there."""
    queues = {row["broker_queue"] for row in platform.rows("SELECT broker_queue FROM beatkeeper_pool")}
    assert len(queues) == 2
    return queues


def queues_with_wakeups(scene: Scene) -> set[str]:
    scene.traces.drain_queues()
    return {queue for queue, _ in scene.traces.messages}


def assert_each_body_had_its_secret(scene: Scene, runs: dict[str, Any]) -> None:
    values, far = scene.values, scene.far
    assert far.at("/header").headers["X-Auth"] == f"Key {values['HEADER']}"
    assert json.loads(far.at("/body").body) == {"deep": [values["BODY"]]}
    assert parse_qs(urlsplit(far.at("/url").path).query) == {"key": [values["URL"]]}
    assert far.at("/later").headers["X-Auth"] == values["CALLBACK"]
    assert_is_signed(far.at("/sign"), values["SIGN"])
    for name in ("env", "kwarg", "input", "retry", "remote_kwarg", "remote_input", "remote_retry"):
        assert f"had {digest(values[name.upper()])}" in scene.platform.log_of(runs[name]), name
    for name in ("input", "retry", "remote_input", "remote_retry"):
        assert runs[name]["result"]["digest"] == digest(values[name.upper()]), name
    for name in ("retry", "remote_retry"):
        assert scene.platform.outcomes(runs[name]) == ["failed", "succeeded"]


def assert_is_signed(call: Call, key: str) -> None:
    at, signed = (part.partition("=")[2] for part in call.headers["Beatkeeper-Signature"].split(","))
    message = b"\n".join([at.encode(), b"POST", call.path.encode(), call.body])
    assert signed == hmac.new(key.encode(), message, hashlib.sha256).hexdigest()


def assert_it_is_masked_where_it_was_printed(scene: Scene, runs: dict[str, Any]) -> None:
    for name, run in runs.items():
        assert name == NEVER_TOLD or MASK in scene.platform.log_of(run), name
    for name in ("kwarg", "remote_kwarg"):
        assert runs[name]["error_line"] == f"nobody takes '{MASK}'"
    for name in ("input", "callback", "retry", "remote_input", "remote_retry"):
        assert runs[name]["result"]["given"] == [MASK], name


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


def while_they_wait_for_a_retry_only_their_references_are_kept(scene: Scene) -> None:
    platform = scene.platform
    places = {"RETRY": platform.pool.slug, "REMOTE_RETRY": scene.remote_pool.slug}
    jobs = [
        scene.job(
            f"patient {name}", target_with(key=f"${{secret:{name}}}", again=600), retry=AT_ONCE, pool=pool
        )
        for name, pool in places.items()
    ]
    for job in jobs:
        scene.run(job)
    waiting = "SELECT input FROM beatkeeper_live_run WHERE state = 'delayed'"
    platform.wait(lambda: len(platform.rows(waiting)) == len(jobs), 30, "runs between two attempts")
    kept = {row["input"]["kwargs"]["key"] for row in platform.rows(waiting)}
    assert kept == {f"${{secret:{name}}}" for name in places}
    assert scene.traces.found(scene.values.values()) == set()
    for job in jobs:
        platform.cancel(job)
        platform.run_of(job, "cancelled")


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
        "jobs", {"name": "planted", "description": coded, "target": {"kind": "celery", "task": TELLS}}
    )
    scene.page("beatkeeper_jobs_job_change", UUID(made.json()["id"]))
    (platform.spool / "planted").write_text(base64.urlsafe_b64encode(planted.encode()).decode())
    (platform.folder / "planted.log").write_text(planted)
    (platform.folder / "logs" / "planted.jsonl.gz").write_bytes(gzip.compress(json.dumps(planted).encode()))
    env = {**platform.env(), "PLANTED": quote_plus(planted)}
    child = processes.start("sleep", "60", env=env, name="planted")
    drained = len(scene.traces.messages)
    with our_connection():
        queue = Pool.objects.exclude(broker_queue="").values_list("broker_queue", flat=True)[0]
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
