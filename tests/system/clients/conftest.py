"""The API as it is served, with a key, a run that prints, and its document; and the tools that read it."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from django.db import connection

from jobs.models import Tenant
from runs.states import LiveState
from scheduler_project.sdk.logs.folder import FolderLogStore
from tests.support import npm
from tests.support.factories import (
    TASK,
    make_key,
    make_pool,
    make_run,
    make_tenant,
    make_worker,
    now,
    post_job,
)
from tests.support.ports import free_port
from tests.support.processes import PYTHON, Processes, environment
from tests.support.servers.api import serve
from tests.support.waiting import wait_until

PRINTED = "settling 3 accounts"
NAME = "api for clients"
KNOWN = [TASK, "kind:http", "kind:command"]


@dataclass(frozen=True)
class Served:
    url: str
    tenant: Tenant
    key: str
    # A run that a worker has, and that has printed a line.
    running: str
    document: Path


@pytest.fixture
def served(database_url: str, processes: Processes, tmp_path: Path) -> Iterator[Served]:
    port, logs = free_port(), tmp_path / "logs"
    # Cases with wrong keys expect 401, however many there are in a minute.
    env = {
        "DATABASE_URL": database_url,
        "LOG_STORE_URL": logs.as_uri(),
        "PGAPPNAME": NAME,
        "BEATKEEPER_WRONG_KEYS_PER_MINUTE": "0",
    }
    process = serve(processes, port, env)
    url = f"http://127.0.0.1:{port}"
    tenant, pool = make_tenant(), make_pool(slug="default")
    running = make_run(post_job(tenant), LiveState.RUNNING, worker=make_worker(pool, known_targets=KNOWN))
    with FolderLogStore(logs).open(running.pk, running.claim_seq) as file:
        line = {"t": now().isoformat(), "s": "stdout", "l": "", "m": PRINTED}
        file.write(json.dumps(line).encode() + b"\n")
    document = tmp_path / "openapi.json"
    document.write_bytes(httpx.get(f"{url}/api/v1/schema?format=json").content)
    yield Served(url, tenant, make_key(tenant)[1], str(running.pk), document)
    process.terminate()
    wait_until(lambda: not sessions(), 10, "the end of the API's sessions")


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
            [NAME],
        )
        return int(cursor.fetchone()[0])


@pytest.fixture(scope="session")
def npm_programs() -> Path:
    if not npm.installed():
        pytest.skip("the npm packages are not installed: python -m tests.support.bring_up true")
    return npm.FOLDER / "node_modules" / ".bin"


def run_to_end(command: list[str], timeout: int = 120, **env: str) -> str:
    # The generator of the Python client formats what it writes with the ruff beside it.
    path = f"{Path(PYTHON).parent}:{os.environ['PATH']}"
    all_env = environment({"PATH": path, **env})
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=all_env)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
