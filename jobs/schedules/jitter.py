"""The flexible window: by how much a run begins after its planned time, so that thousands do not begin at once."""

from datetime import datetime

from scheduler_project.sdk.ids import MILLISECOND

from .expression import stable_hash
from .kinds import Schedule, in_utc, next_after


def jittered(schedule: Schedule, job_id: object, planned_at: datetime) -> datetime:
    """When the run of a planned time may begin: the same in every process, and evenly spread over the window.

    Never before its planned time, and before the next one, so that the runs of a job stay in order.
    """
    planned_at = in_utc(planned_at)
    if not schedule.jitter:
        return planned_at
    following = next_after(schedule, planned_at, anchor=planned_at)
    window = schedule.jitter if following is None else min(schedule.jitter, following - planned_at)
    instant = planned_at.isoformat(timespec="milliseconds")
    return planned_at + stable_hash(f"jitter:{job_id}:{instant}") % (window // MILLISECOND) * MILLISECOND
