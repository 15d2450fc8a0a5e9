"""A code base's tasks as tests need them: they succeed, raise, sleep, hang, exit, and note what they did.

Also the app of real worker processes that tests start: what differs comes from the environment.
"""

import json
import logging
import math
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, signals

from scheduler_project.sdk.app import Beatkeeper
from scheduler_project.sdk.execution import batching as batches
from scheduler_project.sdk.outcomes import PermanentError
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.targets.registry import TargetCall
from scheduler_project.sdk.worker import admission

app = Celery("sample", broker=os.environ.get("SAMPLE_BROKER_URL", "memory://"))
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
keeper = Beatkeeper(
    app, pool=os.environ.get("SAMPLE_POOL", "default"), log_store=os.environ.get("LOG_STORE_URL")
)

if os.environ.get("SAMPLE_PICKLES"):
    app.conf.update(accept_content=["pickle"], task_serializer="pickle", result_serializer="pickle")

batches.BATCH_SECONDS = float(os.environ.get("SAMPLE_BATCH_SECONDS", batches.BATCH_SECONDS))
admission.ACKED_AFTER_SECONDS = float(os.environ.get("SAMPLE_ACKED_AFTER", admission.ACKED_AFTER_SECONDS))
LONG = 60
ALIVE_SECONDS = 0.2


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


@app.task(name="tests.works_when")
def works_when(path: str) -> str:
    """As something far away that is down, until it is mended."""
    if not Path(path).exists():
        raise ConnectionError("no answer from far away")
    return "answered"


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


@app.task(name="tests.witnesses", bind=True)
def witnesses(self: Any, seconds: float = 0.0, until: str = "", raising: bool = False) -> int:
    """Write when it starts, lives and ends, and which earlier attempt of its run it meets alive.

    It goes on for so many seconds, or until a file exists.
    """
    # Lost attempts count here, other than in retries.
    facts = {"run": self.request.id, "attempt": self.request.get("beatkeeper_attempt", 1)}
    note("start", **facts, pid_started=processes.started(os.getpid()), met_alive=_others_alive(**facts))
    print("attempt", facts["attempt"], flush=True)  # noqa: T201
    end = time.monotonic() + seconds
    while time.monotonic() < end or (until and not Path(until).exists()):
        note("alive", **facts)
        time.sleep(0.1)
    if raising:
        raise ValueError("as asked")
    note("end", **facts)
    return int(facts["attempt"])


def _others_alive(run: str, attempt: int) -> list[int]:
    lines = journal(Path(os.environ["SAMPLE_JOURNAL"]))
    started = [line for line in lines if line["event"] == "start" and line["run"] == run]
    ended = {line["attempt"] for line in lines if line["event"] == "end" and line["run"] == run}
    return [
        line["pid"]
        for line in started
        if line["attempt"] not in ended
        and line["pid"] != os.getpid()
        and processes.alive(line["pid"], line["pid_started"])
    ]


@app.task(name="tests.crowds", bind=True)
def crowds(self: Any, until: str = "") -> int:
    """Run shortly, now and then longer, or until there is such a file.

    Each run has a file of its own, in which each try leaves its lines.
    """
    request = self.request
    folder = Path(os.environ["SAMPLE_CROWD"])
    facts = {"pid": os.getpid(), "claim_seq": request.beatkeeper_claim_seq}
    _on_disk(folder / request.id, "start", **facts, born=processes.started(os.getpid()))
    chance = random.Random(f"{request.id}.{facts['claim_seq']}")
    (most,) = chance.choices([0.05, 3.0, 15.0], weights=[989, 10, 1])
    end = time.monotonic() + chance.uniform(0.0, most)

    def left() -> float:
        if until:
            return 0.0 if Path(until).exists() else math.inf
        return end - time.monotonic()

    while (rest := left()) > 0:
        time.sleep(min(ALIVE_SECONDS, rest))
        if rest > ALIVE_SECONDS:
            _on_disk(folder / request.id, "alive", **facts)
    _on_disk(folder / request.id, "end", **facts)
    return int(facts["claim_seq"])


def _on_disk(path: Path, event: str, **facts: Any) -> None:
    with open(path, "a") as file:
        file.write(json.dumps({"event": event, "at": time.time(), **facts}) + "\n")
        file.flush()
        os.fsync(file.fileno())


@app.task(name="tests.starts_another", bind=True)
def starts_another(self: Any) -> None:
    """Its helper has a session of its own, as a shell script's may."""
    helper = subprocess.Popen(["setsid", "sh", "-c", "sleep 300 & wait"])
    note("starts_another", run=self.request.id, helper=helper.pid)
    while True:
        try:
            time.sleep(LONG)
        except Exception:
            note("shrugged", run=self.request.id)


@app.task(name="tests.hangs", bind=True)
def hangs(self: Any) -> None:
    """Ignore every hint: only SIGKILL ends it."""
    note("hangs", run=self.request.id)
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        try:
            time.sleep(LONG)
        except Exception as error:
            note("shrugged", run=self.request.id, error=type(error).__name__)


@app.task(name="tests.computes", bind=True)
def computes(self: Any) -> int:
    """Without giving another thread of its process a chance."""
    note("computes", run=self.request.id)
    return sum(range(10**15))


@app.task(name="tests.exits")
def exits() -> None:
    sys.exit(3)


class Halt(BaseException):
    pass


@app.task(name="tests.halts")
def halts() -> None:
    raise Halt("no exception")


@app.task(name="tests.hoards")
def hoards() -> None:
    """Asks for more memory than its process may have."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        has = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + 64 * 2**20, before[1]))
    try:
        bytearray(256 * 2**20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@app.task(name="tests.makes_a_keeper")
def makes_a_keeper() -> None:
    Beatkeeper(app)


@app.task(name="tests.dies", bind=True)
def dies(self: Any) -> None:
    print("last words")  # noqa: T201
    note("dies", run=self.request.id)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="tests.retries", bind=True)
def retries(self: Any, countdown: float = 7) -> None:
    raise self.retry(countdown=countdown, exc=ValueError("later"))


@app.task(name="tests.steps", bind=True, max_retries=1)
def steps(self: Any, step: int) -> int:
    """Goes on with other arguments, further than its own limit would let it."""
    if step < 3:
        raise self.retry(args=[step + 1], countdown=0)
    return step


@app.task(name="tests.autoretries", autoretry_for=(KeyError,), retry_backoff=3, retry_jitter=False)
def autoretries() -> None:
    raise KeyError("gone")


@keeper.executor("sleeping_group")
def sleeping_group(attempt: TargetCall) -> None:
    """Run a body in a process group of its own, which the guard stops there."""
    body = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    attempt.body_is(body.pid, processes.started(body.pid))
    note("group", run=str(attempt.run_id), body=body.pid)
    if body.wait() != 0:
        raise RuntimeError("the body was ended")


if os.environ.get("SAMPLE_DECLARES"):
    keeper.job("sample", every=60)(succeeds)


class Promise:
    """A lazy translation, by the name of Django's class, that cannot be evaluated."""

    def __str__(self) -> str:
        raise RuntimeError("no catalog")


if os.environ.get("SAMPLE_DECLARES_BADLY"):
    keeper.job("sample", tags={"of": Promise()})(succeeds)  # type: ignore[dict-item]

if os.environ.get("SAMPLE_KEPT_TWICE"):
    Beatkeeper(app)


def block() -> None:
    """Once: in the process that forked, as a lock does that nobody gives back."""
    hangs = Path(os.environ["SAMPLE_FEED_HANGS"])
    if hangs.exists():
        hangs.unlink()
        note("hung")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


if os.environ.get("SAMPLE_FEED_HANGS"):
    os.register_at_fork(after_in_parent=block)


@signals.task_received.connect
def stick(**_: Any) -> None:
    """In the worker's event loop, which does nothing else meanwhile."""
    if os.environ.get("SAMPLE_STICKS"):
        note("hung")
        time.sleep(LONG)
