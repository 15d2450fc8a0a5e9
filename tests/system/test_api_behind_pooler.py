"""Two database connections in a transaction pool: API and workers share them, a scheduler refuses them."""

import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import UUID, uuid4

import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.models import Job, JobVersion, Pool, Tenant
from runs.models import Attempt, LiveRun, Run, WorkerNode
from runs.states import LiveState
from scheduler_project.sdk.ledger.interface import (
    Beat,
    ClaimRequest,
    CompletedClaim,
    WorkerInfo,
    WorkQueue,
    base_token,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.outcomes import Outcome
from scheduler_project.sdk.retries import Verdict
from tests.support.factories import TASK, job_spec, make_job, make_key, make_pool, make_run, make_tenant, now
from tests.support.ports import free_port
from tests.support.processes import CHECKOUT, PYTHON, Processes, RealProcess
from tests.support.servers.api import serve
from tests.support.waiting import wait_until

CALLERS = 8
ROUNDS = 3
RUNS = 40
ENDS_SESSIONS = "test_the_ledger_opens_a_new_connection_after_its_own_was_cut"


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
    settings = {"DATABASE_URL": pooled_database_url, "DJANGO_SETTINGS_MODULE": "scheduler_project.settings"}
    server = serve(processes, port, settings, number=2)
    api = Api(f"http://127.0.0.1:{port}", text)
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
        run = ask("POST", f"{own}/run", {"input": {"kwargs": {"turn": turn}}})
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


# The worker's side.


def test_many_workers_share_two_connections_of_a_transaction_pooler(pooled_database_url: str) -> None:
    pool, tenant = make_pool(slug="default"), make_tenant()
    job, limited = make_job(tenant, pool), make_job(tenant, pool, max_concurrency=2)
    runs = [make_run(one, LiveState.QUEUED).pk for one in (job, limited) for _ in range(RUNS)]
    with ThreadPoolExecutor(CALLERS) as workers:
        claimed = list(workers.map(lambda number: work_off(pooled_database_url, number), range(CALLERS)))
    assert sorted(run for one in claimed for run in one) == sorted(runs)
    assert not LiveRun.objects.exists()
    assert Run.objects.filter(state="succeeded").count() == Attempt.objects.count() == len(runs)
    assert WorkerNode.objects.filter(state="left").count() == CALLERS


def work_off(url: str, number: int) -> list[UUID]:
    """One worker's day; every claim is asked for twice, and every end told twice."""
    ledger = PostgresLedger(url)
    info = WorkerInfo(uuid4(), f"worker-{number}", "default", "host", 1, 1, [TASK])
    ledger.register(info)
    queue = WorkQueue(0, Pool.objects.get().pk, Tenant.objects.get().pk, "")
    done: list[UUID] = []
    beats = itertools.count(1)
    wanted = ClaimRequest(info.incarnation, base_token(), queue, [TASK], limit=2)
    claims = ledger.claim(wanted)
    while claims:
        assert ledger.claim(wanted, again=True) == claims
        beat = next(beats)
        answer = ledger.heartbeat(
            Beat(info.incarnation, beat, beat - 1, 1, 1, 0, wanted.tokens[: len(claims)], False)
        )
        assert answer.known and not answer.gone
        ended = [
            CompletedClaim(claim, Outcome("succeeded", now(), now()), Verdict("succeeded"))
            for claim in claims
        ]
        done += [claim.run_id for claim in claims]
        wanted = replace(wanted, token=base_token())
        reported = ledger.report(ended, wanted)
        assert set(reported.states) == {"succeeded"}
        assert ledger.report(ended).states == reported.states
        claims = reported.claims
    ledger.leave(info.incarnation)
    ledger.close()
    connection.close()
    return done


# Of the ledger over HTTPS, which is the API's own connection in other hands, some.
WORKER_AND_RUNS = [
    "tests/runs/ledger/test_ledger.py",
    "tests/runs/api/test_runs.py",
    "-k",
    "not https or report",
]
EVERY_API_TEST = ["tests/jobs", "tests/runs", "-k", "test_api or test_ledger"]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(WORKER_AND_RUNS, id="worker and runs"),
        pytest.param(EVERY_API_TEST, id="all", marks=pytest.mark.chaos),
    ],
)
def test_the_tests_of_the_api_and_of_the_worker_pass_behind_a_pooler(chosen: list[str]) -> None:
    """In a process of its own: there Django's connection, and with it the ledger's, leads through one."""
    # That one ends every session of the server, the pooler's among them.
    command = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--behind-pooler", *chosen]
    command += ["--deselect", f"tests/runs/ledger/test_ledger.py::{ENDS_SESSIONS}"]
    env = {**os.environ, "BEATKEEPER_TEST_ID": f"{os.environ['BEATKEEPER_TEST_ID']}p"}
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]


# The scheduler's.


def test_a_scheduler_refuses_to_start_behind_a_transaction_pooler_and_says_why(
    pooled_database_url: str, processes: Processes
) -> None:
    for direct in (None, pooled_database_url):
        beat = start_beat(processes, pooled_database_url, direct)
        assert beat.wait(40) == 1
        output = beat.text()
        assert (
            "The scheduler does not start: DATABASE_DIRECT_URL leads through a transaction pooler" in output
        )
        assert "Set it to PostgreSQL itself; DATABASE_URL may stay with the pooler." in output
        assert "Traceback" not in output


def test_a_scheduler_goes_past_the_pooler_that_the_rest_goes_through(
    pooled_database_url: str, database_url: str, processes: Processes
) -> None:
    job = make_job(next_run_at=now(), spec={"schedule": {"every": 1}})
    beat = start_beat(processes, pooled_database_url, database_url)
    wait_until(lambda: Run.objects.filter(job=job).exists(), 40, f"a run; it wrote:\n{beat.text()[-3000:]}")
    assert beat.is_alive()


def start_beat(processes: Processes, url: str, direct: str | None) -> RealProcess:
    env = {
        "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
        "DATABASE_URL": url,
        "DATABASE_DIRECT_URL": direct,
        "CELERY_BROKER_URL": "",
    }
    return processes.python("celery", "-A", "scheduler_project", "beat", "-l", "info", env=env, name="beat")
