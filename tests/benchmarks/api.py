"""How fast the API answers, beside an endpoint that does nothing, on the same server with the same key.

Each of CLIENTS sends its next request when the one before is answered. The endpoints take turns.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx

from jobs.access.api_keys import create_key
from jobs.models import Job
from tests.benchmarks.edit import django_on
from tests.benchmarks.figures import percentile
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Stage, check_alive, say
from tests.support.ports import answers, free_port
from tests.support.processes import CHECKOUT
from tests.support.waiting import wait_until

KEYS = (
    "status_ratio", "status_p99_ms", "create_p99_ms", "list_p99_ms", "trivial_per_second", "status_per_second",
    "create_per_second", "list_per_second"
)  # fmt: skip
LISTED = 200
NEW_JOB = {
    "name": "%name%",
    "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
    "target": {"kind": "celery", "task": "bench.noop"},
}


@dataclass
class Endpoint:
    request: str
    status: int = 200
    body: str = ""
    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def measure(stage: Stage) -> dict[str, Any]:
    database = stage.database(whole("STORED", 1_000_000, 100))
    with django_on(database):
        job = Job.objects.select_related("tenant").order_by("pk")[0]
        _, key = create_key(job.tenant, "benchmark")
    port = free_port()
    settings = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.api_settings"}
    address = f"127.0.0.1:{port}"
    server = stage.python("manage.py", "serve", "--bind", address, url=database.url, **settings).process
    wait_until(lambda: answers(port) or not server.is_alive(), 60, "the API")
    check_alive(server)
    with httpx.Client(base_url=f"http://{address}/api/v1", headers={"Authorization": f"Bearer {key}"}) as api:
        for _ in range(LISTED):
            api.post(f"/jobs/{job.pk}/run", json={}).raise_for_status()
    endpoints = {
        "trivial": Endpoint("GET /api/v1/trivial"),
        "status": Endpoint(f"GET /api/v1/jobs/{job.pk}"),
        "list": Endpoint("GET /api/v1/runs"),
        "create": Endpoint("POST /api/v1/jobs", 201, json.dumps(NEW_JOB)),
    }
    clients, seconds = whole("CLIENTS", 8), number("SECONDS", 10.0, 0.5)
    for turn in range(whole("REPEATS", 3)):
        for name, endpoint in endpoints.items():
            _load(endpoint, port, key, clients, seconds, f"{name}-{turn}")
    check_alive(server)
    server.terminate()
    return _figures(endpoints, clients)


def _load(endpoint: Endpoint, port: int, key: str, clients: int, seconds: float, name: str) -> None:
    head = f"{endpoint.request} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    load = {
        "port": port,
        "clients": clients,
        "seconds": seconds,
        "name": name,
        "head": f"{head}Content-Type: application/json\r\n",
        "body": endpoint.body,
        "status": endpoint.status,
    }
    command = [sys.executable, "-m", "tests.benchmarks.api_load", json.dumps(load)]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    endpoint.rates.append(len(found) / seconds)
    endpoint.seconds += found


def _figures(endpoints: dict[str, Endpoint], clients: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"clients": clients}
    for name, endpoint in endpoints.items():
        figures[f"{name}_per_second"] = round(median(endpoint.rates))
        for percent in (50, 99):
            figures[f"{name}_p{percent}_ms"] = round(percentile(endpoint.seconds, percent) * 1000, 1)
        say(
            f"  {endpoint.request[:40]:40} {figures[f'{name}_per_second']:6,} a second,"
            f" p50 {figures[f'{name}_p50_ms']} ms, p99 {figures[f'{name}_p99_ms']} ms"
        )
    figures["status_ratio"] = round(figures["status_per_second"] / figures["trivial_per_second"], 3)
    return figures
