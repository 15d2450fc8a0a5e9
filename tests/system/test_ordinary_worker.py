"""A real worker that is an ordinary user: its commands work, learn nothing of it, and end when they should."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from tests.runs.targets.ordinary_user import SYSTEM_PYTHON, needs_bubblewrap, user, user_group
from tests.support.processes import CHECKOUT, Processes
from tests.system.platform import Platform, Worker, is_dead, running

pytestmark = needs_bubblewrap
PACKAGES = next(path for path in sys.path if path.endswith("site-packages"))


def interpreter() -> str | None:
    """Root's own may lie in root's home; the system's does where it is of the same version."""
    tried = f"import sys, celery, psycopg; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    for python in (sys.executable, SYSTEM_PYTHON):
        try:
            answer = subprocess.run(
                [python, "-c", tried],
                user=user(),
                group=user_group(),
                cwd="/",
                env={"PYTHONPATH": PACKAGES},
                capture_output=True,
            )
        except OSError:
            continue
        if answer.returncode == 0:
            return python
    return None


@pytest.fixture
def own_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ordinary-", dir="/var/lib" if os.geteuid() == 0 else None))
    os.chown(folder, user(), user_group())
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def log_store_url(own_folder: Path) -> str:
    return f"file://{own_folder}/logs"


@pytest.fixture
def worker(
    platform: Platform,
    processes: Processes,
    own_folder: Path,
    log_store_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Worker:
    python = interpreter()
    if python is None:
        pytest.skip("no interpreter with our packages is an ordinary user's to start")
    monkeypatch.setattr(Platform, "log_store_url", log_store_url)
    name = f"ordinary@{settings.TEST_ID}-{platform.folder.name}"
    process = processes.start(
        *("setpriv", f"--reuid={user()}", f"--regid={user_group()}", "--clear-groups") * (os.geteuid() == 0),
        *(python, "-m", "celery", "-A", "scheduler_project", "worker", "-l", "info", "-c", "2", "-n", name),
        *("-Q", platform.own_queue, "--without-gossip", "--without-mingle"),
        env={
            **platform.env(),
            "PYTHONPATH": f"{CHECKOUT}:{PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(own_folder),
            "BEATKEEPER_SPOOL_DIR": str(own_folder / "spool"),
            "BEATKEEPER_COMMANDS_AS_WORKER": "0",
            "PLANTED": "planted-s3cr3t",
        },
        name="ordinary-worker",
    )
    platform.scheduler()
    return Worker(process, name, own_folder / "spool")


def command(script: str) -> dict[str, Any]:
    return {"kind": "command", "argv": ["sh", "-c", script]}


def test_a_command_works_and_learns_nothing_of_its_worker(
    platform: Platform, worker: Worker, own_folder: Path
) -> None:
    script = f"id -u; cat /proc/[0-9]*/environ; cat {own_folder}/spool/*/config.json; env; kill -0 {worker.pid}; exit 7"
    job = platform.run_once(target=command(script), retry={"max_attempts": 1})
    run = platform.run_of(job, "dead")
    log = platform.log_of(run)
    assert (run["exit_code"], run["error_class"]) == (7, "transient"), run
    assert '"m": "65534"' in log and "BEATKEEPER_RUN=" in log and "No such process" in log
    for secret in ("planted-s3cr3t", platform.database_url, "DATABASE_URL"):
        assert secret not in log


@pytest.mark.parametrize("end", ["cancel", "limit", "lost worker"])
def test_nothing_of_a_command_stays(platform: Platform, worker: Worker, end: str) -> None:
    mark = f"31.{secrets.randbelow(10**9):09}"
    script = f"trap '' TERM; setsid sleep {mark} & sleep {mark}"
    limit: dict[str, Any] = {"timeout": 3} if end == "limit" else {}
    job = platform.run_once(target=command(script), retry={"max_attempts": 1}, **limit)
    body = platform.wait(lambda: sleeping(mark), 30, "the command")
    if end == "cancel":
        platform.cancel(job)
        assert platform.run_of(job, "cancelled")["error_class"] == "cancelled"
    elif end == "limit":
        assert platform.run_of(job, "dead")["error_class"] == "timeout"
    else:
        worker.kill_whole()
        platform.wait(lambda: all(is_dead(pid) for pid in body), 10, "the end of the command")
    assert all(is_dead(pid) for pid in body)


def sleeping(mark: str) -> list[int] | None:
    """Those that ignore the soft stop as the shell does, one of them in a session of its own."""
    found = running(f"sleep\0{mark}")
    return found if len(found) == 2 else None
