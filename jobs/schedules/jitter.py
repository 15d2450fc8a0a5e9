"""Spread the runs of one planned time over a window, so that thousands do not begin at once."""

from datetime import datetime

from jobs.schedules.cron.expression import stable_hash
from scheduler_project.sdk.ids import MILLISECOND

from .kinds import Schedule, in_utc, next_after


def jittered(schedule: Schedule, job_id: object, planned_at: datetime) -> datetime:
    """Return when the run of a planned time may begin: the same in every process, evenly spread over the window.

    It lies between the planned time and the next one, so that the runs of a job stay in order.
    """
    planned_at = in_utc(planned_at)
    if not schedule.jitter:
        return planned_at
    following = next_after(schedule, planned_at, anchor=planned_at)
    window = schedule.jitter if following is None else min(schedule.jitter, following - planned_at)
    instant = planned_at.isoformat(timespec="milliseconds")
    return planned_at + stable_hash(f"jitter:{job_id}:{instant}") % (window // MILLISECOND) * MILLISECOND
