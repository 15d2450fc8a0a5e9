"""How late runs get when one of three schedulers is killed, stopped, cut off by the network, or leaves in order.

JOBS jobs run every second or two, in three pools, and simulated workers execute them. One scheduler after the other
fails, each while it holds its share of the slices and a pool; it comes back before the next one fails. At the end an
independent checker says which planned times have no run, which have two, and every run has ended after one attempt.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import amqp
import pytest

from runs.scheduler.partitions.lock_session import JOBS, POOLS
from tests.benchmarks import stored
from tests.benchmarks.simulated_workers import TASK
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import BEAT, SCHEDULER, Database, Stage, check_alive, say
from tests.support.network import Forwarder, in_group, may_filter, own_group, packets_dropped
from tests.support.processes import RealProcess
from tests.support.waiting import wait_until
from tests.system import ledger_checker

KEYS = (
    "lost",
    "doubled",
    "worst_lateness_ms",
    "stopped_lateness_ms",
    "cut_lateness_ms",
    "left_lateness_ms",
    "balanced_seconds",
)
SCHEDULERS = 3
SLICES = 64
POOLS_USED = ("first", "second", "third")
TENANTS = 10
DEFINITIONS = """
INSERT INTO beatkeeper_tenant (slug, name, weight, allowed_hosts)
    SELECT 'tenant-' || i, 'Tenant ' || i, 1, '{}' FROM generate_series(1, %(tenants)s) i;
INSERT INTO beatkeeper_pool (slug, description, exported_tasks, exported_kinds, shared)
    SELECT name, '', ARRAY[%(task)s], '{}', true FROM unnest(%(pools)s::text[]) AS pool (name)
"""
# Some every second, some every second and a half, some every two seconds, each at a millisecond of its own.
STORED = """
INSERT INTO beatkeeper_job
        (id, tenant_id, name, description, pool_id, status, status_reason, status_by, priority, tags, version)
    SELECT gen_random_uuid(), (SELECT id FROM beatkeeper_tenant WHERE slug = 'tenant-' || 1 + i %% %(tenants)s),
           'job-' || i, '', (SELECT id FROM beatkeeper_pool WHERE slug = (%(pools)s::text[])[1 + i %% 3]),
           'active', '', '', 500, '{}', 1
    FROM generate_series(1, %(jobs)s) i;
INSERT INTO beatkeeper_job_version (job_id, version, target, target_key, schedule, timeout_ms, overlap, catch_up,
        retry, anchor_at, created_by)
    SELECT id, 1, jsonb_build_object('kind', 'celery', 'task', %(task)s, 'args', '[]'::jsonb,
               'kwargs', '{"seconds": 0.001}'::jsonb),
           %(task)s, jsonb_build_object('every', 1 + 0.5 * (get_byte(uuid_send(id), 3) %% 3)), 60000, 'allow_all',
           '{"policy": "all", "window": 86400.0}',
           '{"max_attempts": 4, "backoff": "exponential", "base": 10.0, "cap": 3600.0}',
           date_trunc('milliseconds', now() + interval '1 s' + make_interval(secs => random() * 2)), ''
    FROM beatkeeper_job;
INSERT INTO beatkeeper_job_clock (job_id, slice, next_run_at)
    SELECT job_id, get_byte(uuid_send(job_id), 15) & 63,
           anchor_at + make_interval(secs => (schedule ->> 'every')::float8)
    FROM beatkeeper_job_version
"""


@dataclass
class Scheduler:
    process: RealProcess
    group: int = 0
    forwarder: Forwarder | None = None


def measure(stage: Stage) -> dict[str, Any]:
    jobs, seconds = whole("JOBS", 300), number("PHASE_SECONDS", 12.0, 5.0)
    database = Database(stage.migrated("failover"), jobs)
    with ExitStack() as ending:
        ending.callback(database.session.close)
        crew = Crew(stage, database, ending)
        figures = crew.fail_one_after_the_other(jobs, seconds)
    limits = {"worst_lateness_ms": 3000, "stopped_lateness_ms": 6000, "cut_lateness_ms": 6000}
    for name, limit in limits.items():
        if figures[name] >= limit:
            say(f"NOTE: {name} is {figures[name]}, and should be under {limit}")
    return figures


class Crew:
    """Three schedulers and a worker for each pool, on a database of their own."""

    def __init__(self, stage: Stage, database: Database, ending: ExitStack) -> None:
        self.stage, self.database, self.ending = stage, database, ending
        self.filters = may_filter()
        self.group = own_group()
        self.crew: list[Scheduler] = []
        self.workers: list[RealProcess] = []
        self.balanced: list[float] = []

    def fail_one_after_the_other(self, jobs: int, seconds: float) -> dict[str, Any]:
        self._fill(jobs)
        for _ in range(SCHEDULERS):
            self.crew.append(self._start())
        # A simulated worker consumes at once: the queue must be there.
        self._wait(self._all_queues_are_there, 60, "the broker queue of each pool")
        for pool in POOLS_USED:
            self._start_worker(pool)
        self._wait_until_balanced()
        self._wait_until_runs_start()
        figures: dict[str, Any] = {}
        for name, words, fail in (
            ("worst", "killed (SIGKILL)", self._killed),
            ("stopped", "stopped (SIGSTOP)", self._stopped),
            ("cut", f"cut off by {'dropped packets' if self.filters else 'a forwarder'}", self._cut),
            ("left", "told to leave (SIGTERM)", self._left),
        ):
            figures |= self._phase(name, words, fail, seconds)
        return {**figures, **self._judge(), "jobs": jobs, "phase_seconds": seconds}

    # What fails.

    @contextmanager
    def _killed(self, victim: Scheduler) -> Iterator[None]:
        victim.process.kill()
        yield
        self._replace(victim)

    @contextmanager
    def _stopped(self, victim: Scheduler) -> Iterator[None]:
        victim.process.send(signal.SIGSTOP)
        yield
        victim.process.send(signal.SIGCONT)

    @contextmanager
    def _cut(self, victim: Scheduler) -> Iterator[None]:
        """When the network is back the scheduler joins again by itself."""
        if victim.forwarder is not None:
            with victim.forwarder.swallowing():
                yield
            return
        ports = [
            port
            for (port,) in self.database.rows(
                "SELECT client_port FROM pg_stat_activity WHERE application_name LIKE %s AND client_port > 0",
                [f"beatkeeper % {victim.process.pid}"],
            )
        ]
        with packets_dropped(victim.group, urlsplit(self.database.url).port or 5432, ports):
            yield

    @contextmanager
    def _left(self, victim: Scheduler) -> Iterator[None]:
        victim.process.send(signal.SIGTERM)
        yield
        code = victim.process.wait(10)
        assert code == 0, f"a scheduler told to leave ended with {code}:\n{victim.process.text()[-3000:]}"
        self._replace(victim)

    def _replace(self, victim: Scheduler) -> None:
        self.crew.remove(victim)
        self.crew.append(self._start())

    # One after the other.

    def _phase(
        self, name: str, words: str, fail: Callable[[Scheduler], Any], seconds: float
    ) -> dict[str, Any]:
        victim = self._the_one_to_fail(name)
        assert self._slices_of(victim) >= SLICES // SCHEDULERS - 1
        others = [one for one in self.crew if one is not victim]
        since = self._now()
        with fail(victim):
            began = time.monotonic()
            wait_until(
                lambda: sum(map(self._slices_of, others)) == SLICES, 30, "the others to hold every slice"
            )
            taken_over = time.monotonic() - began
            self._wait_until(since + timedelta(seconds=seconds))
        until = self._now()
        self._wait_until_fired(until)
        self._wait_until_balanced()
        fired, started = self._lateness(since - timedelta(seconds=3), until)
        say(
            f"{words}: its slices were taken over after {taken_over:.2f} s; the latest run came {fired:.0f} ms"
            f" after its time and started {started:.0f} ms after it"
        )
        return {f"{name}_lateness_ms": round(fired), f"{name}_started_ms": round(started)}

    def _the_one_to_fail(self, name: str) -> Scheduler:
        """One that dispatches a pool as well; only one can be cut off."""
        if name == "cut":
            return next(one for one in self.crew if one.group or one.forwarder)
        free = [one for one in self.crew if not (one.group or one.forwarder)]
        return max(free, key=lambda one: self._held(one, "dispatch", POOLS))

    def _lateness(self, since: datetime, until: datetime) -> tuple[float, float]:
        """Of the runs planned in that time: the latest to come, and the latest to start."""
        self._wait_until_ended(until)
        values = self.database.rows(
            "SELECT max(extract(epoch FROM created_at - planned_at)), max(extract(epoch FROM started_at - planned_at))"
            " FROM beatkeeper_run WHERE planned_at > %s AND planned_at <= %s",
            [since, until],
        )[0]
        return 1000 * float(values[0]), 1000 * float(values[1])

    def _wait_until_ended(self, until: datetime) -> None:
        unended = "SELECT EXISTS (SELECT FROM beatkeeper_live_run WHERE planned_at <= %s)"
        self._wait(lambda: not self.database.value(unended, [until]), 120, "the runs to end: too many JOBS?")

    def _wait(self, predicate: Callable[[], Any], timeout: float, what: str) -> None:
        """Says how things stand when it has waited in vain."""
        try:
            wait_until(predicate, timeout, what)
        except pytest.fail.Exception as failed:
            raise AssertionError(f"{failed}\n{self._situation()}") from None

    def _situation(self) -> str:
        waiting = self.database.rows(
            "SELECT pool.slug, live.state, live.reason, count(*), min(live.planned_at)::text"
            " FROM beatkeeper_live_run live JOIN beatkeeper_pool pool ON pool.id = live.pool_id GROUP BY 1, 2, 3"
        )
        nodes = self.database.rows("SELECT name, state, busy, last_beat_at::text FROM beatkeeper_worker_node")
        ended = [one for one in self.workers if not one.is_alive()]
        words = [f"a worker ended:\n{one.text()[-1500:]}" for one in ended]
        return "\n".join([f"at {self._now()}", *map(str, [*waiting, *nodes]), *words])

    def _judge(self) -> dict[str, Any]:
        until = self._now()
        self._wait_until_fired(until)
        self._lateness(until - timedelta(seconds=3), until)
        verdict = ledger_checker.check(self.database.session, until)
        say(str(verdict))
        again = self.database.value(
            "SELECT count(*) FROM (SELECT run_id FROM beatkeeper_attempt GROUP BY run_id HAVING count(*) > 1) again"
        )
        unended = self.database.value(
            "SELECT count(*) FROM beatkeeper_run WHERE planned_at <= %s AND state IS DISTINCT FROM 'succeeded'",
            [until],
        )
        return {
            "lost": len(verdict.missing) + verdict.torn + int(unended),
            "doubled": len(verdict.doubled) + len(verdict.unexpected) + int(again),
            "planned": verdict.expected,
            "balanced_seconds": round(max(self.balanced), 2),
            "cut_by": "iptables" if self.filters else "forwarder",
        }

    # The crew.

    def _start(self) -> Scheduler:
        """One of them so that it can be cut off."""
        if any(one.group or one.forwarder for one in self.crew):
            return Scheduler(self.stage.start_scheduler(self.database.url))
        if self.filters:
            command = in_group(self.group, sys.executable, *BEAT, SCHEDULER)[1:]
            started = self.stage.python(*command, url=self.database.url, name="scheduler")
            return Scheduler(started.process, group=self.group)
        forwarder = Forwarder(self.database.url)
        self.ending.callback(forwarder.close)
        return Scheduler(self.stage.start_scheduler(forwarder.url), forwarder=forwarder)

    def _start_worker(self, pool: str) -> None:
        arguments = [
            "-m",
            "tests.benchmarks.simulated_workers",
            "--name",
            f"of-{pool}",
            "--slots",
            "200",
            "--pool",
            pool,
        ]
        self.workers.append(self.stage.python(*arguments, url=self.database.url, name="worker").process)

    def _all_queues_are_there(self) -> bool:
        wanted = self.database.value("SELECT count(DISTINCT pool_id) FROM beatkeeper_job")
        named = "SELECT broker_queue FROM beatkeeper_pool WHERE broker_queue <> ''"
        broker_queues = [broker_queue for (broker_queue,) in self.database.rows(named)]
        try:
            with self.stage.channel() as channel:
                for queue in broker_queues:
                    channel.queue_declare(queue, passive=True)
        except amqp.NotFound:
            return False
        return bool(len(broker_queues) == wanted)

    def _held(self, scheduler: Scheduler, loop: str, kind: int) -> int:
        return int(
            self.database.value(
                "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'"
                " AND classid = %s AND granted AND application_name = %s",
                [kind, f"beatkeeper {loop} {scheduler.process.pid}"],
            )
        )

    def _slices_of(self, scheduler: Scheduler) -> int:
        return self._held(scheduler, "trigger", JOBS)

    def _wait_until_balanced(self) -> None:
        """Each at its fair share; kept is how long that takes once all of them are members."""
        fair = -(-SLICES // SCHEDULERS)

        def joined() -> bool:
            check_alive(*(one.process for one in self.crew))
            return self._members() == SCHEDULERS

        def shared_out() -> bool:
            found = [self._slices_of(one) for one in self.crew]
            return sum(found) == SLICES and max(found) <= fair

        wait_until(joined, 60, "all schedulers to join")
        began = time.monotonic()
        wait_until(shared_out, 30, "fair shares")
        self.balanced.append(time.monotonic() - began)

    def _members(self) -> int:
        return sum(self._held(one, "trigger", JOBS + 0x10000) for one in self.crew)

    def _fill(self, jobs: int) -> None:
        values = {"tenants": TENANTS, "pools": list(POOLS_USED), "task": TASK, "jobs": jobs}
        with self.database.session.transaction():
            for statement in f"{DEFINITIONS};\n{STORED}".split(";\n"):
                stored.fill_in(self.database.session, statement, values)

    def _now(self) -> datetime:
        at: datetime = self.database.value("SELECT clock_timestamp()")
        return at

    def _wait_until(self, at: datetime) -> None:
        time.sleep(max(0.0, (at - self._now()).total_seconds()))

    def _wait_until_runs_start(self) -> None:
        started = "SELECT count(*) >= %s FROM beatkeeper_run WHERE started_at IS NOT NULL"
        self._wait(lambda: self.database.value(started, [self.database.jobs]), 60, "runs to start")
        # What waited for the first workers is of no phase: each looks three seconds back.
        worked_off = self._now()
        self._wait_until_ended(worked_off)
        self._wait_until(worked_off + timedelta(seconds=3))

    def _wait_until_fired(self, until: datetime) -> None:
        behind = "SELECT EXISTS (SELECT FROM beatkeeper_job_clock WHERE next_run_at <= %s)"
        wait_until(lambda: not self.database.value(behind, [until]), 60, "all clocks to be past the phase")
