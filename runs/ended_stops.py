"""The end of a stop: what waited for it is settled, in bounded steps, and then it is told to have ended."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from jobs.models import JOB_SLICES, Effect, JobStatus
from jobs.stop_rules import StopRow
from runs import spans, stops
from runs.due_jobs import DueJob, longest_reach
from runs.gaps import ALL, LAST, NO_STOPS, SKIP, Piece, make_up
from runs.queries import Connection, change, rows
from runs.spans import Taken
from runs.trigger import halve, write_runs
from runs.visits import Visit


@dataclass(slots=True)
class Ended:
    runs: int = 0
    spans: int = 0
    # Nothing waits for the stop any more.
    stop: bool = False
    # There is more of it to settle at once.
    more: bool = False


def end_stop(
    connection: Connection, stop: StopRow, slices: Collection[int], now: datetime, most: int
) -> Ended:
    """One step towards the end of a stop that is over, of at most so many jobs of these slices."""
    with connection.transaction():
        wanted = {"stop": stop.id, "slices": sorted(slices), "most": most}
        jobs = [job for (job,) in rows(connection, "jobs_with_open_spans", wanted)]
        if jobs:
            return _settle(connection, stop, jobs, now)
        # Locked first: a visit that is about to leave a span to this stop has it now, or finds it gone.
        if not stops.lock_over_stop(connection, stop.id, now):
            return Ended()
        waits = {"stop": stop.id, "slices": JOB_SLICES, "over_at": stop.over_at}
        if rows(connection, "stop_is_waited_for", waits)[0][0]:
            return Ended()
        return Ended(stop=stops.end_stop(connection, stop.id, now))


def _settle(connection: Connection, stop: StopRow, jobs: Sequence[UUID], now: datetime) -> Ended:
    """What each job missed is told, run once, or made up for, by the effect of the stop and the job's policy."""
    done = Ended()
    by_job: defaultdict[UUID, list[Taken]] = defaultdict(list)
    for taken in spans.take(connection, "lock_open_spans", jobs, {"stop": stop.id}):
        by_job[taken.job.id].append(taken)

    def write(visits: Sequence[Visit]) -> None:
        written = write_runs(connection, visits, NO_STOPS, now)
        settled = [
            taken.span.id
            for found in visits
            if found.job.id not in written.left
            for taken in by_job[found.job.id]
        ]
        change(connection, "end_spans", {"ids": settled})
        done.runs += written.runs
        done.spans += len(settled)

    def give_up(found: Visit, note: str) -> None:
        write([spans.given_up(by_job[found.job.id], note)])

    halve(connection, [_after(stop, of_job, now) for of_job in by_job.values()], write, give_up)
    # While somebody has every one of the jobs in hand there is no hurry.
    done.more = done.spans > 0
    return done


def _after(stop: StopRow, of_job: Sequence[Taken], now: datetime) -> Visit:
    """Of a job: what becomes of all it missed under the stop. Several spans are there only if it was interrupted."""
    newest = of_job[-1]
    found = Visit(newest.job, catch_up=True)
    try:
        for taken in of_job:
            job, span = taken.job, taken.span
            made_up = make_up(
                job,
                [Piece(span.from_at, span.to_at)],
                now,
                span.reason,
                policy=_policy_after(stop, job),
                superseded=taken is not newest,
                window=longest_reach() if stop.effect == Effect.RUN_AFTER else None,
            )
            found.spans += [told._replace(stop_id=stop.id) for told in made_up.spans]
            found.times += [] if made_up.run_at is None else [made_up.run_at]
    except Exception as error:  # a schedule that raises is told, and keeps no other job from its runs
        return spans.given_up(of_job, str(error))
    return found


def _policy_after(stop: StopRow, job: DueJob) -> str:
    policies = {Effect.SKIP: SKIP, Effect.RUN_AFTER: LAST}
    policy = policies.get(Effect(stop.effect), job.catch_up.policy)
    if job.status == JobStatus.CANCELLED:
        return SKIP
    # Of a job that stands still itself only what is worked off later can still run.
    return policy if policy == ALL or job.status in (JobStatus.ACTIVE, JobStatus.FINISHED) else SKIP
