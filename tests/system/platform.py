"""The whole product as real processes with short times: schedulers, workers, a database, a broker.

A job's own body is the witness: `tests.witnesses` (tests/support/sample_tasks.py) writes when it starts, lives and
ends, and which earlier attempt of its run it met alive. The database is only compared with it.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch
from urllib.parse import urlsplit
from uuid import UUID

import amqp
import kombu
import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg.rows import dict_row

from jobs.models import Job, Tenant
from runs.models import Run
from runs.services.runs import cancel_run, run_now
from scheduler_project.sdk.logs.store import open_log_store
from scheduler_project.sdk.outcomes import LogPointer
from scheduler_project.sdk.process import processes as kernel
from scheduler_project.sdk.shared.slot_record import FREE
from scheduler_project.sdk.shared.slots import SlotTable
from tests.support.certificates import OwnCA
from tests.support.factories import make_pool, make_tenant, post_job
from tests.support.processes import Processes, RealProcess
from tests.support.sample_tasks import journal
from tests.support.waiting import wait_until
from tests.system.ledger_checker import check

T = TypeVar("T")
Row = dict[str, Any]

LEASE, BEAT, MARGIN = 6.0, 1.0, 2.5
DRAIN = 2.0
# A scheduler that begins trusts no silence for one lease, then a lease must pass, then back-off and dispatch.
RECOVERY = 2 * LEASE + 13
WITNESS = "tests.witnesses"
POOL = "default"
AT_ONCE = {"max_attempts": 4, "backoff": "fixed", "base": 0.1, "cap": 0.1}
# What a worker over HTTPS is not told of the platform.
NOT_ITS_OWN = (
    "DJANGO_SETTINGS_MODULE",
    "DATABASE_URL",
    "BEATKEEPER_DATABASE_URL",
    "CELERY_BROKER_URL",
    "LOG_STORE_URL",
    "SECRET_KEY",
)


class Worker:
    """A `celery worker`: its parent, its guard and its children."""

    def __init__(self, process: RealProcess, name: str, spool: Path) -> None:
        self.process = process
        self.name = name
        self._spool = spool

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def table(self) -> SlotTable:
        (folder,) = self.spool_folders()
        return SlotTable(folder)

    def spool_folders(self) -> list[Path]:
        return list(self._spool.glob("worker-*"))

    @property
    def guard(self) -> int:
        # The folder comes a moment after the process; on a busy machine somebody looks in between.
        wait_until(self.spool_folders, 20, "the worker's folder")
        return int(wait_until(lambda: self.table.header.guard[0], 20, "the guard"))

    def children(self) -> list[int]:
        """Of the parent, without its guard."""
        return [pid for pid in children_of(self.pid) if pid != self.guard]

    def whole(self) -> list[int]:
        return [self.pid, self.guard, *self.children()]

    @property
    def busy(self) -> int:
        return sum(state != FREE for state in self.table.states())

    def kill_whole(self) -> None:
        """As a machine does that loses its power: nobody of it has time to say a word."""
        send(signal.SIGSTOP, *self.whole())
        send(signal.SIGKILL, *self.whole())
        self.process.wait(10)

    def wait_until_known(self, incarnation_not: UUID | None = None) -> UUID:
        def known() -> UUID | None:
            incarnation = self.table.header.incarnation
            return incarnation if incarnation.int and incarnation != incarnation_not else None

        assert self.process.wait_for_output("ready.", 40)
        return wait_until(known, 20, f"{self.name} to be known; it wrote:\n{self.process.text()[-3000:]}")


@dataclass
class Witness:
    """One attempt as its own body wrote it down."""

    run: str
    attempt: int
    pid: int
    started_at: float
    last_seen_at: float
    ended: bool
    met_alive: Sequence[int]


class Platform:
    def __init__(self, processes: Processes, folder: Path, database_url: str, broker_url: str) -> None:
        self.folder = folder
        self.database_url, self.broker_url = database_url, broker_url
        self.journal_path = folder / "journal"
        self.spool = folder / "spool"
        self.pool = make_pool(
            slug=POOL,
            exported_tasks=[
                WITNESS,
                "tests.works_when",
                "tests.prints",
                "tests.raises",
                "tests.hangs",
                "tests.crowds",
            ],
        )
        self.tenant = make_tenant()
        self.own_queue = f"{os.environ['BEATKEEPER_QUEUE_PREFIX']}.own"
        self._processes = processes
        self._workers = 0

    # Processes.

    def env(self) -> dict[str, str | None]:
        return {
            "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
            "DATABASE_URL": self.database_url,
            "DATABASE_DIRECT_URL": None,
            "BEATKEEPER_DATABASE_URL": self.database_url,
            "CELERY_BROKER_URL": self.broker_url,
            "SAMPLE_BROKER_URL": self.broker_url,
            "SAMPLE_POOL": POOL,
            "SAMPLE_JOURNAL": str(self.journal_path),
            "LOG_STORE_URL": self.log_store_url,
            "BEATKEEPER_LOG_LEVEL": "INFO",
            "BEATKEEPER_LEASE_SECONDS": str(LEASE),
            "BEATKEEPER_BEAT_SECONDS": str(BEAT),
            "BEATKEEPER_FENCE_MARGIN_SECONDS": str(MARGIN),
            "BEATKEEPER_GRACE_SECONDS": "1",
            "BEATKEEPER_DRAIN_SECONDS": str(DRAIN),
            "BEATKEEPER_COMMANDS_AS_WORKER": "1",
        }

    @property
    def log_store_url(self) -> str:
        return f"file://{self.folder}/logs"

    def scheduler(self) -> RealProcess:
        return self._processes.python(
            "celery", "-A", "scheduler_project", "beat", "-l", "info", env=self.env(), name="scheduler"
        )

    def worker(
        self,
        slots: int = 2,
        app: str = "tests.support.sample_tasks",
        name: str = "",
        pool: str = "prefork",
        **env: str | None,
    ) -> Worker:
        self._workers += 1
        name = name or f"w{self._workers}@{settings.TEST_ID}-{self.folder.name}"
        spool = self.spool / str(self._workers)
        process = self._processes.python(
            "celery",
            *("-A", app, "worker", "-l", "info", "-c", str(slots), "-n", name, "-Q", self.own_queue),
            *("-P", pool, "--without-gossip", "--without-mingle"),
            env={**self.env(), "BEATKEEPER_SPOOL_DIR": str(spool), **env},
            name=f"worker-{self._workers}",
        )
        return Worker(process, name, spool)

    def end_everything(self) -> None:
        """Guards live in sessions of their own: everything with this test's journal in its environment ends."""
        wait_until(lambda: not send(signal.SIGKILL, *self.processes()), 10, "the end of all processes")

    def processes(self) -> list[int]:
        return with_in_environment(str(self.journal_path))

    # What to run.

    def post(self, tenant: Tenant | None = None, **spec: Any) -> Job:
        """Make a job on demand whose body is the witness, unless fields say otherwise; retried at once."""
        kwargs = {key: spec.pop(key) for key in ("seconds", "until", "raising") if key in spec}
        body = {"kind": "celery", "task": spec.pop("task", WITNESS), "args": [], "kwargs": kwargs}
        given = {"target": body, "retry": AT_ONCE, "overlap": "allow_all", **spec}
        with our_connection():
            return post_job(tenant or self.tenant, **given)

    def run_once(self, tenant: Tenant | None = None, **spec: Any) -> Job:
        """Request a job on demand once."""
        return self.run_often(1, tenant, **spec)

    def run_often(self, times: int, tenant: Tenant | None = None, **spec: Any) -> Job:
        job = self.post(tenant, **spec)
        with our_connection():
            for number in range(times):
                run_now(job, request=str(number).encode())
        return job

    def cancel(self, job: Job) -> None:
        """Return the job's one run."""
        with our_connection():
            cancel_run(Run.objects.get(job=job), "no longer wanted")

    # What came of it.

    def rows(self, query: str, *values: Any) -> list[Row]:
        with psycopg.connect(self.database_url, row_factory=dict_row, connect_timeout=5) as session:
            return session.execute(query, values).fetchall()

    def runs(self, job: Job) -> list[Row]:
        return self.rows("SELECT * FROM beatkeeper_run WHERE job_id = %s ORDER BY id", job.pk)

    def finished(self, job: Job) -> list[Row]:
        return [run for run in self.runs(job) if run["state"]]

    def run_of(self, job: Job, state: str, timeout: float = 30) -> Row:
        """Return the job's one run, once it is in this final state."""

        def ended() -> Row | None:
            return next(iter(self.finished(job)), None)

        run = self.wait(ended, timeout, f"a run of {job.name} to end")
        assert run["state"] == state, f"{run}; {self.situation()}"
        assert len(self.runs(job)) == 1
        return run

    def attempts(self, run: Row) -> list[Row]:
        return self.rows("SELECT * FROM beatkeeper_attempt WHERE run_id = %s ORDER BY claim_seq", run["id"])

    def outcomes(self, run: Row) -> list[str]:
        return [attempt["outcome"] for attempt in self.attempts(run)]

    def live(self, job: Job) -> list[Row]:
        return self.rows("SELECT * FROM beatkeeper_live_run WHERE job_id = %s ORDER BY id", job.pk)

    def queue(self, name: str) -> tuple[int, int]:
        """Messages that wait in it and its consumers, by a passive declare; nothing of what is not there."""
        with kombu.Connection(self.broker_url, connect_timeout=5) as broker:
            channel: Any = broker.channel()
            try:
                declared = channel.queue_declare(name, passive=True)
            except amqp.NotFound:
                return 0, 0
        return declared.message_count, declared.consumer_count

    def broker_queue(self) -> str:
        """Return the name of the pool's queue; empty while no scheduler has named it."""
        (row,) = self.rows("SELECT broker_queue FROM beatkeeper_pool WHERE id = %s", self.pool.pk)
        return str(row["broker_queue"])

    def consumers(self) -> int:
        queue = self.broker_queue()
        return self.queue(queue)[1] if queue else 0

    def purge(self, name: str) -> int:
        with kombu.Connection(self.broker_url, connect_timeout=5) as broker:
            channel: Any = broker.channel()
            return int(channel.queue_purge(name))

    def log_of(self, run: Row) -> str:
        assert run["log_object"], "the run has no log"
        pointer = LogPointer(run["log_object"], run["log_offset"], run["log_length"])
        return open_log_store(self.log_store_url).read(pointer).decode()

    def witnessed(self, run: object = None) -> list[Witness]:
        """Return attempts in the order in which they started."""
        found: dict[tuple[str, int, int], Witness] = {}
        for line in journal(self.journal_path):
            if line["event"] not in ("start", "alive", "end") or (run and line["run"] != str(run)):
                continue
            key = line["run"], line["attempt"], line["pid"]
            if line["event"] == "start":
                found[key] = Witness(*key, line["at"], line["at"], False, line["met_alive"])
            found[key].last_seen_at = line["at"]
            found[key].ended = line["event"] == "end"
        return sorted(found.values(), key=lambda witness: witness.started_at)

    def wait_for_attempt(self, number: int, timeout: float = 30) -> Witness:
        def started() -> Witness | None:
            return next((seen for seen in self.witnessed() if seen.attempt == number), None)

        return self.wait(started, timeout, f"attempt {number} to start")

    def assert_each_ran_once(self, runs: Sequence[Row]) -> None:
        """By the bodies' own lines: every one of these runs began once and came to its end."""
        began = Counter(witness.run for witness in self.witnessed())
        ended = Counter(witness.run for witness in self.witnessed() if witness.ended)
        wanted = {str(run["id"]): 1 for run in runs}
        assert {run: began[run] for run in wanted} == wanted
        assert {run: ended[run] for run in wanted} == wanted

    def assert_each_planned_time_has_one_run(self, until: datetime) -> None:
        """By the independent checker's own arithmetic (promises 2 and 3)."""
        with psycopg.connect(self.database_url, autocommit=True, connect_timeout=5) as session:
            verdict = check(session, until)
        assert verdict.ok, verdict
        assert verdict.expected > 0

    def assert_one_attempt_at_a_time(self) -> None:
        """Promise 4, by the bodies' own lines: none met another alive, and none was seen after the next began."""
        last: dict[str, Witness] = {}
        for witness in self.witnessed():
            assert not witness.met_alive, f"{witness} met an earlier attempt of its run alive"
            before = last.get(witness.run)
            assert before is None or before.last_seen_at <= witness.started_at, f"{before} beside {witness}"
            last[witness.run] = witness

    def wait(self, predicate: Callable[[], T | None], timeout: float, what: str) -> T:
        """wait_until, which on failure tells how things stood."""
        try:
            return wait_until(predicate, timeout, what)
        except pytest.fail.Exception as failed:
            pytest.fail(f"{failed}; {self.situation()}")

    def situation(self) -> str:
        """For the message of a test that waits in vain."""
        lines = [f"journal: {len(journal(self.journal_path))} lines"]
        with suppress(psycopg.Error):
            lines += [str(row) for row in self.rows("SELECT * FROM beatkeeper_live_run LIMIT 5")]
            lines += [
                str(row)
                for row in self.rows(
                    "SELECT name, state, slots, busy, foreign_busy, last_beat_at, held FROM beatkeeper_worker_node"
                )
            ]
            lines += [str(row) for row in self.rows("SELECT broker_queue, reason FROM beatkeeper_queue")]
        for output in sorted(self.folder.glob("*.log")):
            lines.append(f"--- {output.name}\n{output.read_text(errors='replace')[-2500:]}")
        return "\n".join(lines)


@contextmanager
def our_connection() -> Iterator[None]:
    """Django's, opened anew: the server may have been restarted since."""
    connection.close()
    yield
    connection.close()


@contextmanager
def django_at(url: str) -> Iterator[None]:
    """Services called in this process work on the database of the processes we start."""
    address = urlsplit(url)
    there = {
        "HOST": address.hostname,
        "PORT": str(address.port),
        "USER": address.username,
        "NAME": address.path[1:],
        "PASSWORD": "",
    }
    connection.close()
    with patch.dict(connection.settings_dict, there):
        yield
        connection.close()


def remote_env(url: str, key: str, ca: OwnCA) -> dict[str, str | None]:
    """All that a worker over HTTPS is told of the platform."""
    return {
        **dict.fromkeys(NOT_ITS_OWN),
        "BEATKEEPER_URL": url,
        "BEATKEEPER_API_KEY": key,
        "BEATKEEPER_CA_FILE": str(ca.ca),
        "SAMPLE_POOL": "",
    }


def send(number: signal.Signals, *pids: int) -> int:
    """To how many it went; the others were gone."""
    sent = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            sent += 1
    return sent


def is_dead(pid: int) -> bool:
    found = kernel.status(pid)
    return found is None or found[0] in kernel.DEAD_STATES


def running(words: str) -> list[int]:
    """Living processes with these words in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and words.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def children_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal():
                line = (folder / "stat").read_text()
                if int(line[line.rindex(")") + 2 :].split()[1]) == parent:
                    found.append(int(folder.name))
    return found


def with_in_environment(text: str) -> list[int]:
    """Living processes, not this one, that were started with this text in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and int(folder.name) != os.getpid():
                if text.encode() in (folder / "environ").read_bytes() and not is_dead(int(folder.name)):
                    found.append(int(folder.name))
    return found
