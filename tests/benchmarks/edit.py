"""What an edit costs and when it is effective, what a scheduler takes in memory, and what an idle pass costs.

All of it at a thousand jobs and at STORED, side by side at the same time: a scheduler on each of two databases.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from django.db import connection

from jobs.models import Job
from jobs.services.definition import edit_job
from runs.sql import SQL
from scheduler_project.sdk.ids import EPOCH
from tests.benchmarks import cpu, stored
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Database, Stage, check_alive, say
from tests.support.processes import RealProcess
from tests.support.waiting import wait_until

KEYS = (
    "cost_ratio", "memory_ratio", "idle_ratio", "edit_p50_ms", "effective_p50_ms", "memory_mb", "idle_cpu_ms_per_second"
)  # fmt: skip
SMALL = 1_000
# Edits are made in turns of so many, so that whatever else the machine does falls on both.
TURN = 20
SOON_SECONDS = 0.5


@dataclass
class Subject:
    database: Database
    scheduler: RealProcess
    jobs: list[Any] = field(default_factory=list)
    edit_seconds: list[float] = field(default_factory=list)
    effective_seconds: list[float] = field(default_factory=list)
    idle_cpu: float = 0.0
    idle_buffers: int = 0
    memory: float = 0.0


def measure(stage: Stage) -> dict[str, Any]:
    large, edits = whole("STORED", 1_000_000, SMALL), whole("EDITS", 200)
    sizes = [SMALL, large] if large > SMALL else [SMALL, SMALL + 1]
    subjects = []
    for size in sizes:
        database = stage.database(size)
        subjects.append(Subject(database, stage.scheduler(database)))
    for subject in subjects:
        stored.register_idle_workers(subject.database.session, slots=10 * SMALL)
        stored.settle(subject.database.session)
        ids = subject.database.rows(
            "SELECT id FROM beatkeeper_job ORDER BY id LIMIT %s", [min(SMALL, edits + TURN)]
        )
        subject.jobs = [job for (job,) in ids]
    _measure_idle(subjects, number("IDLE_SECONDS", 20.0, 1.0))
    _measure_memory(subjects)
    _measure_edits(subjects, edits)
    _measure_effect(subjects, max(3, edits // 10))
    for subject in subjects:
        check_alive(subject.scheduler)
        subject.scheduler.terminate()
    stage.delete_queues()
    small_one, large_one = subjects
    _say_figures(small_one, large_one, edits)
    return _figures(small_one, large_one, edits)


def _figures(small: Subject, large: Subject, edits: int) -> dict[str, Any]:
    def both(value: Callable[[Subject], float], digits: int) -> dict[str, float]:
        return {str(of.database.jobs): round(value(of), digits) for of in (small, large)}

    def ratio(value: Callable[[Subject], float]) -> float:
        return round(value(large) / value(small), 3)

    return {
        "cost_ratio": ratio(_cost),
        "memory_ratio": ratio(_memory),
        "idle_ratio": ratio(_idle),
        "edit_p50_ms": both(_cost, 2),
        "effective_p50_ms": both(_effective, 1),
        "memory_mb": both(_memory, 1),
        "idle_cpu_ms_per_second": both(_idle, 2),
        "idle_probe_buffers": {str(of.database.jobs): of.idle_buffers for of in (small, large)},
        "edits": edits,
        "stored": large.database.jobs,
    }


def _say_figures(small: Subject, large: Subject, edits: int) -> None:
    say(f"at {small.database.jobs:,} and at {large.database.jobs:,} jobs:")
    say(f"  an edit, as the API makes it: {_cost(small):.2f} and {_cost(large):.2f} ms (median of {edits})")
    say(
        f"  effective after {_effective(small):.0f} and {_effective(large):.0f} ms: from its commit, or from the new"
        " planned time if that comes later, until the run is there"
    )
    say(
        f"  resident memory of the scheduler, after the same {SMALL:,} runs:"
        f" {_memory(small):.1f} and {_memory(large):.1f} MB"
    )
    say(
        f"  idle: {_idle(small):.2f} and {_idle(large):.2f} ms of CPU a second, scheduler and its sessions in"
        f" PostgreSQL; the trigger's probe of all slices reads {small.idle_buffers} and {large.idle_buffers} pages"
    )


def _cost(of: Subject) -> float:
    return median(of.edit_seconds) * 1000


def _effective(of: Subject) -> float:
    return median(of.effective_seconds) * 1000


def _memory(of: Subject) -> float:
    return of.memory


def _idle(of: Subject) -> float:
    return of.idle_cpu * 1000


# Idle passes.


def _measure_idle(subjects: list[Subject], seconds: float) -> None:
    """Of the schedulers and of the server's processes that serve them, over the same seconds."""
    spent = [cpu.meter(_parts(subject)) for subject in subjects]
    time.sleep(seconds)
    for subject, meter in zip(subjects, spent, strict=True):
        subject.idle_cpu = sum(meter().values()) / seconds
        subject.idle_buffers = _probe_buffers(subject.database)


def _parts(subject: Subject) -> dict[str, list[int]]:
    parts = cpu.parts_of(subject.scheduler.pid, subject.database)
    # One broker serves both.
    return {part: pids for part, pids in parts.items() if part != "RabbitMQ"}


def _probe_buffers(database: Database) -> int:
    explained = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + SQL["next_due"]
    plan = database.rows(explained, {"slices": list(range(64)), "since": EPOCH})[0][0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


# Edits.


@contextmanager
def django_on(database: Database) -> Iterator[None]:
    """Point Django's connection, which the services use, at this database."""
    address = urlsplit(database.url)
    there = {
        "HOST": address.hostname or "",
        "PORT": str(address.port or ""),
        "USER": address.username or "",
        "PASSWORD": address.password or "",
        "NAME": address.path[1:],
    }
    connection.close()
    with patch.dict(connection.settings_dict, there):
        connection.ensure_connection()
        yield
        connection.close()


def _measure_edits(subjects: list[Subject], edits: int) -> None:
    """As the API's PATCH makes them: a new schedule, by turns; the first turn of each is not counted."""
    for turn in range(-1, -(-edits // TURN)):
        for subject in subjects:
            with django_on(subject.database):
                for place in range(max(0, turn) * TURN, max(0, turn) * TURN + TURN):
                    spent = _edit(
                        subject, place % len(subject.jobs), {"every": 7200 + turn}, priority=turn + 1
                    )
                    if turn >= 0:
                        subject.edit_seconds.append(spent)


def _edit(subject: Subject, place: int, schedule: dict[str, Any], **more: Any) -> float:
    job = Job.objects.get(pk=subject.jobs[place])
    began = time.perf_counter()
    edit_job(job, {"schedule": schedule, **more})
    return time.perf_counter() - began


def _measure_effect(subjects: list[Subject], times: int) -> None:
    for time_of_it in range(times):
        for subject in subjects:
            subject.effective_seconds.append(_effect(subject, -1 - time_of_it))


def _effect(subject: Subject, place: int) -> float:
    """Move a job that was hours away to an instant half a second from now."""
    database = subject.database
    at = stored.database_now(database.session) + timedelta(seconds=SOON_SECONDS)
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    with django_on(database):
        _edit(subject, place, {"at": at.isoformat()})
    committed = stored.database_now(database.session)
    run = "SELECT EXISTS (SELECT FROM beatkeeper_run WHERE planned_at = %s)"
    wait_until(lambda: database.value(run, [at]), 10, "the run that an edit plans", interval=0.002)
    return (stored.database_now(database.session) - max(at, committed)).total_seconds()


# Memory.


def _measure_memory(subjects: list[Subject]) -> None:
    """After the same work: a thousand jobs, all there are in the one, have run."""
    for subject in subjects:
        stored.choose(subject.database.session, SMALL)
        stored.make_due(subject.database.session)
    for subject in subjects:
        wait_until(lambda of=subject: _queued(of) >= SMALL, 60, "a thousand runs", interval=0.2)  # type: ignore[misc]
        subject.memory = _resident_mb(subject.scheduler.pid)
        stored.put_off(subject.database.session)


def _queued(subject: Subject) -> int:
    return int(subject.database.value("SELECT count(*) FROM beatkeeper_live_run WHERE state = 'queued'"))


def _resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
