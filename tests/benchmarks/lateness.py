"""How late runs are at a steady rate: planned to confirmed by the broker, and planned to started on real workers.

First RATE triggers a second for RATE_SECONDS among STORED jobs, with nobody claiming, so that the scheduler alone is
measured. Then with real workers, at the highest rate this machine sustains with everything on it, found by stepping.
"""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.benchmarks import confirmations, stored
from tests.benchmarks.figures import milliseconds, percentile
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Database, Stage, check_alive, say
from tests.benchmarks.trigger import warm_up
from tests.support.processes import RealProcess
from tests.support.waiting import wait_until

KEYS = ("p50_ms", "p99_ms", "p999_ms", "started_p95_ms", "sustained_per_second", "stored")
# A rate is sustained when 95 % of its runs start within a second, and all have started soon after the last is due.
STARTED_WITHIN = 1.0
LAST_STARTS_WITHIN = 2.0
GROWTH = 1.5
# The search ends when the next rate to try is nearer than this to one that was sustained.
CLOSE_ENOUGH = 1.1


@dataclass
class Tried:
    per_second: int
    started: list[float]
    missing: int

    @property
    def p95(self) -> float:
        return percentile([*self.started, *[float("inf")] * self.missing], 95.0)

    @property
    def sustained(self) -> bool:
        return not self.missing and self.p95 <= STARTED_WITHIN

    def __str__(self) -> str:
        late = "late" if self.missing else f"p95 {self.p95 * 1000:.0f} ms"
        return f"{self.per_second} a second: {late}{'' if self.sustained else ', not sustained'}"


def measure(stage: Stage) -> dict[str, Any]:
    rate, seconds = whole("RATE", 1_667), number("RATE_SECONDS", 60.0, 1.0)
    database = stage.database(whole("STORED", 1_000_000, max(int(rate * seconds), stored.TENANTS)))
    confirmed = _confirm(stage, database, rate, seconds)
    figures = milliseconds(confirmed)
    say(
        f"{rate:,} triggers a second for {seconds:g} s among {database.jobs:,} jobs: planned to confirmed"
        f" 50 % within {figures['p50_ms']} ms, 99 % within {figures['p99_ms']} ms,"
        f" 99.9 % within {figures['p999_ms']} ms, all within {max(confirmed) * 1000:.0f} ms"
    )
    stage.database(database.jobs)
    best = _find_sustained(stage, database)
    say(
        f"with real workers this machine sustains {best.per_second} runs a second: 95 % start within"
        f" {best.p95 * 1000:.0f} ms of their planned time"
    )
    return {
        **figures,
        "worst_ms": round(max(confirmed) * 1000, 1),
        "started_p50_ms": round(percentile(best.started, 50.0) * 1000, 1),
        "started_p95_ms": round(best.p95 * 1000, 1),
        "sustained_per_second": best.per_second,
        "rate": rate,
        "seconds": seconds,
        "stored": database.jobs,
        "window": "unlimited up to confirmed; as shipped up to started",
    }


def _confirm(stage: Stage, database: Database, rate: int, seconds: float) -> list[float]:
    """Seconds from planned to confirmed of every run; a wake-up the broker has not confirmed fails the measurement."""
    notes = stage.folder / "confirmations"
    scheduler = stage.scheduler(database, confirmations.BEAT, **{confirmations.FILE: str(notes)})
    stored.register_idle_workers(database.session, slots=int(rate * seconds * 1.25))
    warm_up(stage, database)
    # The queues hold a wake-up a little before its confirmation is here.
    wait_until(lambda: confirmations.count(notes) >= stored.TENANTS, 60, "the confirmations so far")
    before = confirmations.count(notes)
    begin, count = _plan(database, rate, seconds)
    _sleep_until(database, begin, seconds)
    wait_until(
        lambda: confirmations.count(notes) >= before + count, 60, f"{count} confirmations", interval=0.5
    )
    _check(database, begin, count)
    planned = [
        float(at)
        for (at,) in database.rows(
            "SELECT extract(epoch FROM planned_at) FROM beatkeeper_live_run WHERE state = 'queued'"
            " ORDER BY queued_at"
        )
    ]
    confirmed = confirmations.instants(confirmations.read(notes), before, count)
    assert len(planned) == len(confirmed) == count, (
        f"{len(planned)} queued, {len(confirmed)} confirmed of {count}"
    )
    _tell_stages(database)
    _end(stage, scheduler)
    return [at - was_planned for at, was_planned in zip(confirmed, planned, strict=True)]


def _tell_stages(database: Database) -> None:
    """Where the time went: up to the run's row, and up to its mark."""
    for stage, column in {"inserted": "run.created_at", "marked queued": "live.queued_at"}.items():
        lates = database.rows(
            f"SELECT extract(epoch FROM {column} - run.planned_at)::float8 FROM beatkeeper_run run"  # noqa: S608
            " JOIN beatkeeper_live_run live USING (id)"
        )
        found = milliseconds([late for (late,) in lates])
        say(f"  {stage}: {found['p50_ms']}, {found['p99_ms']}, {found['p999_ms']} ms (50, 99, 99.9 %)")


def _plan(database: Database, rate: int, seconds: float) -> tuple[datetime, int]:
    count = int(rate * seconds)
    stored.choose(database.session, count)
    grid = whole("ON_WHOLE_SECONDS", 0, 0)
    return stored.spread(database.session, rate, grid_ms=1000 if grid else 1), count


def _sleep_until(database: Database, begin: datetime, seconds: float) -> None:
    now = stored.database_now(database.session).timestamp()
    time.sleep(max(0.0, begin.timestamp() + seconds - now))


def _check(database: Database, begin: datetime, count: int) -> None:
    runs, jobs = database.rows(
        "SELECT count(*), count(DISTINCT job_id) FROM beatkeeper_run WHERE planned_at >= %s", [begin]
    )[0]
    assert (runs, jobs) == (count, count), f"{runs} runs of {jobs} jobs, {count} wanted"


def _end(stage: Stage, *processes: RealProcess) -> None:
    check_alive(*processes)
    for process in processes:
        process.terminate()
    stage.delete_queues()


def _find_sustained(stage: Stage, database: Database) -> Tried:
    scheduler = stage.scheduler(database)
    workers = [stage.worker(database.url) for _ in range(whole("WORKERS", 1))]
    stage.wait_for_workers(database, *workers)
    step = number("STEP_SECONDS", 10.0, 1.0)
    # Whoever is asked for the first time is slow; the figures are of those who have worked before.
    _try(database, whole("FIRST_PER_SECOND", 100), min(5.0, step))
    rate = _search(database, step)
    # What was sustained for a short while has to be sustained for a longer one.
    while not (lasting := _described(_try(database, rate, 3 * step))).sustained:
        rate = int(rate / CLOSE_ENOUGH)
        assert rate, "not even one run a second starts in time on this machine"
    _end(stage, *workers, scheduler)
    return lasting


def _search(database: Database, step: float) -> int:
    """Upwards by leaps until a rate is too high, then between that and the best one so far."""
    rate, best, too_high = whole("FIRST_PER_SECOND", 100), 0, whole("MOST_PER_SECOND", 4_000) + 1
    while best * CLOSE_ENOUGH < rate < too_high:
        if _described(_try(database, rate, step)).sustained:
            best = rate
        else:
            too_high = rate
        leap = int(best * GROWTH)
        rate = leap if 0 < leap < too_high else int((best * too_high) ** 0.5) if best else too_high // 2
    return max(1, best)


def _described(tried: Tried) -> Tried:
    say(f"  {tried}")
    return tried


def _try(database: Database, rate: int, seconds: float) -> Tried:
    begin, count = _plan(database, rate, seconds)
    _sleep_until(database, begin, seconds + LAST_STARTS_WITHIN)
    started = [
        float(late)
        for (late,) in database.rows(
            "SELECT extract(epoch FROM coalesce(run.started_at, live.started_at) - run.planned_at)"
            " FROM beatkeeper_run run LEFT JOIN beatkeeper_live_run live USING (id)"
            " WHERE run.planned_at >= %s AND coalesce(run.started_at, live.started_at) IS NOT NULL",
            [begin],
        )
    ]
    # The next rate begins with nothing left of this one.
    wait_until(
        lambda: not database.value("SELECT EXISTS (SELECT FROM beatkeeper_live_run)"),
        60 + count / 20,
        "the end of all runs",
        interval=0.2,
    )
    _check(database, begin, count)
    return Tried(rate, started, count - len(started))
