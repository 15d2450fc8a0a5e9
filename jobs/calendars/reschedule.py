"""Set the clocks of jobs again after an edit of the calendar they plan by.

The edit itself writes one row, however many jobs there are: it raises the calendar's edition and sets `rearmed_to`
before the first job. A pass goes through the jobs in the order of their ids and stores how far it has come, so another
scheduler continues where one died. Doing a job twice changes nothing, and neither do two schedulers at once.

Until its clock is set again a job keeps its one next time. From then on it plans by the new edition, and times of that
edition that have passed meanwhile without an outcome are due at once.
"""

import logging
import time
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import psycopg
from django.db import DatabaseError, OperationalError, transaction
from django.db.models import Exists, OuterRef

from auditlog.actions import Action
from auditlog.context import acting_as
from auditlog.models import ActorKind
from auditlog.record import record
from jobs.clock import database_now
from jobs.errors import Missing
from jobs.hooks import job_hooks
from jobs.models import Calendar, Job, JobStatus, JobVersion, Override
from jobs.schedules import next_after
from jobs.services.locking import LockedJob, limit_waiting, lock
from jobs.services.occurrences import schedule_of
from jobs.services.overrides import drop_overrides
from scheduler_project.sdk.ids import MILLISECOND

logger = logging.getLogger(__name__)

# A job whose lock is held is left to the next round, so that it does not delay the others.
MAX_WAIT = "2s"
CALENDARS_AT_ONCE = 20
# Planned times since the edit that are searched for one without an outcome.
MAX_TIMES = 100
BUSY = (OperationalError, psycopg.OperationalError)


def rearm_calendars(limit: int = 1000, seconds: float = 0.2) -> int:
    """Do one round: give each waiting calendar its share of the jobs and of the time.

    Returns the number of jobs that were checked; 0 if no calendar waits.
    """
    # In random order, so that no calendar with many jobs is always first.
    waiting = list(Calendar.objects.exclude(rearmed_to=None).order_by("?")[:CALENDARS_AT_ONCE])
    with acting_as(ActorKind.SYSTEM, "scheduler"):
        shares = len(waiting) or 1
        return sum(_rearm_some(calendar, -(-limit // shares), seconds / shares) for calendar in waiting)


def _rearm_some(calendar: Calendar, limit: int, seconds: float) -> int:
    """Set the clocks of some jobs of a calendar. The next round begins with a job whose lock is held."""
    until = time.monotonic() + seconds
    done, last = 0, calendar.rearmed_to
    specs = list(_next_specs(calendar, limit))
    try:
        for spec in specs:
            if done and time.monotonic() > until:
                break
            _rearm(spec, calendar)
            done, last = done + 1, spec.job_id
    except BUSY as error:
        logger.warning("a job of the calendar %s waits for its clock: %s", calendar, type(error).__name__)
    finished = done == len(specs) < limit
    # After an edit in between, this round says nothing about the new edition.
    present = Calendar.objects.filter(pk=calendar.pk, edition=calendar.edition)
    present.update(rearmed_to=None if finished else last)
    return done


def _next_specs(calendar: Calendar, limit: int) -> Iterable[JobVersion]:
    """Select the next jobs, and whether they have overrides, which must be checked under the lock."""
    open_overrides = Override.objects.filter(job=OuterRef("job_id"), done_at=None)
    found = calendar.versions.in_use().filter(job_id__gt=calendar.rearmed_to)
    found = found.select_related("job__clock", "calendar").annotate(has_overrides=Exists(open_overrides))
    return found.order_by("job_id")[:limit]


def _rearm(spec: JobVersion, calendar: Calendar) -> None:
    if _keeps_its_time(spec, calendar, database_now()):
        return
    try:
        with transaction.atomic():
            limit_waiting(MAX_WAIT)
            _set_clock(spec.job_id, calendar)
    except Missing:
        return
    except (DatabaseError, psycopg.Error):
        raise
    except Exception as error:  # a schedule that raises makes its job unrunnable, whatever it raises
        with transaction.atomic():
            limit_waiting(MAX_WAIT)
            locked = lock(Job(pk=spec.job_id))
            if locked.job.status == JobStatus.ACTIVE:
                locked.make_unrunnable(f"The next time cannot be reckoned: {error}")


def _keeps_its_time(spec: JobVersion, calendar: Calendar, now: datetime) -> bool:
    """Check without a lock whether the clock is right already: an edit far ahead leaves most clocks as they are.

    Three others may move the clock meanwhile. The trigger moves it only when a job is due, which excludes these. Edits
    of the job lock its calendar, so they are finished or see the new edition. A resume reads the calendar without a
    lock, but the job has another status until it is finished.
    """
    at = spec.job.clock.next_run_at
    if spec.job.status != JobStatus.ACTIVE or at is None or at <= now or spec.has_overrides:  # type: ignore[attr-defined]
        return False
    try:
        return next_after(schedule_of(spec), _since(spec.job, spec, calendar), anchor=spec.anchor_at) == at
    except Exception:  # noqa: BLE001 - it is reported when the clock is set, under its lock
        return False


def _since(job: Job, spec: JobVersion, calendar: Calendar) -> datetime:
    """Return the instant from which the job plans by the present edition."""
    return max(calendar.updated_at, spec.anchor_at, job.status_at)


def _set_clock(job_id: UUID, edited: Calendar) -> None:
    """Plan the first time without an outcome. `lock` triggers what is due by now."""
    locked = lock(Job(pk=job_id))
    calendar = locked.spec.calendar
    if calendar is None or locked.job.status not in (JobStatus.ACTIVE, JobStatus.FINISHED):
        return
    schedule, anchor = locked.schedule(), locked.spec.anchor_at
    upcoming = next_after(schedule, _since(locked.job, locked.spec, calendar), anchor=anchor)
    for _ in range(MAX_TIMES):
        settled = None if upcoming is None or upcoming > locked.now else _settled_to(locked.job, upcoming)
        if settled is None:
            break
        upcoming = next_after(schedule, settled, anchor=anchor)
    reason = f"the calendar {edited.name} was edited"
    if locked.job.status == JobStatus.FINISHED:
        _go_on(locked, upcoming, reason)
        return
    dropped = drop_overrides(locked, schedule, anchor)
    if dropped:
        record(Action.JOB_EDITED, locked.job, after={"dropped_overrides": dropped}, reason=reason)
    locked.plan(upcoming)
    if locked.clock.next_run_at is None:
        locked.set_status(JobStatus.FINISHED, f"No time of its schedule is open in {edited.name}.")


def _settled_to(job: Job, at: datetime) -> datetime | None:
    """Return the last instant that is settled together with this planned time, or None if it has no outcome.

    A time that had its run must not be planned again: some overlap policies would end that run. Nor must one that was
    reported as missed: it would be reported twice.
    """
    if job_hooks().taken_instant(job, at) is not None:
        return at
    end = job_hooks().missed_until(job, at)
    return None if end is None else end - MILLISECOND


def _go_on(locked: LockedJob, upcoming: datetime | None, reason: str) -> None:
    """Reactivate a finished job whose schedule has a time again, unless its schedule was a single instant."""
    if upcoming is None or "at" in (locked.spec.schedule or {}):
        return
    before = locked.audit_snapshot()
    locked.set_status(JobStatus.ACTIVE)
    locked.plan(upcoming)
    locked.record(Action.JOB_RESUMED, before, reason)
