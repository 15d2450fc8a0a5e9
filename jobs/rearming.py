"""Brings an edited calendar to the clocks of the jobs that plan by it.

The edit itself writes one row, however many jobs there are: it raises the calendar's edition and sets `rearmed_to`
before the first of them. A pass goes through them in the order of their ids and writes down how far it has come, so it
goes on wherever a scheduler died. Doing a job twice changes nothing, and neither do two schedulers at once.

Until its clock is set anew a job keeps the one next time it had. From then on it plans by the calendar as it is, and
times of the present edition that have come meanwhile and have no outcome are due at once.
"""

import logging
import time
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import psycopg
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.db.models import Exists, OuterRef

from auditlog.actions import Action
from auditlog.context import acting_as
from auditlog.models import ActorKind
from auditlog.record import record
from jobs.calendars import users
from jobs.database_clock import database_now
from jobs.locked_job import LockedJob, lock
from jobs.models import Calendar, Job, JobStatus, JobVersion, PlannedChange
from jobs.planned_changes import drop_changes
from jobs.planned_times import schedule_of, taken_by, told_until
from jobs.refusals import Missing
from jobs.schedules import next_after
from scheduler_project.sdk.ids import MILLISECOND

logger = logging.getLogger(__name__)

LONGEST_WAIT = "2s"
CALENDARS_AT_ONCE = 20
# So many times that have come since the edit are looked at for one without an outcome.
MOST_TIMES = 100
BUSY = (OperationalError, psycopg.OperationalError)


def rearm_calendars(limit: int = 1000, seconds: float = 0.2) -> int:
    """One round: each of the calendars that wait gets its share of so many jobs, and of so much time.

    Returns how many jobs were looked at; 0 says that none waits.
    """
    # In any order, so that no calendar with many jobs is always first.
    waiting = list(Calendar.objects.exclude(rearmed_to=None).order_by("?")[:CALENDARS_AT_ONCE])
    with acting_as(ActorKind.SYSTEM, "scheduler"):
        shares = len(waiting) or 1
        return sum(_rearm_some(calendar, -(-limit // shares), seconds / shares) for calendar in waiting)


def _rearm_some(calendar: Calendar, limit: int, seconds: float) -> int:
    """Some jobs of one calendar; where one is held by somebody the next round begins with it."""
    until = time.monotonic() + seconds
    done, last = 0, calendar.rearmed_to
    specs = list(_next_specs(calendar, limit))
    try:
        for spec in specs:
            if done and time.monotonic() > until:
                break
            _rearm(spec, calendar)
            done, last = done + 1, spec.job_id
    except InterfaceError:
        raise
    except BUSY as error:
        logger.warning("a job of the calendar %s waits for its clock: %s", calendar, type(error).__name__)
    finished = done == len(specs) < limit
    # An edit that came meanwhile begins anew: this round says nothing about its edition.
    present = Calendar.objects.filter(pk=calendar.pk, edition=calendar.edition)
    present.update(rearmed_to=None if finished else last)
    return done


def _next_specs(calendar: Calendar, limit: int) -> Iterable[JobVersion]:
    """The changes of single times tell which jobs must be looked at more closely."""
    open_changes = PlannedChange.objects.filter(job=OuterRef("job_id"), done_at=None)
    found = users(calendar).filter(job_id__gt=calendar.rearmed_to)
    found = found.select_related("job__clock", "calendar").annotate(has_changes=Exists(open_changes))
    return found.order_by("job_id")[:limit]


def _rearm(spec: JobVersion, calendar: Calendar) -> None:
    if _keeps_its_time(spec, calendar, database_now()):
        return
    try:
        with transaction.atomic():
            _limit_waiting()
            _set_clock(spec.job_id, calendar)
    except Missing:
        return
    except (DatabaseError, psycopg.Error):
        raise
    except Exception as error:  # a schedule that raises parks its job, whatever it raises
        with transaction.atomic():
            _limit_waiting()
            _park(spec.job_id, f"The next time cannot be reckoned: {error}")


def _keeps_its_time(spec: JobVersion, calendar: Calendar, now: datetime) -> bool:
    """Whether a look is enough: a date far ahead leaves most clocks as they are.

    Who may move the clock behind our back: the trigger, but only of a job that is due, which is not one of these; and
    edits, which hold the calendar they plan by, so that they are finished or come after its own edit. Others who read
    it without that (a resume) leave the job in another status until they are finished.
    """
    at = spec.job.clock.next_run_at
    if spec.job.status != JobStatus.ACTIVE or at is None or at <= now or spec.has_changes:  # type: ignore[attr-defined]
        return False
    try:
        return next_after(schedule_of(spec), _since(spec.job, spec, calendar), anchor=spec.anchor_at) == at
    except Exception:  # noqa: BLE001 - whoever holds the clock says what is wrong
        return False


def _since(job: Job, spec: JobVersion, calendar: Calendar) -> datetime:
    """From when the job plans by the present edition."""
    return max(calendar.updated_at, spec.anchor_at, job.status_at)


def _set_clock(job_id: UUID, edited: Calendar) -> None:
    """What is due by now is triggered first, by `lock`; then the first time that has no outcome yet."""
    locked = lock(Job(pk=job_id))
    calendar = locked.spec.calendar
    if calendar is None or locked.job.status not in (JobStatus.ACTIVE, JobStatus.FINISHED):
        return
    schedule, anchor = locked.schedule(), locked.spec.anchor_at
    upcoming = next_after(schedule, _since(locked.job, locked.spec, calendar), anchor=anchor)
    for _ in range(MOST_TIMES):
        settled = None if upcoming is None or upcoming > locked.now else _settled_to(locked.job, upcoming)
        if settled is None:
            break
        upcoming = next_after(schedule, settled, anchor=anchor)
    reason = f"the calendar {edited.name} was edited"
    if locked.job.status == JobStatus.FINISHED:
        _go_on(locked, upcoming, reason)
        return
    dropped = drop_changes(locked, schedule, anchor)
    if dropped:
        after = {"dropped_changes": dropped}
        record(Action.JOB_EDITED, locked.job, tenant_id=locked.job.tenant_id, after=after, reason=reason)
    locked.plan(upcoming)
    if locked.clock.next_run_at is None:
        locked.set_status(JobStatus.FINISHED, f"No time of its schedule is open in {edited.name}.")


def _settled_to(job: Job, at: datetime) -> datetime | None:
    """The last instant known to be settled with this planned time; None: it has neither a run nor a span.

    A time that had its run must not come by again: by some overlap policies it would end that run. Nor must one that
    was told as missed: it would be told twice.
    """
    if taken_by(job, at) is not None:
        return at
    end = told_until(job, at)
    return None if end is None else end - MILLISECOND


def _go_on(locked: LockedJob, upcoming: datetime | None, reason: str) -> None:
    """A schedule that had no time left has one again. A one-time job had its one."""
    if upcoming is None or "at" in (locked.spec.schedule or {}):
        return
    before = locked.facts()
    locked.set_status(JobStatus.ACTIVE)
    locked.plan(upcoming)
    after, tenant_id = locked.facts(), locked.job.tenant_id
    record(Action.JOB_RESUMED, locked.job, tenant_id=tenant_id, before=before, after=after, reason=reason)


def _park(job_id: UUID, note: str) -> None:
    locked = lock(Job(pk=job_id))
    if locked.job.status != JobStatus.ACTIVE:
        return
    before = locked.facts()
    locked.set_next(None)
    locked.set_status(JobStatus.UNRUNNABLE, note)
    after, tenant_id = locked.facts(), locked.job.tenant_id
    record(Action.JOB_UNRUNNABLE, locked.job, tenant_id=tenant_id, before=before, after=after, reason=note)


def _limit_waiting() -> None:
    """Whoever re-arms clocks has other things to do."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = '{LONGEST_WAIT}'")
