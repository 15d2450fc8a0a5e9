"""Groups of dead runs on their way again, so many a minute: a row each, worked off in bounded passes.

A pass is one transaction with the row locked: the runs it makes, the decisions they are and how far it has come. A
scheduler that is killed leaves nothing half done, and two that believe to be at it take turns.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError, connection, transaction

from auditlog.actions import Action
from auditlog.context import acting_as, current_actor
from auditlog.models import ActorKind
from auditlog.record import record
from jobs.database_clock import database_now
from jobs.input_checks import Json, whole_number
from jobs.instants import as_text
from jobs.models import Tenant
from jobs.refusals import Conflict, Missing
from runs import dead_letters
from runs.dead_letters import MOST_AT_ONCE, SQL
from runs.models import DeadLetter, Decision, Redrive, RedriveState
from scheduler_project.sdk.ids import EPOCH

logger = logging.getLogger(__name__)

FASTEST = 6000
# After a pause of the schedulers it does not make up for more.
BURST_SECONDS = 5
MOST_REDRIVES = 20
LONGEST_WAIT = "200ms"
LOOK_AGAIN_SECONDS = 1
# For transactions that may leave letters which had died by the request.
LONGEST_LATE = timedelta(minutes=10)
NOWHERE = UUID(int=0)
FRONT = (EPOCH, NOWHERE)


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
    """All of the group that has died by now; what dies later waits on the desk."""
    pace = whole_number(per_minute, "per_minute", 1, FASTEST)
    checked = dead_letters.read_input(tenant, given)
    waiting = DeadLetter.objects.filter(tenant=tenant, fingerprint=fingerprint, decision=Decision.OPEN)
    if not waiting.exists():
        raise Missing(f"there is no open group {fingerprint[:40]}")
    now = database_now()
    redrive = Redrive(
        tenant=tenant,
        fingerprint=fingerprint,
        per_minute=pace,
        input=checked,
        reason=reason,
        requested_by=current_actor().name[:200],
        created_at=now,
        next_at=now,
    )
    try:
        with transaction.atomic():
            redrive.save(force_insert=True)
    except IntegrityError as error:
        if "redrive_once_per_group" not in str(error):
            raise
        other = Redrive.objects.get(tenant=tenant, fingerprint=fingerprint, state=RedriveState.WORKING)
        raise RedriveUnderWay(
            f"{other.requested_by or 'somebody'} redrives it already, {other.per_minute} a minute",
            hint="stop that redrive to start another",
            link=f"/api/v1/redrives/{other.pk}",
        ) from None
    redrive.refresh_from_db()
    record(Action.REDRIVE_STARTED, redrive, tenant_id=tenant.pk, after=facts(redrive), reason=reason)
    return redrive


@transaction.atomic
def stop(redrive: Redrive, reason: str = "") -> Redrive:
    """What it has made goes on; what it had not come to waits on the desk."""
    locked = Redrive.objects.select_for_update().get(pk=redrive.pk)
    if locked.state != RedriveState.WORKING:
        raise RedriveIsOver(f"the redrive is {locked.state}", field="state")
    before = facts(locked)
    _end(locked, RedriveState.STOPPED, database_now(), current_actor().name)
    record(
        Action.REDRIVE_STOPPED,
        locked,
        tenant_id=locked.tenant_id,
        before=before,
        after=facts(locked),
        reason=reason,
    )
    return locked


def work_off() -> int:
    """A step of each redrive that is due. Returns how many runs it made."""
    now = database_now()
    found = Redrive.objects.filter(state=RedriveState.WORKING, next_at__lte=now).order_by("next_at")
    with acting_as(ActorKind.SYSTEM, "scheduler"):
        return sum(_step(identity) for identity in found.values_list("pk", flat=True)[:MOST_REDRIVES])


def _step(identity: UUID) -> int:
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{LONGEST_WAIT}'")
            return step(identity)
    except InterfaceError:
        raise
    except (OperationalError, psycopg.OperationalError) as error:
        logger.warning("the redrive %s waits: %s", identity, type(error).__name__)
    except (DatabaseError, psycopg.DatabaseError):  # what the database refuses of one costs no other its time
        logger.exception("the redrive %s makes no progress", identity)
    return 0


def step(identity: UUID) -> int:
    """As many of the group as its pace allows by now, in the caller's transaction."""
    free = Redrive.objects.select_for_update(skip_locked=True, of=("self",)).select_related("tenant")
    redrive = free.filter(pk=identity, state=RedriveState.WORKING).first()
    now = database_now()
    if redrive is None or redrive.next_at > now:
        return 0
    going = allowed(redrive.next_at, now, redrive.per_minute)
    letters, more_may_come = _letters_still_to_come(redrive, going.number, now)
    if letters:
        return _run_again(redrive, letters, going.next_at)
    if more_may_come:
        redrive.next_at = now + timedelta(seconds=LOOK_AGAIN_SECONDS)
        redrive.save(update_fields=["next_at"])
    else:
        _end(redrive, RedriveState.DONE, now)
    return 0


def _run_again(redrive: Redrive, letters: Sequence[tuple[UUID, datetime]], next_at: datetime) -> int:
    done = dead_letters.redrive(
        redrive.tenant, [run for run, _ in letters], redrive.input, reason=redrive.reason, of=redrive
    )
    redrive.made += len(done.runs)
    redrive.refused += len(done.refused)
    if done.refused:
        redrive.last_refusal = str(next(reversed(done.refused.values())))
    redrive.cursor, redrive.cursor_at = letters[-1]
    redrive.next_at = next_at
    redrive.save(update_fields=["made", "refused", "last_refusal", "cursor", "cursor_at", "next_at"])
    return len(done.runs)


class Allowed(NamedTuple):
    number: int
    next_at: datetime


def allowed(next_at: datetime, now: datetime, per_minute: int) -> Allowed:
    """How many may go by now, and when the next one may."""
    interval = timedelta(minutes=1) / per_minute
    since = max(next_at, now - timedelta(seconds=BURST_SECONDS))
    count = min(MOST_AT_ONCE, 1 + (now - since) // interval)
    return Allowed(count, since + count * interval)


def _letters_still_to_come(
    redrive: Redrive, most: int, now: datetime
) -> tuple[list[tuple[UUID, datetime]], bool]:
    """The next ones; and where there are none, whether some may still come."""
    if letters := _letters_after(redrive, _come_to(redrive), most):
        return letters, True
    # Asked before the last look, which then sees all that they have left: from the front, because who died earlier may
    # have been committed later. The row itself stays where it has come to.
    more_may_come = _others_are_dying(redrive, now)
    return _letters_after(redrive, FRONT, most), more_may_come


def _others_are_dying(redrive: Redrive, now: datetime) -> bool:
    """Runs whose death is older than the request, and whose letters are not committed: they come behind the cursor."""
    if now > redrive.created_at + LONGEST_LATE:
        return False
    with connection.cursor() as cursor:
        cursor.execute(SQL["others_are_dying"], {"until": redrive.created_at})
        return bool(cursor.fetchone()[0])


def _come_to(redrive: Redrive) -> tuple[datetime, UUID]:
    return redrive.cursor_at or EPOCH, redrive.cursor or NOWHERE


def _letters_after(redrive: Redrive, after: tuple[datetime, UUID], most: int) -> list[tuple[UUID, datetime]]:
    values: dict[str, Any] = {
        "redrive": redrive.pk,
        "tenant": redrive.tenant_id,
        "fingerprint": redrive.fingerprint,
        "cursor_at": after[0],
        "cursor": after[1],
        "until": redrive.created_at,
        "most": most,
    }
    with connection.cursor() as cursor:
        cursor.execute(SQL["letters_after"], values)
        return [(run, died_at) for run, died_at in cursor.fetchall()]


def _end(redrive: Redrive, state: RedriveState, now: datetime, by: str = "") -> None:
    redrive.state, redrive.ended_at, redrive.ended_by = state, now, by[:200]
    redrive.save(update_fields=["state", "ended_at", "ended_by"])


def left(redrive: Redrive) -> int:
    """What it has still to come to, up to a bound."""
    if redrive.state != RedriveState.WORKING:
        return 0
    return len(_letters_after(redrive, _come_to(redrive), dead_letters.MOST_COUNTED))


def facts(redrive: Redrive) -> Json:
    return {
        "fingerprint": redrive.fingerprint,
        "per_minute": redrive.per_minute,
        "input": redrive.input,
        "state": redrive.state,
        "made": redrive.made,
        "refused": redrive.refused,
        "created_at": as_text(redrive.created_at),
    }
