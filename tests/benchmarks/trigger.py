"""Runs a second from due to confirmed by the broker and marked queued, by one scheduler, beside django-celery-beat.

STORED jobs in 100 tenants, DUE of them due on one second; 1 kB of payload each, a queue for each tenant.
Nobody claims: the queues' windows are as good as unlimited, since workers with very many slots are registered that
do nothing. The peer gets as many due tasks of the same size for the same number of queues, and PEER_SECONDS.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tests.benchmarks import confirmations, cpu, peer, stored
from tests.benchmarks.figures import described
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Database, Stage, check_alive, say
from tests.support.waiting import wait_until

KEYS = ("runs_per_second", "ratio", "peer_per_second", "window", "due", "stored")
# Between two looks at how far it is; at most so late is what is measured.
LOOK_SECONDS = 0.05


def measure(stage: Stage) -> dict[str, Any]:
    due = whole("DUE", 100_000)
    database = stage.database(whole("STORED", 1_000_000, max(due, stored.TENANTS)))
    ours = _run_scheduler(stage, database, due)
    theirs = peer.measure(stage, due, number("PEER_SECONDS", 60.0, 1.0))
    per_second, peer_per_second = round(due / ours["seconds"]), theirs["published"] / theirs["seconds"]
    ratio = round(per_second / peer_per_second, 1)
    say(
        f"{due:,} of {database.jobs:,} jobs due on one second: inserted by {ours['triggered_seconds']:.2f} s,"
        f" marked queued by {ours['marked_seconds']:.2f} s, all confirmed {ours['seconds']:.2f} s after they were due:"
        f" {per_second:,} runs a second"
    )
    say(f"CPU of a run, in microseconds: {described(ours['cpu_us'])}")
    say(
        f"django-celery-beat, {due:,} due, the same broker, with confirms: {theirs['published']:,} in"
        f" {theirs['seconds']:.1f} s: {peer_per_second:.0f} a second; we do {ratio} times that"
    )
    return {
        "runs_per_second": per_second,
        "ratio": ratio,
        "peer_per_second": round(peer_per_second, 1),
        "window": "unlimited",
        "due": due,
        "stored": database.jobs,
        "payload_bytes": 1024,
        "seconds": round(ours["seconds"], 3),
        "triggered_per_second": round(due / ours["triggered_seconds"]),
        "marked_per_second": round(due / ours["marked_seconds"]),
        "cpu_us_per_run": ours["cpu_us"],
    }


def _run_scheduler(stage: Stage, database: Database, due: int) -> dict[str, Any]:
    notes = stage.folder / "trigger-confirmations"
    scheduler = stage.scheduler(database, confirmations.BEAT, **{confirmations.FILE: str(notes)})
    stored.register_idle_workers(database.session, slots=due + due // 4)
    warm_up(stage, database)
    stored.choose(database.session, due)
    before = confirmations.count(notes)
    at = stored.make_due(database.session)
    spent = cpu.meter(cpu.parts_of(scheduler.pid, database))
    confirmed_at = _wait_until_confirmed(database, due, at, lambda: confirmations.count(notes) - before)
    cpu_us = {part: round(seconds / due * 1e6, 1) for part, seconds in spent().items()}
    check_alive(scheduler)
    scheduler.terminate()
    marks = _check(database, due, at, confirmations.count(notes) - before)
    stage.delete_queues()
    return {"seconds": confirmed_at - at.timestamp(), "cpu_us": cpu_us, **marks}


def warm_up(stage: Stage, database: Database) -> None:
    """Give every tenant a run first, so that queues and the pool's broker queue exist; remove what is left of these."""
    session = database.session
    stored.choose(session, stored.TENANTS)
    at = stored.make_due(session)
    queues = stored.broker_queues(session)
    wait_until(lambda: stage.depths(queues) >= stored.TENANTS, 60, "the wake-ups")
    with stage.channel() as channel:
        for queue in queues:
            channel.queue_purge(queue)
    session.execute("TRUNCATE beatkeeper_run, beatkeeper_live_run")
    session.execute(
        "UPDATE beatkeeper_job_clock SET next_run_at = next_run_at + interval '2 days' WHERE next_run_at > %s"
        " AND next_run_at < %s",
        [at, at + timedelta(days=1)],
    )


def _wait_until_confirmed(database: Database, due: int, at: datetime, confirmed: Callable[[], int]) -> float:
    """By what changes least: first no clock is due, then no run is ready, then each has a wake-up."""
    now = stored.database_now(database.session).timestamp()
    time.sleep(max(0.0, at.timestamp() - now))
    longest = 30 + due / 200
    wait_until(
        lambda: (
            not database.value(
                "SELECT EXISTS (SELECT FROM beatkeeper_job_clock WHERE next_run_at = %s)", [at]
            )
        ),
        longest,
        "all jobs to be triggered",
        interval=0.5,
    )
    wait_until(
        lambda: not database.value("SELECT EXISTS (SELECT FROM beatkeeper_live_run WHERE state = 'ready')"),
        longest,
        "all runs to be marked queued",
        interval=LOOK_SECONDS,
    )
    wait_until(lambda: confirmed() >= due, 60, "all wake-ups to be confirmed", interval=LOOK_SECONDS)
    return stored.database_now(database.session).timestamp()


def _check(database: Database, due: int, at: datetime, wakeups: int) -> dict[str, float]:
    """Count afterwards: each job has its one run, and each run its wake-up."""
    runs, jobs, states, last, marked = database.rows(
        "SELECT count(*), count(DISTINCT run.job_id), array_agg(DISTINCT live.state || ' ' || run.trigger),"
        " extract(epoch FROM max(run.created_at)), extract(epoch FROM max(live.queued_at))"
        " FROM beatkeeper_run run JOIN beatkeeper_live_run live USING (id) WHERE run.planned_at = %s",
        [at],
    )[0]
    assert (runs, jobs, states) == (due, due, ["queued schedule"]), (runs, jobs, states)
    assert database.value("SELECT count(*) FROM beatkeeper_run") == due
    queues = database.value("SELECT count(*) FROM beatkeeper_queue")
    assert queues == stored.TENANTS, f"{queues} queues"
    assert wakeups == due, f"{wakeups} wake-ups for {due} runs"
    began = at.timestamp()
    return {"triggered_seconds": float(last) - began, "marked_seconds": float(marked) - began}
