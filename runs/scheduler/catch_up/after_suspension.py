"""End a suspension: settle what waited for it, in bounded steps, and then record its end."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from jobs.models import JOB_SLICES, Effect, JobStatus
from jobs.suspensions.rules import SuspensionRow
from runs.scheduler.catch_up.caught_up import CaughtUp
from runs.scheduler.trigger import missed_spans as spans
from runs.scheduler.trigger import suspensions
from runs.scheduler.trigger.decision import TriggerDecision
from runs.scheduler.trigger.due_job import DueJob, longest_reach
from runs.scheduler.trigger.missed import ALL, LAST, NO_SUSPENSIONS, SKIP, Segment, make_up
from runs.scheduler.trigger.missed_spans import LockedSpan
from runs.scheduler.trigger.trigger import halve, write_runs
from runs.sql import Connection, change, rows


def end_suspension(
    connection: Connection, suspension: SuspensionRow, slices: Collection[int], now: datetime, most: int
) -> CaughtUp:
    """Take one step towards the end of a suspension that is over, for at most so many jobs of these slices."""
    with connection.transaction():
        wanted = {"suspension": suspension.id, "slices": sorted(slices), "most": most}
        jobs = [job for (job,) in rows(connection, "jobs_with_open_spans", wanted)]
        if jobs:
            return _settle(connection, suspension, jobs, now)
        # Locked first: a decision that is about to leave a span to this suspension has it now, or finds it gone.
        if not suspensions.lock_over_suspension(connection, suspension.id, now):
            return CaughtUp(now)
        waits = {"suspension": suspension.id, "slices": JOB_SLICES, "over_at": suspension.over_at}
        if rows(connection, "suspension_is_waited_for", waits)[0][0]:
            return CaughtUp(now)
        return CaughtUp(now, ended=int(suspensions.end_suspension(connection, suspension.id, now)))


def _settle(
    connection: Connection, suspension: SuspensionRow, jobs: Sequence[UUID], now: datetime
) -> CaughtUp:
    """Settle what each job missed, by the effect of the suspension and the job's policy.

    A missed time is noted, run once, or left to the paced catch-up.
    """
    done = CaughtUp(now)
    by_job: defaultdict[UUID, list[LockedSpan]] = defaultdict(list)
    for taken in spans.take(connection, "lock_open_spans", jobs, {"suspension": suspension.id}):
        by_job[taken.job.id].append(taken)

    def write(decisions: Sequence[TriggerDecision]) -> None:
        written = write_runs(connection, decisions, NO_SUSPENSIONS, now)
        settled = [
            taken.span.id
            for found in decisions
            if found.job.id not in written.left
            for taken in by_job[found.job.id]
        ]
        change(connection, "end_spans", {"ids": settled})
        done.runs += written.runs
        done.events += written.events
        done.settled += len(settled)

    def give_up(found: TriggerDecision, reason: str) -> None:
        write([spans.given_up(by_job[found.job.id], reason)])

    halve(connection, [_after(suspension, of_job, now) for of_job in by_job.values()], write, give_up)
    # While other sessions have locked all of the jobs, the next step can wait.
    done.more = done.settled > 0
    return done


def _after(suspension: SuspensionRow, of_job: Sequence[LockedSpan], now: datetime) -> TriggerDecision:
    """Decide about all that a job missed under the suspension.

    There are several spans only if the suspension was interrupted.
    """
    newest = of_job[-1]
    found = TriggerDecision(newest.job, catch_up=True)
    try:
        for taken in of_job:
            job, span = taken.job, taken.span
            made_up = make_up(
                job,
                [Segment(span.begins_at, span.ends_at)],
                now,
                span.reason,
                policy=_policy_after(suspension, job),
                superseded=taken is not newest,
                window=longest_reach() if suspension.effect == Effect.RUN_AFTER else None,
            )
            found.spans += [missed._replace(suspension_id=suspension.id) for missed in made_up.spans]
            found.times += [] if made_up.run_at is None else [made_up.run_at]
    except Exception as error:  # a schedule that raises keeps no other job from its runs
        return spans.given_up(of_job, str(error))
    return found


def _policy_after(suspension: SuspensionRow, job: DueJob) -> str:
    policies = {Effect.SKIP: SKIP, Effect.RUN_AFTER: LAST}
    policy = policies.get(Effect(suspension.effect), job.catch_up.policy)
    if job.status == JobStatus.CANCELLED:
        return SKIP
    # While the job itself is paused, only what is worked off later can still run.
    return policy if policy == ALL or job.status in (JobStatus.ACTIVE, JobStatus.FINISHED) else SKIP
