"""Check which schedulers are alive, which slices they hold, and how late their jobs are.

A scheduler is alive while it holds its session locks; its own reports are for people to read.
"""

import time
from collections.abc import Iterable
from datetime import datetime, timedelta

from jobs.clock import database_now
from jobs.models import JOB_SLICES, Pool
from runs.models import SchedulerNode, WorkerNode
from runs.reasons import NOT_HELD
from runs.scheduler.partitions import lock_session as slices
from runs.scheduler.partitions.share import BALANCE_SECONDS
from runs.scheduler.status import SILENT_SECONDS, troubles_of
from runs.sql import SQL
from scheduler_project.doctor.database import NTP, rows
from scheduler_project.doctor.findings import Findings, age, counted, fine, fine_unless_found, note, problem
from scheduler_project.doctor.runs import LATE_SECONDS, SHOWN
from scheduler_project.sdk.ledger import clock_skew

START = "start one: celery -A scheduler_project beat -S runs.beat:PartitionedScheduler"
LOOK_AGAIN = "look again in ten seconds; if it stays so, restart the schedulers and look in their log"
# Twice the interval in which schedulers rebalance: long enough for a slice to change hands.
REBALANCE_SECONDS = 2 * BALANCE_SECONDS


def alive() -> Findings:
    members = count_alive()
    if not members:
        yield problem("no scheduler is alive: nothing is triggered, nothing is dispatched", START)
    elif members == 1:
        yield fine("1 scheduler is alive; a second one would take over in seconds")
    else:
        yield fine(f"{members} schedulers are alive")


def coverage() -> Findings:
    """Check that all slices and pools are held; without a living scheduler, the check before has reported it."""
    if not count_alive():
        return
    jobs, pools, recovery = unheld()
    if jobs:
        yield problem(
            f"{len(jobs)} of {JOB_SLICES} slices of the jobs are held by no scheduler: their jobs are not triggered",
            LOOK_AGAIN,
        )
    if pools:
        slugs = ", ".join(Pool.objects.filter(pk__in=pools).values_list("slug", flat=True)[:5])
        yield problem(
            f"{counted(len(pools), 'pool')} held by no scheduler, so nothing is dispatched there: {slugs}",
            LOOK_AGAIN,
        )
    if recovery:
        yield problem(
            "no scheduler runs recovery: runs of lost workers stay as they are, and no retry begins",
            LOOK_AGAIN,
        )
    if not any((jobs, pools, recovery)):
        yield fine(f"all {JOB_SLICES} slices of the jobs, all pools and recovery are held by a scheduler")


def behind() -> Findings:
    """Check by slices how late jobs are: a slice that stays behind has no holder, or a hanging one."""
    marks, now = watermarks(), database_now()
    late = {number: at for number, at in marks.items() if now - at > timedelta(seconds=LATE_SECONDS)}
    if not late:
        oldest = max((now - at for at in marks.values()), default=timedelta(0))
        yield fine(f"no slice is behind; the oldest time that is due was {age(oldest.total_seconds())} ago")
        return
    worst = min(late, key=lambda number: late[number])
    holder = dict(_locks(slices.JOBS)).get(worst, "no scheduler")
    yield problem(
        f"{len(late)} of {JOB_SLICES} slices of the jobs are behind, slice {worst} by"
        f" {age((now - late[worst]).total_seconds())}; it is held by {holder}",
        "look in that scheduler's log" if holder != "no scheduler" else LOOK_AGAIN,
    )


@fine_unless_found("no dispatchable run waits")
def waiting_queues() -> Findings:
    """Check by pools for runs that may be dispatched and are not."""
    now = database_now()
    slugs = dict(Pool.objects.values_list("pk", "slug"))
    for pool, (oldest, queues) in oldest_waiting().items():
        waited = (now - oldest).total_seconds()
        if waited > LATE_SECONDS:
            yield note(
                f"in the pool {slugs.get(pool, pool)} {counted(queues, 'queue waits', 'queues wait')} for free slots,"
                f" the longest for {age(waited)}",
                "add workers to the pool, or see what keeps their slots",
            )


def loops() -> Findings:
    """Check the loops by the schedulers' own reports, and note schedulers that stopped without leaving."""
    now, ill = database_now(), False
    for node in SchedulerNode.objects.filter(left_at=None).order_by("-last_seen_at")[:50]:
        silent = (now - node.last_seen_at).total_seconds()
        if silent > SILENT_SECONDS:
            yield note(f"the scheduler {node} fell silent {age(silent)} ago without a clean stop")
            continue
        for name, since in troubles_of(node.loops).items():
            ill = True
            last = "never succeeded" if since is None else f"last succeeded {age(since)} ago"
            yield problem(f"the {name} loop of the scheduler {node} {last}", "its log names the cause")
    if not ill:
        yield fine("the loops of all schedulers succeed")


def clocks() -> Findings:
    """Check the clocks of the schedulers' and workers' machines. Only people read them: the database's decides."""
    recent = database_now() - timedelta(seconds=SILENT_SECONDS)
    living = SchedulerNode.objects.filter(left_at=None, last_seen_at__gt=recent).order_by("host", "pid")
    reports = [
        *((f"the scheduler {node}", node.skew_ms) for node in living),
        *((f"the worker {node}", node.skew_ms) for node in WorkerNode.objects.living()),
    ]
    far = [(who, skew) for who, skew in reports if skew is not None and abs(skew) > clock_skew.LIMIT_MS]
    for who, skew in sorted(far, key=lambda one: -abs(one[1]))[:SHOWN]:
        yield problem(f"the clock of {who} is {clock_skew.describe(skew)}", NTP)
    if not far:
        ms = max((abs(skew) for _, skew in reports if skew is not None), default=0.0)
        yield fine(f"the clocks of schedulers and workers differ from the database's by {ms:.0f} ms at most")


def watermarks() -> dict[int, datetime]:
    """Return the oldest due planned time of each slice that has one."""
    return dict(rows(SQL["watermarks"], {"slices": JOB_SLICES}))


def oldest_waiting() -> dict[int, tuple[datetime, int]]:
    """Return by pool since when the first dispatchable run waits, and how many queues wait."""
    found = rows(SQL["oldest_waiting"], {"not_held": list(NOT_HELD)})
    return {pool: (oldest, queues) for pool, oldest, queues in found}


def unheld() -> list[set[int]]:
    """Return the slices, the pools and the part of recovery that no scheduler holds."""
    pools = Pool.objects.values_list("pk", flat=True)
    parts = ((slices.JOBS, range(JOB_SLICES)), (slices.POOLS, pools), (slices.RECOVERY, [0]))
    return [uncovered(kind, universe) for kind, universe in parts]


def count_alive() -> int:
    return len(held(slices.JOBS + slices.MEMBER))


def uncovered(kind: int, universe: Iterable[int]) -> set[int]:
    """Return what nobody holds, now and a moment later: between two holders nobody holds it."""
    missing = set(universe) - set(held(kind))
    if not missing:
        return missing
    time.sleep(REBALANCE_SECONDS)
    return missing - set(held(kind))


def held(kind: int) -> list[int]:
    """Return the keys of granted locks of a kind in this database, a shared one once for each holder."""
    return [key for key, _ in _locks(kind)]


def _locks(kind: int) -> list[tuple[int, str]]:
    """Return key and holder of each lock; a holder is known by the name of its session."""
    found = rows(
        "SELECT objid::bigint, coalesce(nullif(application_name, ''), 'an unnamed session')"
        " FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2 AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [kind],
    )
    return [(int(key), str(name)) for key, name in found]
