"""How soon a run starts again when what carries it out is killed, or when its wake-up went to a busy worker.

Real schedulers and workers, whose bodies write down on disk when they begin
(`tests/support/sample_tasks.py`). Killed are the child that runs a body, and a whole worker at once: parent, guard and
children, as a machine that loses its power. A run is stuck when its wake-up went to a worker whose one slot is taken
by a task of the code base's own.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from kombu import Connection

from jobs.models import Job
from scheduler_project.sdk.shared.slot_record import FOREIGN
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Stage, say
from tests.support.sample_tasks import app
from tests.support.waiting import wait_until
from tests.system.platform import Platform, Witness, Worker, django_at, send

KEYS = (
    "child_ms",
    "child_worst_ms",
    "worker_ms",
    "worker_worst_ms",
    "steal_ms",
    "steal_worst_ms",
    "lease_ms",
)
CHILD_LIMIT, STEAL_LIMIT, OVER_LEASE = 1000, 3000, 2000
# Whoever got its wake-up at once was not stuck: a busy worker keeps one for a second.
STUCK = 0.7
NO_PAUSE = {"max_attempts": 2, "backoff": "immediate", "max_losses": 50}


def measure(stage: Stage) -> dict[str, Any]:
    lease, times = number("LEASE", 30.0, 4.0), whole("TIMES", 5)
    url = stage.migrated("recovery")
    with queues_of(stage), django_at(url):
        crew = Crew(Platform(stage.processes, stage.folder, url, stage.broker_url), lease)
        try:
            figures = crew.measure(times, whole("LOST_WORKERS", 3))
        finally:
            crew.platform.end_everything()
    figures["lease_ms"] = round(1000 * lease)
    limits = {
        "child_worst_ms": CHILD_LIMIT,
        "worker_worst_ms": figures["lease_ms"] + OVER_LEASE,
        "steal_worst_ms": STEAL_LIMIT,
    }
    for name, limit in limits.items():
        if figures[name] >= limit:
            say(f"NOTE: {name} is {figures[name]}, and should be under {limit}")
    return figures


class Crew:
    def __init__(self, platform: Platform, lease: float) -> None:
        self.platform, self.lease = platform, lease
        self.gates = 0

    def measure(self, times: int, lost_workers: int) -> dict[str, int]:
        self.platform.scheduler()
        began = time.monotonic()
        child = self.killed_children(times)
        steal = self.stuck_runs(times)
        # A scheduler that begins believes no silence for one lease.
        wait_until(
            lambda: time.monotonic() - began > self.lease + 1, self.lease + 5, "a scheduler that believes"
        )
        worker = self.killed_workers(lost_workers)
        found = {"child": child, "steal": steal, "worker": worker}
        for name, seconds in found.items():
            say(f"{name}: {', '.join(f'{1000 * one:.0f}' for one in sorted(seconds))} ms")
        return {
            key: round(1000 * value)
            for name, seconds in found.items()
            for key, value in ((f"{name}_ms", median(seconds)), (f"{name}_worst_ms", max(seconds)))
        }

    def killed_children(self, times: int) -> list[float]:
        worker = self.worker()
        job, gate = self.long_run()
        found = []
        for attempt in range(1, times + 1):
            seen = self.wait_for_start(job, attempt)
            killed_at = time.time()
            send(signal.SIGKILL, seen.pid)
            found.append(self.wait_for_start(job, attempt + 1).started_at - killed_at)
        gate.touch()
        self.platform.run_of(job, "succeeded")
        worker.process.terminate()
        return found

    def killed_workers(self, times: int) -> list[float]:
        """Start two workers first, or the start of the second would be measured."""
        workers = [self.worker(), self.worker()]
        job, gate = self.long_run()
        found = []
        for attempt in range(1, times + 1):
            seen = self.wait_for_start(job, attempt)
            victim = next(one for one in workers if seen.pid in one.children())
            killed_at = time.time()
            victim.kill_whole()
            workers = [one for one in workers if one is not victim] + [self.worker()]
            again = self.wait_for_start(job, attempt + 1, timeout=3 * self.lease + 30)
            found.append(again.started_at - killed_at)
        gate.touch()
        self.platform.run_of(job, "succeeded")
        for worker in workers:
            worker.process.terminate()
        return found

    def stuck_runs(self, times: int) -> list[float]:
        """Return the slowest starts: a wake-up that goes to the busy worker is soon followed by another."""
        busy = self.worker()
        self.occupy(busy)
        free = self.worker()
        starts: list[float] = []
        while sum(seconds > STUCK for seconds in starts) < times and len(starts) < 5 * times:
            job = self.platform.run_once(retry=NO_PAUSE)
            asked_at = time.time()
            started = self.wait_for_start(job, 1).started_at - asked_at
            self.platform.run_of(job, "succeeded")
            starts.append(started)
        stuck = sum(seconds > STUCK for seconds in starts)
        say(f"{stuck} of {len(starts)} runs were stuck behind the busy worker")
        for worker in (busy, free):
            worker.process.kill()
        return sorted(starts)[-times:]

    def occupy(self, worker: Worker) -> None:
        with Connection(self.platform.broker_url) as broker:
            app.send_task("tests.sleeps", [3600], queue=self.platform.own_queue, connection=broker)
        wait_until(
            lambda: worker.table.states() == [FOREIGN], 20, "a task of the code base's own in the slot"
        )

    def worker(self) -> Worker:
        worker = self.platform.worker(slots=1, BEATKEEPER_LEASE_SECONDS=str(self.lease))
        worker.wait_until_known()
        wait_until(lambda: "Wake-ups: connected" in worker.process.text(), 20, "a worker with wake-ups")
        return worker

    def long_run(self) -> tuple[Job, Path]:
        self.gates += 1
        gate = self.platform.folder / f"gate-{self.gates}"
        return self.platform.run_once(until=str(gate), timeout=3600, retry=NO_PAUSE), gate

    def wait_for_start(self, job: Job, attempt: int, timeout: float = 30.0) -> Witness:
        def started() -> Witness | None:
            seen = self.platform.witnessed(self.platform.runs(job)[0]["id"])
            return seen[attempt - 1] if len(seen) >= attempt else None

        return self.platform.wait(started, timeout, f"start {attempt}")


@contextmanager
def queues_of(stage: Stage) -> Iterator[None]:
    """Let what is started here use broker queues that the stage removes."""
    before = os.environ["BEATKEEPER_QUEUE_PREFIX"]
    os.environ["BEATKEEPER_QUEUE_PREFIX"] = stage.prefix
    try:
        yield
    finally:
        os.environ["BEATKEEPER_QUEUE_PREFIX"] = before
