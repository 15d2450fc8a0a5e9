"""Who holds the work, and how far behind it is.

That a scheduler lives is known by the session locks it holds, and by nothing else; what it tells of itself is for
people to read.
"""

import time
from collections.abc import Iterable
from datetime import datetime, timedelta

from jobs.database_clock import database_now
from jobs.models import JOB_SLICES, Pool
from runs import slices
from runs.holding import BALANCE_SECONDS
from runs.models import SchedulerNode
from runs.presence import SILENT_SECONDS, troubles_of
from runs.publish import AWAY, UNKNOWN
from runs.queries import SQL
from scheduler_project.doctor.database import NTP, rows
from scheduler_project.doctor.findings import Findings, age, counted, fine, note, problem
from scheduler_project.doctor.work import LATE_SECONDS, SHOWN, living_workers
from scheduler_project.sdk import clock_skew

START = "start one: celery -A scheduler_project beat -S runs.beat:PartitionedScheduler"
LOOK_AGAIN = "look again in ten seconds; if it stays so, restart the schedulers and look in their log"
# Twice what it takes to look around.
HAND_OVER_SECONDS = 2 * BALANCE_SECONDS


def alive() -> Findings:
    members = len(held(slices.JOBS + slices.MEMBER))
    if not members:
        yield problem("no scheduler is alive: nothing is fired, nothing is handed over", START)
    elif members == 1:
        yield fine("1 scheduler is alive; a second one would take over in seconds")
    else:
        yield fine(f"{members} schedulers are alive")


def coverage() -> Findings:
    """Only told of living schedulers: without any, everything is uncovered and the check before has said so."""
    if not held(slices.JOBS + slices.MEMBER):
        return
    jobs = uncovered(slices.JOBS, range(JOB_SLICES))
    pools = uncovered(slices.POOLS, Pool.objects.values_list("pk", flat=True))
    if jobs:
        yield problem(
            f"{len(jobs)} of {JOB_SLICES} slices of the jobs are held by no scheduler: their jobs do not fire",
            LOOK_AGAIN,
        )
    if pools:
        slugs = ", ".join(Pool.objects.filter(pk__in=pools).values_list("slug", flat=True)[:5])
        yield problem(
            f"{counted(len(pools), 'pool')} held by no scheduler, so nothing is handed over there: {slugs}",
            LOOK_AGAIN,
        )
    alone = uncovered(slices.RESCUE, [0])
    if alone:
        yield problem(
            "no scheduler rescues: runs of lost workers stay where they are, and no retry begins",
            LOOK_AGAIN,
        )
    if not jobs and not pools and not alone:
        yield fine(f"all {JOB_SLICES} slices of the jobs, all pools and the rescue are held by a scheduler")


def behind() -> Findings:
    """By slices: one that stays behind while the others go on has a holder that hangs, or none."""
    marks, now = watermarks(), database_now()
    late = {number: at for number, at in marks.items() if now - at > timedelta(seconds=LATE_SECONDS)}
    if not late:
        oldest = max((now - at for at in marks.values()), default=timedelta(0))
        yield fine(f"no slice is behind; the oldest time that is due was {age(oldest.total_seconds())} ago")
        return
    worst = min(late, key=lambda number: late[number])
    holder = holders(slices.JOBS).get(worst, "nobody")
    yield problem(
        f"{len(late)} of {JOB_SLICES} slices of the jobs are behind, slice {worst} by"
        f" {age((now - late[worst]).total_seconds())}; it is held by {holder}",
        "look in that scheduler's log" if holder != "nobody" else LOOK_AGAIN,
    )


def hand_over() -> Findings:
    """By pools: what may go and is not handed over."""
    now, slow = database_now(), False
    slugs = dict(Pool.objects.values_list("pk", "slug"))
    for pool, (oldest, lanes) in oldest_waiting().items():
        waited = (now - oldest).total_seconds()
        if waited <= LATE_SECONDS:
            continue
        slow = True
        yield note(
            f"in the pool {slugs.get(pool, pool)} {counted(lanes, 'lane waits', 'lanes wait')} for free slots,"
            f" the longest for {age(waited)}",
            "add workers to the pool, or see what keeps their slots",
        )
    if not slow:
        yield fine("what may go is handed over at once")


def loops() -> Findings:
    """What the schedulers say of their own loops, and who fell silent without a farewell."""
    now, ill = database_now(), False
    for node in SchedulerNode.objects.filter(left_at=None).order_by("-last_seen_at")[:50]:
        silent = (now - node.last_seen_at).total_seconds()
        if silent > SILENT_SECONDS:
            yield note(f"the scheduler {node} fell silent {age(silent)} ago without a clean stop")
            continue
        for name, since in troubles_of(node.loops).items():
            ill = True
            last = "never succeeded" if since is None else f"last succeeded {age(since)} ago"
            yield problem(f"the {name} loop of the scheduler {node} {last}", "its log names what holds it up")
    if not ill:
        yield fine("the loops of all schedulers are at work")


def clocks() -> Findings:
    """Of the machines that schedulers and workers run on; nothing is decided by them, but people read them."""
    recent = database_now() - timedelta(seconds=SILENT_SECONDS)
    told = [
        *((f"the scheduler {node}", node.skew_ms) for node in living_schedulers(recent)),
        *((f"the worker {node}", node.skew_ms) for node in living_workers()),
    ]
    far = [(who, skew) for who, skew in told if skew is not None and abs(skew) > clock_skew.LIMIT_MS]
    for who, skew in sorted(far, key=lambda one: -abs(one[1]))[:SHOWN]:
        yield problem(f"the clock of {who} is {clock_skew.in_words(skew)}", NTP)
    if not far:
        worst = max((abs(skew) for _, skew in told if skew is not None), default=0.0)
        yield fine(
            f"the clocks of schedulers and workers differ from the database's by {worst:.0f} ms at most"
        )


def living_schedulers(since: datetime) -> Iterable[SchedulerNode]:
    return SchedulerNode.objects.filter(left_at=None, last_seen_at__gt=since).order_by("host", "pid")


def watermarks() -> dict[int, datetime]:
    """The oldest due and unfired planned time of each slice that has one."""
    return dict(rows(SQL["watermarks"], {"slices": JOB_SLICES}))


def oldest_waiting() -> dict[int, tuple[datetime, int]]:
    """By pool, since when the run at the head of a lane waits that may go, and how many lanes wait."""
    return {
        pool: (oldest, lanes)
        for pool, oldest, lanes in rows(SQL["oldest_waiting"], {"notices": [AWAY, UNKNOWN]})
    }


def uncovered(kind: int, universe: Iterable[int]) -> set[int]:
    """Held by nobody, and also not a moment later: what changes hands is nobody's meanwhile."""
    missing = set(universe) - set(held(kind))
    if not missing:
        return missing
    time.sleep(HAND_OVER_SECONDS)
    return missing - set(held(kind))


def held(kind: int) -> list[int]:
    """The keys of granted locks of this kind in this database, a shared one once for each holder."""
    return [key for key, _ in _locks(kind)]


def holders(kind: int) -> dict[int, str]:
    """Who holds each key, as the sessions are named."""
    return dict(_locks(kind))


def _locks(kind: int) -> list[tuple[int, str]]:
    found = rows(
        "SELECT objid::bigint, coalesce(nullif(application_name, ''), 'an unnamed session')"
        " FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2 AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [kind],
    )
    return [(int(key), str(name)) for key, name in found]
