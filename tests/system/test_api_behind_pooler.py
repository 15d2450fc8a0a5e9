"""The API in production: a real server, many callers, two database connections in a transaction pool."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from auditlog.models import AuditEntry
from jobs.models import Job, JobVersion
from runs.models import LiveRun, Run
from tests.factories import job_spec, make_key, make_pool, make_tenant
from tests.ports import free_port
from tests.processes import PYTHON, Processes
from tests.waiting import wait_until

CALLERS = 8
ROUNDS = 3


class Api:
    def __init__(self, base: str, key: str) -> None:
        self.base = base
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.base}{path}", data, {**self.headers, **named}, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=30) as response:  # noqa: S310
                return response.status, json.loads(response.read() or b"null")
        except HTTPError as refused:
            return refused.code, json.loads(refused.read())

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/healthz")[0] == 200
        except OSError:
            return False


@pytest.fixture
def api(pooled_database_url: str, processes: Processes) -> Iterator[Api]:
    make_pool(slug="default")
    _, text = make_key(make_tenant())
    port = free_port()
    command = ("-m", "gunicorn", "-b", f"127.0.0.1:{port}", "-w", "2", "--threads", "4")
    settings = {"DATABASE_URL": pooled_database_url, "DJANGO_SETTINGS_MODULE": "scheduler_project.settings"}
    server = processes.start(PYTHON, *command, "scheduler_project.wsgi", env=settings)
    api = Api(f"http://127.0.0.1:{port}", text)
    wait_until(api.answers, 30, f"the server; it wrote {server.text()}")
    yield api
    server.terminate()


def live_through(api: Api, number: int) -> Counter[int]:
    """One caller's day: everything a job goes through."""
    statuses: Counter[int] = Counter()

    def ask(*request: Any, **headers: str) -> Any:
        status, body = api.ask(*request, **headers)
        statuses[status] += 1
        return body

    for turn in range(ROUNDS):
        spec = job_spec(name=f"job {number} {turn}", schedule={"every": 3600})
        job = ask("POST", "/api/v1/jobs", spec, Idempotency_Key=f"{number} {turn}")
        own = f"/api/v1/jobs/{job['id']}"
        assert ask("POST", "/api/v1/jobs", spec, Idempotency_Key=f"{number} {turn}") == job
        assert ask("PATCH", own, {"timeout": 60})["version"] == 2
        assert ask("POST", f"{own}/pause", {})["status"] == "paused"
        assert ask("POST", f"{own}/resume", {})["status"] == "active"
        run = ask("POST", f"{own}/run", {"input": {"turn": turn}})
        assert ask("POST", f"/api/v1/runs/{run['id']}/cancel", {})["state"] == "cancelled"
        assert ask("POST", f"/api/v1/runs/{run['id']}/retry", {})["retry_of"] == run["id"]
        assert ask("GET", f"{own}/runs")["results"][0]["state"] == "ready"
        ask("GET", "/api/v1/jobs?limit=5")
    return statuses


def test_many_callers_share_two_connections_of_a_transaction_pooler(api: Api) -> None:
    with ThreadPoolExecutor(CALLERS) as callers:
        statuses = sum(callers.map(lambda number: live_through(api, number), range(CALLERS)), Counter())
    assert set(statuses) == {200, 201}
    jobs = CALLERS * ROUNDS
    assert Job.objects.count() == jobs and JobVersion.objects.count() == 2 * jobs
    assert Run.objects.count() == 2 * jobs and LiveRun.objects.count() == jobs
    actions = Counter(AuditEntry.objects.exclude(object_type="apikey").values_list("action", flat=True))
    deeds = (
        "job.created",
        "job.edited",
        "job.paused",
        "job.resumed",
        "run.requested",
        "run.cancelled",
        "run.retried",
    )
    assert actions == Counter(dict.fromkeys(deeds, jobs))


def test_what_was_answered_201_survives_the_death_of_the_server(api: Api, processes: Processes) -> None:
    """Promise 1."""
    status, job = api.ask("POST", "/api/v1/jobs", job_spec(schedule={"every": 60}))
    assert status == 201
    processes.stop_all()
    assert Job.objects.get(pk=job["id"]).clock.next_run_at is not None
