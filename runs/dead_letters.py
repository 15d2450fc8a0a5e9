"""The dead-letter desk: dead runs grouped by error, and what people decide of them: run it again, or let it be.

A decision is made once, by a guarded write under the letter's lock; of two people who redrive the same run the second
is told what the first has done. The dead run never changes: a redrive is a new run that points to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record, record_each
from jobs.database_clock import database_now
from jobs.input_checks import Json, expect_object, refuse_large, refused
from jobs.models import Job, Tenant
from jobs.refusals import Conflict, Missing, Refused
from jobs.secret_references import check_input
from runs import services
from runs.models import DeadLetter, Decision, Redrive, Run
from runs.states import FinalState, Trigger
from scheduler_project.sdk.sql import statements

SQL = statements(Path(__file__).parent / "sql" / "dead_letters.sql")
MOST_GROUPS = 200
# A group with more says so: to count them all would take longer than anybody waits.
MOST_COUNTED = 10_000
MOST_AT_ONCE = 100
MOST_DISMISSED = 10_000
MOST_TENANTS = 500


class AlreadyDecided(Conflict):
    """Somebody has decided of this dead run."""

    code = "already_decided"


class NotDead(Conflict):
    """The run is not dead: there is nothing to decide."""

    code = "run_not_dead"


class Group(NamedTuple):
    tenant_id: int
    fingerprint: str
    size: int
    first_at: datetime
    last_at: datetime
    newest: UUID
    error_class: str
    error_type: str
    error_line: str
    jobs: list[UUID]

    @property
    def more(self) -> bool:
        return self.size >= MOST_COUNTED


@dataclass(frozen=True)
class Redriven:
    # New run by dead run.
    runs: dict[UUID, Run]
    refused: dict[UUID, Refused]


def groups(tenants: Sequence[int] | None, fingerprint: str | None = None) -> list[Group]:
    """Of these tenants, or of all; the latest death first."""
    with connection.cursor() as cursor:
        if tenants is None:
            cursor.execute(SQL["tenants_with_letters"], {"most": MOST_TENANTS})
            tenants = [tenant for (tenant,) in cursor.fetchall()]
        values = {
            "tenants": list(tenants),
            "fingerprint": fingerprint,
            "most": MOST_GROUPS,
            "most_counted": MOST_COUNTED,
        }
        cursor.execute(SQL["groups"], values)
        return [Group(*row) for row in cursor.fetchall()]


def read_input(tenant: Tenant, given: object) -> Json | None:
    if given is None:
        return None
    checked = expect_object(given, "input")
    refuse_large(checked, "input")
    check_input(tenant, checked)
    return checked


@transaction.atomic
def redrive(
    tenant: Tenant,
    ids: Sequence[UUID],
    given: object = None,
    *,
    reason: str = "",
    of: Redrive | None = None,
) -> Redriven:
    """Each of these dead runs once more, with another input if one is given; those that cannot go are named."""
    if len(ids) > MOST_AT_ONCE:
        raise refused(
            "runs", f"{len(ids)} runs are too many", f"at most {MOST_AT_ONCE}; or redrive the group"
        )
    given = read_input(tenant, given)
    asked, refusals = _lock_jobs(tenant, ids)
    letters, now = _lock_letters(tenant, ids), database_now()
    runs: dict[UUID, Run] = {}
    for identity in dict.fromkeys(ids):
        try:
            letter = _undecided(letters, identity)
            if letter.job_id in refusals:
                raise refusals[letter.job_id]
            runs[identity] = _run_again(letter.run, asked[letter.job_id], given, reason)
        except Refused as refusal:
            refusals[identity] = refusal
        else:
            _decide(letter, Decision.REDRIVEN, now, reason, runs[identity].pk, of)
    refused_ids = [identity for identity in ids if identity in refusals]
    if of is not None and refused_ids:
        # They stay open; the mark says that this redrive has tried.
        DeadLetter.objects.filter(pk__in=refused_ids, decision=Decision.OPEN).update(redrive=of)
    return Redriven(runs, {identity: refusals[identity] for identity in refused_ids})


@transaction.atomic
def dismiss(tenant: Tenant, ids: Sequence[UUID], note: str) -> Redriven:
    """Nothing is run for them; they leave the desk, with a note of why."""
    if len(ids) > MOST_AT_ONCE:
        raise refused(
            "runs", f"{len(ids)} runs are too many", f"at most {MOST_AT_ONCE}; or dismiss the group"
        )
    letters, now = _lock_letters(tenant, ids), database_now()
    refusals: dict[UUID, Refused] = {}
    dismissed: dict[UUID, Run] = {}
    for identity in dict.fromkeys(ids):
        try:
            letter = _undecided(letters, identity)
        except Refused as refusal:
            refusals[identity] = refusal
        else:
            _decide(letter, Decision.DISMISSED, now, note)
            dismissed[identity] = letter.run
    record_each(Action.RUN_DISMISSED, dismissed.values(), tenant_id=tenant.pk, reason=note)
    return Redriven(dismissed, refusals)


@transaction.atomic
def dismiss_group(tenant: Tenant, fingerprint: str, note: str) -> int:
    """Of what has died by now, MOST_DISMISSED at a time. Returns how many."""
    values: dict[str, Any] = {
        "tenant": tenant.pk,
        "fingerprint": fingerprint,
        "now": database_now(),
        "by": current_actor().name[:200],
        "note": note,
        "most": MOST_DISMISSED,
    }
    with connection.cursor() as cursor:
        cursor.execute(SQL["dismiss_group"], values)
        dismissed = [Run(pk=identity) for (identity,) in cursor.fetchall()]
    if not dismissed:
        raise Missing(f"there is no open group {fingerprint[:40]}")
    record_each(Action.RUN_DISMISSED, dismissed, tenant_id=tenant.pk, reason=note)
    return len(dismissed)


def _lock_jobs(tenant: Tenant, ids: Sequence[UUID]) -> tuple[dict[UUID, dict[str, Any]], dict[UUID, Refused]]:
    """Jobs come before all else, in the order everybody locks them; one that is gone or cancelled runs nothing."""
    found = DeadLetter.objects.filter(tenant=tenant, pk__in=ids).values_list("job_id", flat=True).distinct()
    asked: dict[UUID, dict[str, Any]] = {}
    refusals: dict[UUID, Refused] = {}
    for job in sorted(found):
        try:
            asked[job] = services.lock_job(job)
        except Refused as refusal:
            refusals[job] = refusal
    return asked, refusals


def _lock_letters(tenant: Tenant, ids: Sequence[UUID]) -> dict[UUID, DeadLetter]:
    letters = DeadLetter.objects.select_for_update(of=("self",)).filter(tenant=tenant, pk__in=ids)
    found = {letter.pk: letter for letter in letters.order_by("pk")}
    runs = Run.objects.select_related("job").in_bulk(list(found))
    for identity, run in runs.items():
        found[identity].run = run
    return {identity: letter for identity, letter in found.items() if identity in runs}


def _undecided(letters: Mapping[UUID, DeadLetter], identity: UUID) -> DeadLetter:
    letter = letters.get(identity)
    if letter is None:
        raise NotDead(
            f"there is no dead run {identity}", field="runs", hint="its id is in the list of the group"
        )
    if letter.decision == Decision.REDRIVEN:
        raise AlreadyDecided(
            f"{letter.decided_by or 'somebody'} has redriven it as {letter.redriven_as}",
            field="runs",
            hint="look at that run; POST …/runs/{id}/retry makes another all the same",
            link=f"/api/v1/runs/{letter.redriven_as}",
        )
    if letter.decision == Decision.DISMISSED:
        raise AlreadyDecided(
            f"{letter.decided_by or 'somebody'} has dismissed it: {letter.note or 'without a note'}",
            field="runs",
            hint="POST …/runs/{id}/retry runs it all the same",
        )
    return letter


def _run_again(dead: Run, asked: dict[str, Any], given: Json | None, reason: str) -> Run:
    again = services.insert_again(dead, asked, Trigger.REDRIVE, dead.input if given is None else given)
    after = {**services.facts(again), "retry_of": str(dead.pk)}
    record(Action.RUN_REDRIVEN, again, tenant_id=dead.tenant_id, after=after, reason=reason)
    return again


def _decide(
    letter: DeadLetter,
    decision: Decision,
    now: datetime,
    note: str,
    redriven_as: UUID | None = None,
    of: Redrive | None = None,
) -> None:
    """The letter is locked and open; the database refuses a second decision all the same."""
    letter.decision, letter.decided_at, letter.note = decision.value, now, note
    letter.decided_by = (of.requested_by if of else current_actor().name)[:200]
    letter.redriven_as, letter.redrive = redriven_as, of
    letter.save(update_fields=["decision", "decided_at", "note", "decided_by", "redriven_as", "redrive"])


def jobs_of(found: Sequence[Group]) -> dict[UUID, Job]:
    return Job.objects.in_bulk({job for group in found for job in group.jobs})


def open_letters(tenants: Sequence[int] | None) -> int:
    """Up to MOST_COUNTED: for whoever wants to know whether there is anything to decide."""
    letters = DeadLetter.objects.filter(decision=Decision.OPEN)
    if tenants is not None:
        letters = letters.filter(tenant__in=tenants)
    return letters[:MOST_COUNTED].count()


def letter_of(run: Run) -> DeadLetter | None:
    return DeadLetter.objects.filter(pk=run.pk).first() if run.state == FinalState.DEAD else None
