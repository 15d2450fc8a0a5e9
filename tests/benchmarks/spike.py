"""DUE jobs of 100 tenants on the same second: what is triggered, what is handed over when, and who gets the slots.

Tenants weigh 1 to 10, and one of them has half of all runs. Priorities are mixed; the top band (priority 1000) has as
many runs of each tenant as it weighs, whatever else is due. Runs take 1 ms to 5 s of a slot, any time as likely.
The workers are simulated: real wake-ups, claims, reports and heartbeats over a connection each, but nothing is
executed. A run that is left in the table because its queue's window is full has not been handed over.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from tests.benchmarks import stored
from tests.benchmarks.figures import percentile, shares
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Database, Stage, check_alive, say
from tests.benchmarks.trigger import warm_up
from tests.support.processes import RealProcess
from tests.support.waiting import wait_until

KEYS = ("per_second", "top_p99_ms", "worst_share", "fairness_index", "bands", "due", "stored")
TOP = 1000
# A tenant that has waiting work for a shorter time than this has too few runs for a share to mean anything.
SHORTEST_SECONDS = 5.0
LOOK_SECONDS = 0.25
PRIORITIES = """
UPDATE beatkeeper_job job SET priority = CASE WHEN chosen.number <= tenant.weight THEN 1000
                                              ELSE 200 * (chosen.number % 5) END
FROM chosen JOIN beatkeeper_tenant tenant ON tenant.id = chosen.tenant_id WHERE job.id = chosen.job_id;
UPDATE beatkeeper_job_clock clock SET priority = job.priority
FROM chosen JOIN beatkeeper_job job ON job.id = chosen.job_id WHERE clock.job_id = job.id
"""


@dataclass
class Spike:
    """What was seen of it: instants as seconds after the second on which all were due."""

    at: datetime
    triggered: float = 0.0
    settled: float = 0.0
    watched: float = 0.0
    # When each run was marked queued, of those that were seen queued or running.
    queued: dict[UUID, float] = field(default_factory=dict)


def measure(stage: Stage) -> dict[str, Any]:
    due = whole("DUE", 100_000)
    # The large tenant owns a tenth of what is stored, and has half of what is due.
    database = stage.database(whole("STORED", 1_000_000, due * 5))
    watched = number("WATCH_SECONDS", 60.0, 1.0)
    slots, workers = whole("SLOTS", 600), whole("WORKERS", 3)
    spike = _run_spike(stage, database, due, watched, slots, workers)
    bands = _bands(_handed_over(database, spike))
    spans = _spans(database, spike.at, spike.at.timestamp() + spike.watched)
    tenants = _shares(database, spike, spans)
    occupied = sum(until - since for _, since, until in spans) / (slots * spike.watched)
    per_second, top = round(due / spike.triggered), bands[str(TOP)]
    worst = min(tenants, key=lambda tenant: tenants[tenant])
    index = fairness_index(list(tenants.values()))
    say(
        f"{due:,} of {database.jobs:,} jobs on one second: triggered within {spike.triggered:.1f} s ({per_second:,} a"
        f" second), all handed over or held back by their window within {spike.settled:.1f} s"
    )
    say(
        f"{workers} simulated workers of {slots} slots in all, {occupied:.0%} of them occupied; after"
        f" {spike.watched:.0f} s of claims and reports:"
    )
    for band, seen in bands.items():
        say(
            f"  priority {band:>4}: {seen['handed_over']:,} of {seen['runs']:,} handed over; half of those"
            f" {_within(seen['p50_ms'])}, 99 % of all {_within(seen['p99_ms'])}"
        )
    say(
        f"the tenant with the least of what was its due had {tenants[worst]:.2f} of its weighted share of slot-seconds"
        f" (tenant {worst}, of {len(tenants)}); fairness index {index:.3f}"
    )
    return {
        "per_second": per_second,
        "top_p99_ms": top["p99_ms"],
        "worst_share": round(tenants[worst], 3),
        "fairness_index": round(index, 4),
        "settled_seconds": round(spike.settled, 2),
        "bands": bands,
        "due": due,
        "stored": database.jobs,
        "slots": slots,
        "occupied": round(occupied, 3),
        "watched_seconds": round(spike.watched, 1),
        "workers": "simulated: real wake-ups, claims, reports and heartbeats; slots are held, nothing is executed",
    }


def _run_spike(stage: Stage, database: Database, due: int, watched: float, slots: int, workers: int) -> Spike:
    scheduler = stage.scheduler(database)
    stored.register_idle_workers(database.session, slots=10 * stored.TENANTS)
    warm_up(stage, database)
    database.session.execute("DELETE FROM beatkeeper_worker_node")
    stored.choose(database.session, due, large=due // 2)
    fleet = [_start_worker(stage, database, slots // workers, name) for name in range(workers)]
    stage.wait_for_workers(database, *fleet)
    spike = Spike(stored.make_due(database.session, PRIORITIES))
    time.sleep(max(0.0, -_since(database, spike.at)))
    _watch(database, spike, due, watched)
    check_alive(scheduler, *fleet)
    _check(database, spike.at, due)
    scheduler.terminate()
    for worker in fleet:
        worker.kill()
    stage.delete_queues()
    return spike


def _watch(database: Database, spike: Spike, due: int, seconds: float) -> None:
    """Record now and then which runs are queued or running: the row of an ended run is gone."""

    def look(condition: Callable[[], bool]) -> bool:
        found = condition()
        spike.queued.update(_queued(database))
        return found

    due_clocks = "SELECT EXISTS (SELECT FROM beatkeeper_job_clock WHERE next_run_at = %s)"
    wait_until(
        lambda: look(lambda: not database.value(due_clocks, [spike.at])),
        30 + due / 200,
        "all jobs to be triggered",
        interval=LOOK_SECONDS,
    )
    triggered = stored.database_now(database.session)
    spike.triggered = (triggered - spike.at).total_seconds()
    wait_until(
        lambda: look(lambda: _dispatched_since(database, triggered)),
        30,
        "all to be handed over or held back",
        interval=LOOK_SECONDS,
    )
    spike.settled = _since(database, spike.at)
    wait_until(
        lambda: look(lambda: _since(database, spike.at) >= seconds or not _unfinished(database)),
        seconds + 30,
        "the time to watch",
        interval=LOOK_SECONDS,
    )
    spike.watched = _since(database, spike.at)


def _since(database: Database, at: datetime) -> float:
    return (stored.database_now(database.session) - at).total_seconds()


def _queued(database: Database) -> list[tuple[UUID, float]]:
    """By the index of each state: the many that wait are not looked at."""
    states = "SELECT id, extract(epoch FROM queued_at)::float8 FROM beatkeeper_live_run WHERE state = "
    found: list[tuple[Any, ...]] = database.rows(f"{states} 'queued' UNION ALL {states} 'running'")
    return [(run, at) for run, at in found]


def _unfinished(database: Database) -> bool:
    return bool(database.value("SELECT EXISTS (SELECT FROM beatkeeper_live_run)"))


def _dispatched_since(database: Database, instant: datetime) -> bool:
    """Return whether dispatch has marked some since then and left what has no place, or nothing waits."""
    return bool(
        database.value(
            "SELECT NOT EXISTS (SELECT FROM beatkeeper_live_run WHERE state = 'ready')"
            " OR EXISTS (SELECT FROM beatkeeper_live_run WHERE queued_at > %s)",
            [instant],
        )
    )


def _start_worker(stage: Stage, database: Database, slots: int, name: int) -> RealProcess:
    arguments = [
        "-m",
        "tests.benchmarks.simulated_workers",
        "--name",
        f"simulated-{name}",
        "--slots",
        str(slots),
    ]
    return stage.python(*arguments, url=database.url, name="worker").process


def _check(database: Database, at: datetime, due: int) -> None:
    runs, jobs, failed = database.rows(
        "SELECT count(*), count(DISTINCT job_id), count(*) FILTER (WHERE state <> 'succeeded') FROM beatkeeper_run"
        " WHERE planned_at = %s",
        [at],
    )[0]
    assert (runs, jobs, failed) == (due, due, 0), (
        f"{runs} runs of {jobs} jobs, {failed} of them failed; {due} wanted"
    )


def _handed_over(database: Database, spike: Spike) -> list[tuple[int, float | None]]:
    """Priority of each run, and seconds until it was marked queued; None of one that is still in the table.

    Of a run that came and went between two looks the claim's time stands for it, which is later.
    """
    begin = spike.at.timestamp()
    lates = []
    for run, priority, started in database.rows(
        "SELECT id, priority, extract(epoch FROM started_at)::float8 FROM beatkeeper_run WHERE planned_at = %s",
        [spike.at],
    ):
        since = spike.queued.get(run, started)
        lates.append((priority, None if since is None else since - begin))
    return lates


def _bands(handed: list[tuple[int, float | None]]) -> dict[str, dict[str, Any]]:
    by_band = defaultdict(list)
    for priority, late in handed:
        by_band[priority].append(late)
    bands = {}
    for priority in sorted(by_band, reverse=True):
        lates = by_band[priority]
        over = [late for late in lates if late is not None]
        everything = [*over, *[float("inf")] * (len(lates) - len(over))]
        bands[str(priority)] = {
            "runs": len(lates),
            "handed_over": len(over),
            "p50_ms": _ms(percentile(over, 50.0)) if over else None,
            "p99_ms": _ms(percentile(everything, 99.0)),
        }
    return bands


def _within(milliseconds: float | None) -> str:
    return "not yet" if milliseconds is None else f"within {milliseconds:,.0f} ms"


def _ms(seconds: float) -> float | None:
    """None: not within the time watched."""
    return None if seconds == float("inf") else round(seconds * 1000, 1)


def _spans(database: Database, at: datetime, now: float) -> list[tuple[int, float, float]]:
    """Tenant, and from when to when a slot was held, of each run that was ever claimed."""
    return [
        (tenant, since, until or now)
        for tenant, since, until in database.rows(
            "SELECT run.tenant_id, extract(epoch FROM coalesce(run.started_at, live.started_at))::float8,"
            " extract(epoch FROM run.finished_at)::float8"
            " FROM beatkeeper_run run LEFT JOIN beatkeeper_live_run live USING (id)"
            " WHERE run.planned_at = %s AND coalesce(run.started_at, live.started_at) IS NOT NULL",
            [at],
        )
    ]


def _shares(database: Database, spike: Spike, spans: list[tuple[int, float, float]]) -> dict[int, float]:
    """Of each tenant that had waiting work for a while: its slot-seconds, by its weighted share of all."""
    begin, end = spike.at.timestamp(), spike.at.timestamp() + spike.watched
    waiting = database.rows(
        "SELECT DISTINCT tenant_id FROM beatkeeper_live_run WHERE state IN ('ready', 'queued')"
    )
    until = {tenant: end for (tenant,) in waiting}
    last: dict[int, float] = {}
    for tenant, since, _ in spans:
        last[tenant] = max(last.get(tenant, begin), since)
    until = {**last, **until}
    weights = dict(database.rows("SELECT id, weight FROM beatkeeper_tenant"))
    counted = shares(spans, until, weights, begin)
    return {
        tenant: share for tenant, share in counted.items() if until[tenant] - begin >= SHORTEST_SECONDS
    } or counted


def fairness_index(values: list[float]) -> float:
    """Jain's: 1 when all have the same of what is their share, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
