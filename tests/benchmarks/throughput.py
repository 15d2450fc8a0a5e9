"""Runs a second from made to finished, beside the same tasks as plain Celery and in Procrastinate.

All sides stand ready before the time begins. Ours begins when RUNS jobs are due and ends when the ledger has the
last run's outcome: trigger, dispatch, wake-ups, claims and reports are in it. Plain Celery's begins with the first
message that is published and ends with the last body; Procrastinate's with the first job that is deferred. The sides
take turns, REPEATS times, and the median of each counts.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from statistics import median
from typing import Any, NamedTuple

from celery import Celery

from tests.benchmarks import stored
from tests.benchmarks.sizes import slots, whole
from tests.benchmarks.stage import Database, Stage, check_alive, say
from tests.support.processes import RealProcess
from tests.support.waiting import wait_until

KEYS = (
    "ratio_noop",
    "ratio_10ms",
    "ratio_ten_lines",
    "ratio_procrastinate",
    "noop_per_second",
    "celery_noop_per_second",
    "procrastinate_noop_per_second",
    "ten_lines_per_second",
)
TASK = "bench.tick"


class Work(NamedTuple):
    """What a task does before it counts itself."""

    seconds: float = 0.0
    lines: int = 0

    def __str__(self) -> str:
        return f"{self.lines} lines" if self.lines else f"{self.seconds * 1000:g} ms"

    @property
    def jobs(self) -> str:
        """Return how the names of its jobs begin."""
        return f"of-{str(self).replace(' ', '-')}-"


NOOP, TEN_MS, TEN_LINES = Work(), Work(seconds=0.01), Work(lines=10)
DEFERRED_AT_ONCE = 1000
LONGEST_SECONDS = 600.0
DEFINITIONS = """
INSERT INTO beatkeeper_tenant (slug, name, weight, allowed_hosts) VALUES ('bench', 'Bench', 1, '{}');
INSERT INTO beatkeeper_pool (slug, description, exported_tasks, exported_kinds, shared)
    VALUES ('default', '', ARRAY[%(task)s], '{}', true)
"""
JOBS = """
INSERT INTO beatkeeper_job
        (id, tenant_id, name, description, pool_id, status, status_reason, status_by, priority, tags, version)
    SELECT gen_random_uuid(), (SELECT id FROM beatkeeper_tenant), %(name)s || i, '', (SELECT id FROM beatkeeper_pool),
           'active', '', '', 500, '{}', 1
    FROM generate_series(1, %(jobs)s) i;
INSERT INTO beatkeeper_job_version (job_id, version, target, target_key, schedule, timeout_ms, overlap, catch_up,
        retry, anchor_at, created_by)
    SELECT id, 1, jsonb_build_object('kind', 'celery', 'task', %(task)s, 'args',
               jsonb_build_array(%(seconds)s::float8, %(lines)s::int),
               'kwargs', '{}'::jsonb),
           %(task)s, '{"every": 86400}', 60000, 'allow_all', '{"policy": "last", "window": 86400.0}',
           '{"max_attempts": 4, "backoff": "exponential", "base": 10.0, "cap": 3600.0}',
           date_trunc('milliseconds', now()), ''
    FROM beatkeeper_job WHERE starts_with(name, %(name)s);
INSERT INTO beatkeeper_job_clock (job_id, slice, next_run_at)
    SELECT id, get_byte(uuid_send(id), 15) & 63, NULL FROM beatkeeper_job WHERE starts_with(name, %(name)s)
"""


def measure(stage: Stage) -> dict[str, Any]:
    repeats = whole("REPEATS", 3)
    sizes = {
        NOOP: whole("RUNS", 20_000),
        TEN_MS: whole("RUNS_10MS", 8_000),
        TEN_LINES: whole("RUNS_10LINES", 8_000),
    }
    with ExitStack() as ending:
        ours, plain = Ours(stage, sizes), PlainCelery(stage)
        sides: list[Side] = [ours, plain, Procrastinate(stage)]
        for side in sides:
            ending.enter_context(side.at_work())
            side.rate(NOOP, min(sizes[NOOP], 500))
        found: dict[tuple[str, Work], list[float]] = {}
        turns = [(NOOP, side) for side in sides] + [
            (work, side) for work in (TEN_MS, TEN_LINES) for side in (ours, plain)
        ]
        for repeat in range(repeats):
            for work, side in turns:
                rate = side.rate(work, sizes[work])
                found.setdefault((side.name, work), []).append(rate)
                say(f"{repeat + 1}. {side.name}, {work}: {rate:,.0f} runs a second")
    middle = {key: median(rates) for key, rates in found.items()}
    figures = {
        "ratio_noop": middle[ours.name, NOOP] / middle[plain.name, NOOP],
        "ratio_10ms": middle[ours.name, TEN_MS] / middle[plain.name, TEN_MS],
        "ratio_ten_lines": middle[ours.name, TEN_LINES] / middle[plain.name, TEN_LINES],
        "ratio_procrastinate": middle[ours.name, NOOP] / middle["procrastinate", NOOP],
    }
    say(
        f"no-ops: {figures['ratio_noop']:.2f} of plain Celery and {figures['ratio_procrastinate']:.1f} times"
        f" Procrastinate; of 10 ms: {figures['ratio_10ms']:.2f} of plain Celery, of ten lines:"
        f" {figures['ratio_ten_lines']:.2f}"
    )
    return {
        **{name: round(ratio, 3) for name, ratio in figures.items()},
        "noop_per_second": round(middle[ours.name, NOOP]),
        "celery_noop_per_second": round(middle[plain.name, NOOP]),
        "procrastinate_noop_per_second": round(middle["procrastinate", NOOP]),
        "ten_ms_per_second": round(middle[ours.name, TEN_MS]),
        "celery_ten_ms_per_second": round(middle[plain.name, TEN_MS]),
        "ten_lines_per_second": round(middle[ours.name, TEN_LINES]),
        "celery_ten_lines_per_second": round(middle[plain.name, TEN_LINES]),
        "slots": slots(),
        "repeats": repeats,
    }


class Side:
    name: str

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.counter = stage.folder / f"counter-{self.name}"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        raise NotImplementedError

    def rate(self, work: Work, runs: int) -> float:
        raise NotImplementedError

    def done(self) -> int:
        return self.counter.stat().st_size if self.counter.exists() else 0

    def until_done(self, target: int, process: RealProcess, publish: Callable[[], None]) -> float:
        """Seconds from the first publication to the last body."""
        began = time.monotonic()
        publish()
        wait_until(
            lambda: self.done() >= target or not process.is_alive(),
            LONGEST_SECONDS,
            f"{target} bodies",
            interval=0.005,
        )
        check_alive(process)
        return time.monotonic() - began


class Ours(Side):
    name = "beatkeeper"

    def __init__(self, stage: Stage, sizes: dict[Work, int]) -> None:
        super().__init__(stage)
        self.sizes = sizes

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.database = Database(self.stage.migrated("throughput"), sum(self.sizes.values()))
        self._fill()
        scheduler = self.stage.scheduler(self.database)
        worker = self.stage.worker(self.database.url, BENCH_COUNTER=str(self.counter))
        self.stage.wait_for_workers(self.database, worker)
        try:
            yield
            check_alive(scheduler, worker)
        finally:
            self.database.session.close()

    def _fill(self) -> None:
        statements = DEFINITIONS.split(";\n")
        for work, runs in self.sizes.items():
            values = {"task": TASK, "name": work.jobs, "jobs": runs, **work._asdict()}
            for statement in [*statements, *JOBS.split(";\n")]:
                stored.fill_in(self.database.session, statement, values)
            statements = []
        stored.settle(self.database.session)

    def rate(self, work: Work, runs: int) -> float:
        session = self.database.session
        session.execute("TRUNCATE beatkeeper_run, beatkeeper_attempt")
        stored.settle(session)
        begin = stored.database_now(session) + timedelta(seconds=1.5)
        session.execute(
            "UPDATE beatkeeper_job_clock SET next_run_at = date_trunc('milliseconds', %s::timestamptz) WHERE job_id IN"
            " (SELECT id FROM beatkeeper_job WHERE starts_with(name, %s) ORDER BY name LIMIT %s)",
            [begin, work.jobs, runs],
        )
        assert stored.database_now(session) < begin, "the machine is too slow to prepare in time"
        wait_until(lambda: self._ended() >= runs, LONGEST_SECONDS, f"{runs} runs to end", interval=0.1)
        session.execute("UPDATE beatkeeper_job_clock SET next_run_at = NULL")
        [(ended, states, last)] = self.database.rows(
            "SELECT count(*), array_agg(DISTINCT state), max(finished_at) FROM beatkeeper_run"
        )
        assert (ended, states) == (runs, ["succeeded"]), f"{ended} runs of {runs} ended as {states}"
        # Wake-ups that find nothing any more must not burden what is measured next.
        queues = stored.broker_queues(session)
        wait_until(lambda: not self.stage.depths(queues), LONGEST_SECONDS, "no wake-ups", interval=0.2)
        return runs / float((last - begin).total_seconds())

    def _ended(self) -> int:
        """Count closely only once nothing is unfinished."""
        if self.database.value("SELECT EXISTS (SELECT FROM beatkeeper_live_run)"):
            return 0
        return int(self.database.value("SELECT count(*) FROM beatkeeper_run WHERE state IS NOT NULL"))


class PlainCelery(Side):
    name = "celery"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.queue = f"{self.stage.prefix}.plain"
        self.app = Celery("plain", broker=self.stage.broker_url, set_as_current=False)
        self.app.conf.update(task_default_queue=self.queue, task_ignore_result=True)
        env = {"BENCH_COUNTER": str(self.counter), "BENCH_QUEUE": self.queue}
        self.process = self.stage.worker("", "plain", app="tests.benchmarks.plain_app", **env)
        try:
            yield
        finally:
            self.app.close()

    def rate(self, work: Work, runs: int) -> float:
        def publish() -> None:
            with self.app.producer_or_acquire() as producer:
                for _ in range(runs):
                    self.app.send_task(TASK, args=list(work), producer=producer, ignore_result=True)

        return runs / self.until_done(self.done() + runs, self.process, publish)


class Procrastinate(Side):
    name = "procrastinate"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.url = self.stage.empty_database("procrastinate")
        command = ["-m", "procrastinate", "--app", "tests.benchmarks.procrastinate_app.app"]
        self.stage.python(*command, "schema", "--apply", url=self.url).wait_for_success(60)
        arguments = [*command, "worker", "--concurrency", str(slots())]
        self.process = self.stage.python(
            *arguments, url=self.url, name="procrastinate", BENCH_COUNTER=str(self.counter)
        ).process
        yield

    def rate(self, work: Work, runs: int) -> float:
        def publish() -> None:
            asyncio.run(self._defer(work.seconds, runs))

        return runs / self.until_done(self.done() + runs, self.process, publish)

    async def _defer(self, seconds: float, runs: int) -> None:
        # Its app is made from the environment, which names our database only here.
        os.environ["DATABASE_URL"], before = self.url, os.environ["DATABASE_URL"]
        from tests.benchmarks.procrastinate_app import app, run

        os.environ["DATABASE_URL"] = before
        async with app.open_async():
            for begin in range(0, runs, DEFERRED_AT_ONCE):
                jobs: list[Any] = [{"seconds": seconds}] * min(DEFERRED_AT_ONCE, runs - begin)
                await run.batch_defer_async(*jobs)
