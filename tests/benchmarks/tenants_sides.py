"""The sides of `tenants`: ours with so many queues of one pool, and plain Celery with as many."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.benchmarks import counted_ledger, cpu, paced_publisher, stamps, steady, stored
from tests.benchmarks.figures import percentile
from tests.benchmarks.sizes import BadSize, slots
from tests.benchmarks.stage import Database, Stage, check_alive
from tests.benchmarks.sustained import LAST_STARTS_WITHIN, Tried
from tests.benchmarks.wal import wal_meter
from tests.support.processes import RealProcess
from tests.support.servers.pgbouncer import PrivatePgbouncer
from tests.support.waiting import wait_until

# In a database of this size; a guess that is too low costs one more attempt to prepare.
PREPARED_A_SECOND = 6_000


class Side:
    name: str

    def __init__(self, stage: Stage, tenants: int) -> None:
        self.stage = stage
        self.tenants = tenants
        self.stamps = stamps.Stamps(stage.folder / f"stamps-{type(self).__name__}-{tenants}")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        raise NotImplementedError

    def attempt(self, rate: int, seconds: float) -> Tried:
        raise NotImplementedError

    def started(self, count: int, begin: float, seconds: float) -> list[float]:
        """How late each was that has started soon after the last was due."""
        self.stamps.wait(count, begin + seconds + LAST_STARTS_WITHIN)
        return self.stamps.lates()


class Ours(Side):
    def __init__(self, stage: Stage, tenants: int, jobs: int) -> None:
        super().__init__(stage, tenants)
        self.name = f"beatkeeper, {tenants} queues" if tenants > 1 else "beatkeeper, one queue"
        self.jobs = jobs
        self.claims = stamps.Appended(stage.folder / f"claims-{tenants}")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.database = Database(self.stage.migrated(f"tenants{self.tenants}of{self.jobs}"), self.jobs)
        try:
            stored.fill(self.database.session, self.jobs, self.tenants, alike=True)
            with self._way_to_database() as url:
                # The locks of a scheduler belong to its sessions.
                urls = {"DATABASE_URL": url, "DATABASE_DIRECT_URL": self.database.url}
                self.scheduler = self.stage.scheduler(self.database, **urls)
                self.worker = self._worker(url)
                self.stage.wait_for_workers(self.database, self.worker)
                yield
                check_alive(self.scheduler, self.worker)
                self.worker.terminate()
                self.scheduler.terminate()
        finally:
            self.database.session.close()

    @contextmanager
    def _way_to_database(self) -> Iterator[str]:
        """Yield the URL for all but the schedulers' own sessions: through a pooler, if THROUGH names its program."""
        self.pooler: list[int] = []
        if not (program := os.environ.get("THROUGH", "")):
            yield self.database.url
            return
        found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        if found is None:
            raise BadSize(f"THROUGH={program!r}: there is no such program here")
        with PrivatePgbouncer(found, self.database.url, pool_size=slots() + 4) as pooler:
            self.pooler = [pooler.pid]
            yield pooler.url

    def _worker(self, url: str) -> RealProcess:
        files = {stamps.FILE: str(self.stamps.path), counted_ledger.FILE: str(self.claims.path)}
        return self.stage.worker(url, app="tests.benchmarks.tenants_app", **files)

    def attempt(self, rate: int, seconds: float) -> Tried:
        ahead = 2.0 + rate * seconds / PREPARED_A_SECOND
        begin, count = steady.plan(self.database, rate, seconds, ahead=ahead)
        self.stamps.forget()
        self.claims.forget()
        written = wal_meter(self.database)
        steady.sleep_until(self.database, begin, 0.0)
        spent = cpu.meter_of_changing(self._parts)
        lates = self.started(count, begin.timestamp(), seconds)
        steady.wait_for_end(self.database, count)
        # Wake-ups that find nothing any more are part of what these runs cost, not of the next trial.
        queues = stored.broker_queues(self.database.session)
        wait_until(lambda: not self.stage.depths(queues), 60, "the wake-ups to be used up", interval=0.2)
        cpu_seconds = spent()
        steady.check(self.database, begin, count)
        figures = {
            "cpu_ms_per_run": per_run_ms(cpu_seconds, count),
            **claim_figures(self.claims.read(), count),
            **wal_figures(written(), count),
        }
        return Tried(rate, lates, max(0, count - len(lates)), figures)

    def _parts(self) -> Mapping[str, list[int]]:
        return {
            "PostgreSQL": cpu.sessions_of(self.database),
            "worker": cpu.family(self.worker.pid),
            "scheduler": cpu.family(self.scheduler.pid),
            "broker": cpu.brokers(),
            **({"pooler": self.pooler} if self.pooler else {}),
        }


def claim_figures(claims: bytes, count: int) -> dict[str, float]:
    """Sum up how many runs each request for claims got."""
    assert sum(claims) >= count, f"{sum(claims)} runs were claimed by counted requests, {count} have ended"
    return {
        "claims_empty_share": round(claims.count(0) / len(claims), 4),
        "claims_per_run": round(len(claims) / count, 3),
    }


def wal_figures(written: dict[str, Any], count: int) -> dict[str, Any]:
    of = written.pop("of")
    return {f"wal_{name}_per_run": round(size / count) for name, size in written.items()} | {"wal_of": of}


def per_run_ms(seconds: Mapping[str, float], count: int) -> dict[str, float]:
    return {part: round(spent / count * 1000, 3) for part, spent in seconds.items()}


class PlainCelery(Side):
    def __init__(self, stage: Stage, tenants: int) -> None:
        super().__init__(stage, tenants)
        self.name = f"plain Celery, {tenants} queues"
        self.queues = [f"plain-{number}" for number in range(1, tenants + 1)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        env = {stamps.FILE: str(self.stamps.path), "BENCH_QUEUE": f"{self.stage.prefix}.{self.queues[0]}"}
        self.worker = self.stage.worker("", *self.queues, app="tests.benchmarks.plain_app", **env)
        yield
        check_alive(self.worker)
        self.worker.terminate()

    def attempt(self, rate: int, seconds: float) -> Tried:
        count = int(rate * seconds)
        self.stamps.forget()
        publisher = self._publisher(rate, count)
        text = publisher.wait_for_output(paced_publisher.READY)
        begin = float(text.partition(paced_publisher.READY)[2].splitlines()[0])
        spent = cpu.meter_of_changing(self._parts)
        lates = self.started(count, begin, seconds)
        self._wait_for_end(publisher, count)
        cpu_seconds = spent()
        published = json.loads(publisher.text().partition(paced_publisher.DONE)[2])
        figures = {
            "cpu_ms_per_run": per_run_ms({**cpu_seconds, "publisher": published["cpu_seconds"]}, count),
            "published_p95_ms": round(percentile(published["lates"], 95.0) * 1000, 1),
        }
        return Tried(rate, lates, max(0, count - len(lates)), figures)

    def _publisher(self, rate: int, count: int) -> RealProcess:
        queues = ",".join(f"{self.stage.prefix}.{queue}" for queue in self.queues)
        arguments = ["-m", "tests.benchmarks.paced_publisher", str(rate), str(count)]
        return self.stage.python(*arguments, url="", name="publisher", BENCH_QUEUES=queues).process

    def _wait_for_end(self, publisher: RealProcess, count: int) -> None:
        wait_until(
            lambda: self.stamps.count() >= count or not self.worker.is_alive(),
            60 + count / 20,
            "the end of all tasks",
            interval=0.2,
        )
        check_alive(self.worker)
        assert publisher.wait() == 0, publisher.text()[-3000:]

    def _parts(self) -> Mapping[str, list[int]]:
        return {"worker": cpu.family(self.worker.pid), "broker": cpu.brokers()}
