"""Decide on dead runs, which are grouped by error: run them again, or dismiss them.

A decision is made once, by a guarded write under the dead letter's lock. Of two people who redrive the same run the
second gets what the first has done as the answer. The dead run never changes: a redrive is a new run that points to it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record, record_each
from jobs.clock import database_now
from jobs.errors import Conflict, DomainError, InvalidInput, Missing
from jobs.models import Job, Tenant
from jobs.spec.targets import check_input_of_any_kind
from jobs.validation.checks import Json, invalid
from runs import history
from runs.models import DeadLetter, DeadLetterDecision, Redrive, Run
from runs.services import runs as services
from runs.sql import fetch
from runs.states import FinalState, Trigger

MAX_GROUPS = 200
# A group with more says so: to count them all would take longer than anybody waits.
MAX_COUNTED = 10_000
MAX_AT_ONCE = 100
MAX_DISMISSED = 10_000
MAX_TENANTS = 500


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
        return self.size >= MAX_COUNTED


class Redriven(NamedTuple):
    # New run by dead run.
    runs: dict[UUID, Run]
    refused: dict[UUID, DomainError]


def groups(tenants: Sequence[int] | None, fingerprint: str | None = None) -> list[Group]:
    """Return the groups of these tenants, or of all, the latest death first."""
    if tenants is None:
        tenants = [row["value"] for row in fetch("tenants_with_dead_letters", most=MAX_TENANTS)]
    found = fetch(
        "groups", tenants=list(tenants), fingerprint=fingerprint, most=MAX_GROUPS, most_counted=MAX_COUNTED
    )
    return [Group(*row.values()) for row in found]


def fingerprints_of(tenant: Tenant, job: UUID) -> set[str]:
    """Return the groups that a job has open dead letters in, of its latest ones up to a bound."""
    letters = DeadLetter.objects.filter(tenant=tenant, job=job, decision=DeadLetterDecision.OPEN)
    latest = letters.order_by("-died_at", "-run_id").values_list("fingerprint", flat=True)
    return set(latest[:MAX_COUNTED])


@transaction.atomic
def redrive(
    tenant: Tenant, ids: Sequence[UUID], given: object = None, *, reason: str = "", of: Redrive | None = None
) -> Redriven:
    """Run each of these dead runs again, with another input if one is given; name those that cannot go.

    An input that one of the targets does not take refuses the request; of a group it refuses that run alone.
    """
    if len(ids) > MAX_AT_ONCE:
        raise invalid("runs", f"{len(ids)} runs are too many", f"at most {MAX_AT_ONCE}; or redrive the group")
    given = services.read_input(tenant, given)
    locked, refusals = _lock_jobs(tenant, ids)
    letters, now = _lock_dead_letters(tenant, ids), database_now()
    runs: dict[UUID, Run] = {}
    for identity in dict.fromkeys(ids):
        try:
            letter = _undecided(letters, identity)
            if letter.job_id in refusals:
                raise refusals[letter.job_id]
            runs[identity] = _run_again(letter.run, locked[letter.job_id], given, reason)
        except DomainError as refusal:
            if of is None and isinstance(refusal, InvalidInput):
                raise
            refusals[identity] = refusal
        else:
            _decide(letter, DeadLetterDecision.REDRIVEN, now, reason, runs[identity].pk, of)
    if given is not None and not runs:
        check_input_of_any_kind(given)
    refused_ids = [identity for identity in ids if identity in refusals]
    if of is not None and refused_ids:
        # They stay open; the mark says that this redrive has tried.
        DeadLetter.objects.filter(pk__in=refused_ids, decision=DeadLetterDecision.OPEN).update(redrive=of)
    return Redriven(runs, {identity: refusals[identity] for identity in refused_ids})


@transaction.atomic
def dismiss(tenant: Tenant, ids: Sequence[UUID], reason: str) -> Redriven:
    """Close dead letters without running their runs again, for a reason."""
    if len(ids) > MAX_AT_ONCE:
        raise invalid("runs", f"{len(ids)} runs are too many", f"at most {MAX_AT_ONCE}; or dismiss the group")
    letters, now = _lock_dead_letters(tenant, ids), database_now()
    refusals: dict[UUID, DomainError] = {}
    dismissed: dict[UUID, Run] = {}
    for identity in dict.fromkeys(ids):
        try:
            letter = _undecided(letters, identity)
        except DomainError as refusal:
            refusals[identity] = refusal
        else:
            _decide(letter, DeadLetterDecision.DISMISSED, now, reason)
            dismissed[identity] = letter.run
    record_each(Action.RUN_DISMISSED, dismissed.values(), tenant_id=tenant.pk, reason=reason)
    return Redriven(dismissed, refusals)


@transaction.atomic
def dismiss_group(tenant: Tenant, fingerprint: str, reason: str) -> int:
    """Dismiss what has died by now, at most MAX_DISMISSED runs; return how many."""
    group = {"tenant": tenant.pk, "fingerprint": fingerprint, "most": MAX_DISMISSED}
    by, now = current_actor().name[:200], database_now()
    found = fetch("dismiss_group", **group, by=by, now=now, reason=reason)
    dismissed = [Run(pk=row["run_id"]) for row in found]
    if not dismissed:
        raise Missing(f"there is no open group {fingerprint[:40]}")
    record_each(Action.RUN_DISMISSED, dismissed, tenant_id=tenant.pk, reason=reason)
    return len(dismissed)


def _lock_jobs(
    tenant: Tenant, ids: Sequence[UUID]
) -> tuple[dict[UUID, dict[str, Any]], dict[UUID, DomainError]]:
    """Lock the jobs first, in the order of their ids as everywhere. One that is gone or cancelled runs nothing."""
    found = DeadLetter.objects.filter(tenant=tenant, pk__in=ids).values_list("job_id", flat=True).distinct()
    locked: dict[UUID, dict[str, Any]] = {}
    refusals: dict[UUID, DomainError] = {}
    for job in sorted(found):
        try:
            locked[job] = services.lock_job(job)
        except DomainError as refusal:
            refusals[job] = refusal
    return locked, refusals


def _lock_dead_letters(tenant: Tenant, ids: Sequence[UUID]) -> dict[UUID, DeadLetter]:
    letters = DeadLetter.objects.select_for_update(of=("self",)).filter(tenant=tenant, pk__in=ids)
    found = {letter.pk: letter for letter in letters.order_by("pk")}
    runs = history.runs().in_bulk(list(found))
    for identity, run in runs.items():
        found[identity].run = run
    return {identity: letter for identity, letter in found.items() if identity in runs}


def _undecided(letters: Mapping[UUID, DeadLetter], identity: UUID) -> DeadLetter:
    letter = letters.get(identity)
    if letter is None:
        hint = "its id is in the list of the group"
        raise NotDead(f"there is no dead run {identity}", field="runs", hint=hint)
    if letter.decision == DeadLetterDecision.REDRIVEN:
        wrong = f"{letter.decided_by or 'somebody'} has redriven it as {letter.redriven_as}"
        hint = "look at that run; POST …/runs/{id}/retry makes another all the same"
        raise AlreadyDecided(wrong, field="runs", hint=hint, link=f"/api/v1/runs/{letter.redriven_as}")
    if letter.decision == DeadLetterDecision.DISMISSED:
        wrong = f"{letter.decided_by or 'somebody'} has dismissed it: {letter.reason or 'without a reason'}"
        hint = "POST …/runs/{id}/retry runs it all the same"
        raise AlreadyDecided(wrong, field="runs", hint=hint)
    return letter


def _run_again(dead: Run, locked: dict[str, Any], given: Json | None, reason: str) -> Run:
    given = dead.input if given is None else given
    again = services.insert_run(dead.job, locked, Trigger.REDRIVE, given, finished=dead, reason=reason)
    after = {**services.audit_snapshot(again), "retry_of": str(dead.pk)}
    record(Action.RUN_REDRIVEN, again, after=after, reason=reason)
    return again


def _decide(
    letter: DeadLetter,
    decision: DeadLetterDecision,
    now: datetime,
    reason: str,
    redriven_as: UUID | None = None,
    of: Redrive | None = None,
) -> None:
    """Write the decision. The dead letter is locked and open; the database refuses a second decision all the same."""
    letter.decision, letter.decided_at, letter.reason = decision.value, now, reason
    letter.decided_by = (of.requested_by if of else current_actor().name)[:200]
    letter.redriven_as, letter.redrive = redriven_as, of
    letter.save(update_fields=["decision", "decided_at", "reason", "decided_by", "redriven_as", "redrive"])


def jobs_of(found: Sequence[Group]) -> dict[UUID, Job]:
    return Job.objects.in_bulk({job for group in found for job in group.jobs})


def count_open(tenants: Sequence[int] | None) -> int:
    """Count open dead letters up to MAX_COUNTED: enough to see whether there is anything to decide."""
    letters = DeadLetter.objects.filter(decision=DeadLetterDecision.OPEN)
    if tenants is not None:
        letters = letters.filter(tenant__in=tenants)
    return letters[:MAX_COUNTED].count()


def dead_letter_of(run: Run) -> DeadLetter | None:
    return DeadLetter.objects.filter(pk=run.pk).first() if run.state == FinalState.DEAD else None
