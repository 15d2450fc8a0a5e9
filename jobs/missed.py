"""Planned times that got no run while a job was held back, and what becomes of them when it goes on."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs import signals
from jobs.instants import as_text
from jobs.models import Job, JobStatus, JobVersion
from jobs.planned_times import schedule_of
from jobs.schedules import next_after
from scheduler_project.sdk.ids import MILLISECOND


@dataclass(frozen=True)
class Gap:
    """Where planned times lie that were missed: [from_at, to_at), and `from_at` is the first of them."""

    from_at: datetime
    to_at: datetime


@dataclass(frozen=True)
class Missed:
    """How many times there were, the first and the last of them, and how many runs the policy makes for them."""

    count: int
    # False: there are more than are counted.
    exact: bool
    from_at: datetime
    to_at: datetime
    policy: str
    runs: int

    def as_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "exact": self.exact,
            "from": as_text(self.from_at),
            "to": as_text(self.to_at),
            "policy": self.policy,
            "runs": self.runs,
        }


def gap_of(spec: JobVersion, since: datetime, to_at: datetime) -> Gap | None:
    """After `since`, only when a planned time lay in it; a schedule that cannot be read any more may have had some."""
    try:
        first = next_after(schedule_of(spec), since, anchor=spec.anchor_at)
    except Exception:  # noqa: BLE001 - a parked job is parked because this raises
        first = since
    return Gap(first, to_at) if first is not None and first < to_at else None


def held_back_since(job: Job, spec: JobVersion) -> datetime:
    """Times of the present schedule: what an earlier one missed was told when it was replaced."""
    return max(job.status_at, spec.anchor_at)


def missed_so_far(job: Job, spec: JobVersion, now: datetime, policy: str | None = None) -> Missed | None:
    """Of a job that is held back: what resuming it now would find, and do by this policy or its own."""
    if job.status not in (JobStatus.PAUSED, JobStatus.UNRUNNABLE):
        return None
    gap = gap_of(spec, held_back_since(job, spec), end_of_gap(job, now))
    if gap is None:
        return None
    return answer(
        signals.times_asked.send(
            Job, job=job, spec=spec, from_at=gap.from_at, to_at=gap.to_at, now=now, policy=policy
        )
    )


def answer(answers: Iterable[tuple[Any, Any]]) -> Missed | None:
    """Of those who listen, of whom one knows."""
    return next((said for _listener, said in answers if isinstance(said, Missed)), None)


def end_of_gap(job: Job, now: datetime) -> datetime:
    """A pause that has an end is over then, however late somebody comes by: what is planned from there on stands."""
    until = job.paused_until
    return until if until is not None and until <= now else now + MILLISECOND
