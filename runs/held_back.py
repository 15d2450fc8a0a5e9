"""What becomes of the planned times that a job missed while it was held back: foreseen, and done when it goes on."""

from datetime import datetime
from typing import Any

from django.db import connection
from django.dispatch import receiver

from jobs import signals
from jobs.missed import Missed
from jobs.models import Job, JobVersion
from jobs.planned_times import schedule_of
from jobs.schedules import last_before
from runs.catch_up import Settled, foresee_gap, settle_gap
from runs.gaps import MOST_COUNTED
from scheduler_project.sdk.ids import MILLISECOND


@receiver(signals.times_missed)
def settle(
    job: Job, spec: JobVersion, from_at: datetime, to_at: datetime, reason: str, policy: str | None, **_: Any
) -> Missed:
    connection.ensure_connection()
    done = settle_gap(connection.connection, job.pk, from_at, to_at, reason, policy)
    return _told(spec, from_at, to_at, done)


@receiver(signals.times_asked)
def foresee(
    job: Job, spec: JobVersion, from_at: datetime, to_at: datetime, policy: str | None, **_: Any
) -> Missed:
    connection.ensure_connection()
    return _told(spec, from_at, to_at, foresee_gap(connection.connection, job.pk, from_at, to_at, policy))


def _told(spec: JobVersion, from_at: datetime, to_at: datetime, settled: Settled) -> Missed:
    """Of a schedule that cannot be read any more nobody knows the last time."""
    try:
        last = last_before(schedule_of(spec), to_at - MILLISECOND, anchor=spec.anchor_at, not_before=from_at)
    except Exception:  # noqa: BLE001 - a parked job is parked because this raises
        last = None
    return Missed(
        count=MOST_COUNTED if settled.missed is None else settled.missed,
        exact=settled.missed is not None,
        from_at=from_at,
        to_at=last or to_at - MILLISECOND,
        policy=settled.policy,
        runs=settled.runs_now + settled.will_run,
    )
