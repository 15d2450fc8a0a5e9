"""Run groups of dead runs again, so many a minute: a row each, worked off in bounded passes.

A pass is one transaction with the row locked: the runs it makes, the decisions they are and how far it has come. A
scheduler that is killed leaves nothing half done; two that work on one redrive take turns.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import psycopg
from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from auditlog.actions import Action
from auditlog.context import acting_as, current_actor
from auditlog.models import ActorKind
from auditlog.record import record
from jobs.clock import database_now
from jobs.errors import Conflict, InvalidInput, Missing
from jobs.models import JobVersion, Tenant
from jobs.services.locking import limit_waiting
from jobs.spec.targets import check_input
from jobs.validation.checks import Json, whole_number
from jobs.validation.instants import as_text
from runs import history
from runs.models import DeadLetter, DeadLetterDecision, Redrive, RedriveState
from runs.services import dead_letters
from runs.services.dead_letters import MAX_AT_ONCE
from runs.services.runs import read_input
from runs.sql import fetch
from scheduler_project.sdk.ids import EPOCH

logger = logging.getLogger(__name__)

MAX_PACE = 6000
# After a pause of the schedulers it does not make up for more.
BURST_SECONDS = 5
MAX_REDRIVES = 20
MAX_WAIT = "200ms"
LOOK_AGAIN_SECONDS = 1
# For transactions that may still commit dead letters of runs that had died by the request.
MAX_LATE = timedelta(minutes=10)
NOWHERE = UUID(int=0)


class RedriveUnderWay(Conflict):
    """The group is on its way already."""

    code = "redrive_under_way"


class RedriveIsOver(Conflict):
    """The redrive is over."""

    code = "redrive_is_over"


@transaction.atomic
def start(
    tenant: Tenant, fingerprint: str, per_minute: object, given: object = None, reason: str = ""
) -> Redrive:
    """Start to run again what has died of a group by now; what dies later is none of it."""
    pace = whole_number(per_minute, "per_minute", 1, MAX_PACE)
    checked = read_input(tenant, given)
    group = {"tenant": tenant, "fingerprint": fingerprint}
    letters = DeadLetter.objects.filter(**group, decision=DeadLetterDecision.OPEN)
    newest = letters.order_by("died_at", "run").values_list("run", flat=True).last()
    if newest is None:
        raise Missing(f"there is no open group {fingerprint[:40]}")
    if checked is not None and (dead := history.find(newest)):
        version = JobVersion.objects.get(job=dead.job_id, version=dead.version)
        check_input(checked, version.target)
    now, by = database_now(), current_actor().name[:200]
    values = {"per_minute": pace, "input": checked, "reason": reason, "requested_by": by}
    # Of two who start at once the key lets one insert; the other finds that one's.
    redrive, new = Redrive.objects.get_or_create(
        **group, state=RedriveState.WORKING, defaults={**values, "created_at": now, "next_at": now}
    )
    if not new:
        wrong = f"{redrive.requested_by or 'somebody'} redrives it already, {redrive.per_minute} a minute"
        hint, link = "stop that redrive to start another", f"/api/v1/redrives/{redrive.pk}"
        raise RedriveUnderWay(wrong, hint=hint, link=link)
    redrive.refresh_from_db()
    record(Action.REDRIVE_STARTED, redrive, after=audit_snapshot(redrive), reason=reason)
    return redrive


@transaction.atomic
def stop(redrive: Redrive, reason: str = "") -> Redrive:
    """Stop a redrive. The runs it made go on; the other dead letters stay open."""
    locked = Redrive.objects.select_for_update().get(pk=redrive.pk)
    if locked.state != RedriveState.WORKING:
        raise RedriveIsOver(f"the redrive is {locked.state}", field="state")
    before = audit_snapshot(locked)
    _end(locked, RedriveState.STOPPED, database_now(), current_actor().name)
    record(Action.REDRIVE_STOPPED, locked, before=before, after=audit_snapshot(locked), reason=reason)
    return locked


def work_off() -> int:
    """Do a step of each redrive that is due; return how many runs were made."""
    now = database_now()
    found = Redrive.objects.filter(state=RedriveState.WORKING, next_at__lte=now).order_by("next_at")
    with acting_as(ActorKind.SYSTEM, "scheduler"):
        return sum(_step(identity) for identity in found.values_list("pk", flat=True)[:MAX_REDRIVES])


def _step(identity: UUID) -> int:
    try:
        with transaction.atomic():
            limit_waiting(MAX_WAIT)
            return step(identity)
    except InterfaceError:
        raise
    except (OperationalError, psycopg.OperationalError) as error:
        logger.warning("the redrive %s waits: %s", identity, type(error).__name__)
    except (DatabaseError, psycopg.DatabaseError):  # what the database refuses of one costs no other its time
        logger.exception("the redrive %s makes no progress", identity)
    return 0


def step(identity: UUID) -> int:
    """Run as many of the group again as its pace allows by now, in the caller's transaction."""
    free = Redrive.objects.select_for_update(skip_locked=True, of=("self",)).select_related("tenant")
    redrive = free.filter(pk=identity, state=RedriveState.WORKING).first()
    now = database_now()
    if redrive is None or redrive.next_at > now:
        return 0
    number, next_at = allowed(redrive.next_at, now, redrive.per_minute)
    letters, more_may_come = _dead_letters_to_come(redrive, number, now)
    if letters:
        return _run_again(redrive, letters, next_at)
    if more_may_come:
        redrive.next_at = now + timedelta(seconds=LOOK_AGAIN_SECONDS)
        redrive.save(update_fields=["next_at"])
    else:
        _end(redrive, RedriveState.DONE, now)
    return 0


def _run_again(redrive: Redrive, letters: Sequence[tuple[UUID, datetime]], next_at: datetime) -> int:
    runs = [run for run, _ in letters]
    try:
        done = dead_letters.redrive(redrive.tenant, runs, redrive.input, reason=redrive.reason, of=redrive)
    except InvalidInput as refusal:
        # A secret that its input refers to is gone: no run of the group can have it.
        redrive.last_refusal = str(refusal)
        redrive.save(update_fields=["last_refusal"])
        _end(redrive, RedriveState.STOPPED, database_now())
        return 0
    redrive.made += len(done.runs)
    redrive.refused += len(done.refused)
    if done.refused:
        redrive.last_refusal = str(next(reversed(done.refused.values())))
    redrive.cursor, redrive.cursor_at = letters[-1]
    redrive.next_at = next_at
    redrive.save(update_fields=["made", "refused", "last_refusal", "cursor", "cursor_at", "next_at"])
    return len(done.runs)


def allowed(next_at: datetime, now: datetime, per_minute: int) -> tuple[int, datetime]:
    """Return how many may go by now, and when the next one may."""
    interval = timedelta(minutes=1) / per_minute
    since = max(next_at, now - timedelta(seconds=BURST_SECONDS))
    count = min(MAX_AT_ONCE, 1 + (now - since) // interval)
    return count, since + count * interval


def _dead_letters_to_come(
    redrive: Redrive, most: int, now: datetime
) -> tuple[list[tuple[UUID, datetime]], bool]:
    """Return the next dead letters and, where there are none, whether some may still come."""
    if letters := _next_of_group(redrive, most):
        return letters, True
    # Runs that died before the request may have dead letters that are not committed yet, behind the cursor. The check
    # comes before the last read, which then finds all of them: from the front, because a run that died earlier may have
    # been committed later. The cursor stays where it is.
    late = now > redrive.created_at + MAX_LATE
    more_may_come = not late and fetch("others_are_dying", until=redrive.created_at)[0]["exists"]
    return _next_of_group(redrive, most, from_front=True), more_may_come


def _next_of_group(redrive: Redrive, most: int, *, from_front: bool = False) -> list[tuple[UUID, datetime]]:
    """Return the dead letters behind the cursor of the redrive, or from the front."""
    cursor_at, cursor = (None, None) if from_front else (redrive.cursor_at, redrive.cursor)
    group = {"redrive": redrive.pk, "tenant": redrive.tenant_id, "fingerprint": redrive.fingerprint}
    bounds = {"cursor_at": cursor_at or EPOCH, "cursor": cursor or NOWHERE}
    bounds |= {"until": redrive.created_at, "most": most}
    found = fetch("dead_letters_after", **group, **bounds)
    return [(row["run_id"], row["died_at"]) for row in found]


def _end(redrive: Redrive, state: RedriveState, now: datetime, by: str = "") -> None:
    redrive.state, redrive.ended_at, redrive.ended_by = state, now, by[:200]
    redrive.save(update_fields=["state", "ended_at", "ended_by"])


def left(redrive: Redrive) -> int:
    """Count the dead letters that are left, up to a bound."""
    working = redrive.state == RedriveState.WORKING
    return len(_next_of_group(redrive, dead_letters.MAX_COUNTED)) if working else 0


def audit_snapshot(redrive: Redrive) -> Json:
    names = ("fingerprint", "per_minute", "input", "state", "made", "refused")
    return {**{name: getattr(redrive, name) for name in names}, "created_at": as_text(redrive.created_at)}
