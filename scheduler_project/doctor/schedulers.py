"""Who holds the work: schedulers are known by the session locks they hold, and by nothing else."""

from collections.abc import Iterable

from jobs.models import JOB_SLICES, Pool
from runs import slices
from scheduler_project.doctor.database import rows
from scheduler_project.doctor.findings import Findings, counted, fine, problem

START = "start one: celery -A scheduler_project beat -S runs.beat:PartitionedScheduler"


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
            "look again in ten seconds; if it stays so, restart the schedulers and look in their log",
        )
    if pools:
        slugs = ", ".join(Pool.objects.filter(pk__in=pools).values_list("slug", flat=True)[:5])
        yield problem(
            f"{counted(len(pools), 'pool')} held by no scheduler, so nothing is handed over there: {slugs}",
            "look again in ten seconds; if it stays so, restart the schedulers and look in their log",
        )
    rescued = held(slices.RESCUE)
    if not rescued:
        yield problem(
            "no scheduler rescues: runs of lost workers stay where they are, and no retry begins",
            "look again in ten seconds; if it stays so, restart the schedulers and look in their log",
        )
    if not jobs and not pools and rescued:
        yield fine(f"all {JOB_SLICES} slices of the jobs, all pools and the rescue are held by a scheduler")


def uncovered(kind: int, universe: Iterable[int]) -> set[int]:
    return set(universe) - set(held(kind))


def held(kind: int) -> list[int]:
    """The keys of granted locks of this kind in this database, a shared one once for each holder."""
    found = rows(
        "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2"
        " AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [kind],
    )
    return [int(key) for (key,) in found]
