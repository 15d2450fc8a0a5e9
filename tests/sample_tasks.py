"""A code base's tasks as tests need them: they succeed, raise, sleep, hang, exit, and note what they did.

Also the app of real worker processes that tests start: what differs comes from the environment.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery

from scheduler_project.sdk.app import Beatkeeper
from scheduler_project.sdk.celery_target import CeleryTarget
from scheduler_project.sdk.outcomes import PermanentError
from scheduler_project.sdk.targets import Attempt

app = Celery("sample", broker=os.environ.get("SAMPLE_BROKER_URL", "memory://"))
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
keeper = Beatkeeper(app, pool=os.environ.get("SAMPLE_POOL", "default"))

LONG = 60


def note(event: str, **facts: Any) -> None:
    """On disk before the next thing happens: what a killed process did is known."""
    journal = os.environ.get("SAMPLE_JOURNAL")
    if journal:
        line = json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **facts})
        with open(journal, "a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def journal(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


@app.task(name="tests.succeeds", bind=True)
def succeeds(self: Any, value: Any = None) -> Any:
    note("succeeds", run=self.request.id, retries=self.request.retries)
    return value


@app.task(name="tests.prints")
def prints(*lines: str) -> None:
    for line in lines:
        print(line)  # noqa: T201
    print("on stderr", file=sys.stderr)  # noqa: T201
    logging.getLogger("sample").warning("a warning")


@app.task(name="tests.raises")
def raises(message: str = "no luck 17") -> None:
    raise ValueError(message)


@app.task(name="tests.raises_permanently")
def raises_permanently() -> None:
    raise PermanentError("never")


@app.task(name="tests.sleeps", bind=True)
def sleeps(self: Any, seconds: float = LONG) -> str:
    note("sleeps", run=self.request.id)
    print("asleep", flush=True)  # noqa: T201
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
    note("slept", run=self.request.id)
    return "rested"


@app.task(name="tests.hangs", bind=True)
def hangs(self: Any) -> None:
    """Takes no hint: only SIGKILL ends it."""
    note("hangs", run=self.request.id)
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        try:
            time.sleep(LONG)
        except Exception as error:
            note("shrugged", run=self.request.id, error=type(error).__name__)


@app.task(name="tests.exits")
def exits() -> None:
    sys.exit(3)


@app.task(name="tests.dies", bind=True)
def dies(self: Any) -> None:
    print("last words")  # noqa: T201
    note("dies", run=self.request.id)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="tests.retries", bind=True)
def retries(self: Any, countdown: float = 7) -> None:
    raise self.retry(countdown=countdown, exc=ValueError("later"))


@app.task(name="tests.autoretries", autoretry_for=(KeyError,), retry_backoff=3, retry_jitter=False)
def autoretries() -> None:
    raise KeyError("gone")


@keeper.executor("sleeping_group")
def sleeping_group(attempt: Attempt) -> None:
    """A body in a process group of its own, which the guard stops there."""
    from scheduler_project.sdk import processes

    body = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    attempt.body_is(body.pid, processes.started(body.pid))
    note("group", run=str(attempt.run_id), body=body.pid)
    if body.wait() != 0:
        raise RuntimeError("the body was ended")


def celery_target() -> CeleryTarget:
    return CeleryTarget(app)
