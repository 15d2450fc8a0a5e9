"""How late runs are at a steady rate: planned to confirmed by the broker, and planned to started on real workers.

First RATE triggers a second for RATE_SECONDS among STORED jobs, with nobody claiming, so that the scheduler alone is
measured. Then with real workers, at the highest rate this machine sustains with everything on it, found by stepping.
"""

from functools import partial
from typing import Any

from tests.benchmarks import confirmations, steady, stored
from tests.benchmarks.figures import milliseconds, percentile
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Database, Stage, check_alive, say
from tests.benchmarks.sustained import LAST_STARTS_WITHIN, Search, Tried, find_sustained
from tests.benchmarks.trigger import warm_up
from tests.support.processes import RealProcess
from tests.support.waiting import wait_until

KEYS = ("p50_ms", "p99_ms", "p999_ms", "started_p95_ms", "sustained_per_second", "stored")


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
    begin, count = steady.plan(database, rate, seconds, grid_ms=_grid_ms())
    steady.sleep_until(database, begin, seconds)
    wait_until(
        lambda: confirmations.count(notes) >= before + count, 60, f"{count} confirmations", interval=0.5
    )
    steady.check(database, begin, count)
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


def _grid_ms() -> int:
    return 1000 if whole("ON_WHOLE_SECONDS", 0, 0) else 1


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
    search = Search(whole("FIRST_PER_SECOND", 100), whole("MOST_PER_SECOND", 4_000), step, held=3 * step)
    found = find_sustained(partial(_try, database), search)
    _end(stage, *workers, scheduler)
    return found


def _try(database: Database, rate: int, seconds: float) -> Tried:
    begin, count = steady.plan(database, rate, seconds, grid_ms=_grid_ms())
    steady.sleep_until(database, begin, seconds + LAST_STARTS_WITHIN)
    started = [
        float(late)
        for (late,) in database.rows(
            "SELECT extract(epoch FROM coalesce(run.started_at, live.started_at) - run.planned_at)"
            " FROM beatkeeper_run run LEFT JOIN beatkeeper_live_run live USING (id)"
            " WHERE run.planned_at >= %s AND coalesce(run.started_at, live.started_at) IS NOT NULL",
            [begin],
        )
    ]
    steady.wait_for_end(database, count)
    steady.check(database, begin, count)
    return Tried(rate, started, count - len(started))
