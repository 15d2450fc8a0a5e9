"""What every benchmark stands on: databases and queues of its own on real servers, and real processes."""

import os
import platform
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import amqp
import kombu
import psycopg

from runs.scheduler.partitions.lock_session import JOBS
from tests import settings as test_settings
from tests.benchmarks import stored
from tests.benchmarks.sizes import slots
from tests.benchmarks.stored import Session
from tests.support.leftovers import delete_queues
from tests.support.processes import Processes, RealProcess
from tests.support.waiting import wait_until

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
BEAT = ("-m", "celery", "-A", "scheduler_project", "beat", "-l", "warning", "-S")
SCHEDULER = "runs.beat:PartitionedScheduler"
SHOWN = (*DURABLE, "shared_buffers", "max_wal_size", "wal_level")


class NotDurable(Exception):
    """The server loses what it acknowledged: its figures would say nothing."""


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Database:
    """Of so many stored jobs, filled once and used by all benchmarks of one call."""

    def __init__(self, url: str, jobs: int) -> None:
        self.url = url
        self.jobs = jobs
        self.session = self.connect()

    def connect(self, **options: Any) -> Session:
        # JIT is what the product's own sessions do without; these only count.
        return psycopg.connect(self.url, autocommit=True, options="-c timezone=UTC -c jit=off", **options)

    def rows(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        return self.session.execute(query, values).fetchall()

    def value(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        return self.rows(query, values)[0][0]


class Stage:
    def __init__(self, folder: Path, server_url: str, broker_url: str, test_id: str) -> None:
        self.folder = folder
        self.server_url = server_url
        self.broker_url = broker_url
        self.test_id = test_id
        self.prefix = f"bk-{test_id}.bench-{secrets.token_hex(3)}"
        self.processes = Processes(folder)
        self._databases: dict[int, Database] = {}
        self._workers = 0

    def database(self, jobs: int) -> Database:
        """As it was when it was filled; whatever a benchmark before left in it is gone."""
        if jobs not in self._databases:
            self._databases[jobs] = self._filled(jobs)
        database = self._databases[jobs]
        stored.put_off(database.session)
        return database

    def _filled(self, jobs: int) -> Database:
        say(f"loading {jobs:,} jobs ...")
        began = datetime.now()
        url = self.migrated(f"jobs{jobs}")
        database = Database(url, jobs)
        stored.fill(database.session, jobs)
        size = database.value("SELECT pg_size_pretty(pg_database_size(current_database()))")
        say(f"loaded in {(datetime.now() - began).total_seconds():.0f} s: {size}")
        return database

    def migrated(self, suffix: str) -> str:
        """Yield the URL of a new database with our tables, and drop it at the end."""
        url = self.empty_database(suffix)
        self.python("manage.py", "migrate", "-v0", url=url).wait_for_success(300)
        return url

    def empty_database(self, suffix: str) -> str:
        # Its name is of the form that tests.support.leftovers looks for, should this process be killed.
        name = f"beatkeeper_bench_{self.test_id}_{self.prefix[-6:]}{suffix}"
        with psycopg.connect(self.server_url, autocommit=True) as session:
            session.execute(f"CREATE DATABASE {name}")
        return urlunsplit(urlsplit(self.server_url)._replace(path=f"/{name}"))

    # Processes.

    def env(self, url: str) -> dict[str, str | None]:
        return {
            "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
            "DATABASE_URL": url,
            "DATABASE_DIRECT_URL": None,
            "BEATKEEPER_DATABASE_URL": url,
            "CELERY_BROKER_URL": self.broker_url,
            "SAMPLE_BROKER_URL": self.broker_url,
            "BEATKEEPER_QUEUE_PREFIX": self.prefix,
            "LOG_STORE_URL": f"file://{self.folder}/logs",
            "BEATKEEPER_SPOOL_DIR": str(self.folder / "spool"),
            "BEATKEEPER_LOG_LEVEL": "WARNING",
        }

    def python(self, *arguments: str, url: str, name: str = "", **env: str | None) -> "Started":
        process = self.processes.start(
            sys.executable, *arguments, env={**self.env(url), **env}, name=name or arguments[-1]
        )
        return Started(process)

    def scheduler(self, database: Database, beat: str = SCHEDULER, **env: str | None) -> RealProcess:
        """One that is at work: it holds every slice."""
        process = self.start_scheduler(database.url, beat, **env)
        self.wait_for_slices(database, process)
        return process

    def start_scheduler(self, url: str, beat: str = SCHEDULER, **env: str | None) -> RealProcess:
        return self.python(*BEAT, beat, url=url, name="scheduler", **env).process

    def wait_for_slices(self, database: Database, process: RealProcess, slices: int = 64) -> None:
        wait_until(
            lambda: slices_held(database) >= slices or not process.is_alive(), 60, "a scheduler at work"
        )
        check_alive(process)

    def worker(
        self, url: str, *queues: str, app: str = "tests.benchmarks.worker_app", **env: str | None
    ) -> RealProcess:
        """Start a real worker of a code base that knows nothing of our settings."""
        self._workers += 1
        name = f"worker-{self._workers}"
        arguments = ["-m", "celery", "-A", app, "worker", "-l", "warning", "-c", str(slots())]
        served = ",".join(f"{self.prefix}.{queue}" for queue in queues or ["own"])
        arguments += ["-n", f"{name}@{self.prefix}", "-Q", served]
        arguments += ["--without-gossip", "--without-mingle"]
        own = {"DJANGO_SETTINGS_MODULE": None, "BEATKEEPER_SPOOL_DIR": f"{self.folder}/spool-{name}"}
        return self.python(*arguments, url=url, name=name, **own, **env).process

    def wait_for_workers(self, database: Database, *workers: RealProcess) -> None:
        wait_until(
            lambda: (
                database.value("SELECT count(*) FROM beatkeeper_worker_node") == len(workers)
                or not all(worker.is_alive() for worker in workers)
            ),
            60,
            "the workers",
        )
        check_alive(*workers)

    # The broker.

    @contextmanager
    def channel(self) -> Iterator[Any]:
        with kombu.Connection(self.broker_url, connect_timeout=5) as broker:
            yield broker.channel()

    def depths(self, queues: Sequence[str]) -> int:
        """Messages that lie in these queues, by the broker's own count."""
        with self.channel() as channel:
            return sum(depth(channel, queue) for queue in queues)

    def delete_queues(self) -> None:
        delete_queues(self.broker_url, f"{self.prefix}.")

    def close(self) -> None:
        self.processes.stop_all()
        for database in self._databases.values():
            database.session.close()
        self.delete_queues()
        with psycopg.connect(self.server_url, autocommit=True) as session:
            prefix = f"beatkeeper_bench_{self.test_id}_{self.prefix[-6:]}"
            for (name,) in session.execute("SELECT datname FROM pg_database").fetchall():
                if name.startswith(prefix):
                    session.execute(f"DROP DATABASE {name} WITH (FORCE)")
        shutil.rmtree(self.folder, ignore_errors=True)


class Started:
    def __init__(self, process: RealProcess) -> None:
        self.process = process

    def wait_for_success(self, timeout: float) -> None:
        code = self.process.wait(timeout)
        assert code == 0, f"{self.process.command} ended with {code}:\n{self.process.text()[-3000:]}"


def check_alive(*processes: RealProcess) -> None:
    for process in processes:
        assert process.is_alive(), f"{process.command} ended:\n{process.text()[-3000:]}"


def depth(channel: Any, queue: str) -> int:
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except amqp.NotFound:
        channel.connection.channel(channel.channel_id)
        return 0


def slices_held(database: Database) -> int:
    return int(
        database.value(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            [JOBS],
        )
    )


@contextmanager
def on_stage() -> Iterator[Stage]:
    """Yield the servers that `tests.support.bring_up` found, and leave nothing on them."""
    test_id = test_settings.TEST_ID
    folder = Path(mkdtemp(prefix=f"bk-bench-{test_id}-"))
    stage = Stage(folder, os.environ["DATABASE_URL"], test_settings.TEST_BROKER_URL, test_id)
    try:
        describe(stage)
        yield stage
    finally:
        stage.close()


def describe(stage: Stage) -> None:
    """Describe what the figures are measured on; refuse a server that only pretends to write."""
    with psycopg.connect(stage.server_url) as session:
        found = {name: session.execute(f"SHOW {name}").fetchall()[0][0] for name in SHOWN}
        version = session.info.server_version
    with kombu.Connection(stage.broker_url) as broker:
        broker.connect()
        broker_version = broker.connection.server_properties["version"]
    load = os.getloadavg()[0]
    cpus = os.cpu_count() or 1
    say(
        f"machine: {cpus} CPUs, Python {platform.python_version()}, load {load:.1f};"
        f" PostgreSQL {version // 10_000}.{version % 10_000}"
        f" ({', '.join(f'{name} {value}' for name, value in found.items())}); RabbitMQ {broker_version}"
    )
    if load > cpus / 2:
        say(f"NOTE: the machine is busy with other things (load {load:.1f}): these figures are too low")
    off = [name for name in DURABLE if found[name] != "on"]
    if off:
        raise NotDurable(f"{NotDurable.__doc__} Set {' and '.join(off)} to on.")
