"""Show and close the circuit breaker of a job. Reports and recovery move it by themselves.

closed -- so many failed attempts in a row --> open -- the cool-down is over, a run waits --> half open: it is the probe
half open -- the probe succeeds --> closed, and what was held goes; -- it fails --> open for another cool-down
A probe that ends without a word on the target (cancelled, or its input was wrong) is followed by another.
"""

from django.db import transaction
from django.db.models import QuerySet

from auditlog.actions import Action
from auditlog.record import record
from jobs.clock import database_now
from jobs.errors import Conflict
from jobs.models import Job
from jobs.validation.checks import Json
from jobs.validation.instants import as_text
from jobs.validation.rows import first_or_missing
from runs.models import Breaker, BreakerState, JobGate, LiveRun
from runs.reasons import Reason
from runs.sql import django_session
from runs.transitions import release_broken
from scheduler_project.sdk.ledger.postgres import MAX_RELEASED


class BreakerIsClosed(Conflict):
    """The breaker of the job is closed: its runs go."""

    code = "breaker_is_closed"


def not_closed() -> QuerySet[Breaker]:
    """Return breakers that hold the runs of their jobs, or let one of them try."""
    return Breaker.objects.exclude(state=BreakerState.CLOSED)


@transaction.atomic
def close_breaker(job: Job, reason: str = "") -> Breaker:
    """Close it on behalf of a person who knows that the target works again. Its runs go at once."""
    JobGate.objects.select_for_update().filter(job=job).first()
    breaker = first_or_missing(Breaker.objects.filter(job=job), "the job has no breaker")
    if breaker.state == BreakerState.CLOSED:
        raise BreakerIsClosed(field="state", hint="there is nothing to close")
    before = audit_snapshot(breaker)
    breaker.state, breaker.failures, breaker.changed_at = BreakerState.CLOSED, 0, database_now()
    breaker.opened_at = breaker.probe_at = breaker.probe = None
    breaker.save(update_fields=["state", "failures", "opened_at", "probe_at", "probe", "changed_at"])
    release_broken(django_session(), [job.pk], MAX_RELEASED)
    breaker.refresh_from_db()
    record(Action.BREAKER_CLOSED, job, before=before, after=audit_snapshot(breaker), reason=reason)
    return breaker


def audit_snapshot(breaker: Breaker) -> Json:
    return {
        "state": breaker.state,
        "failures": breaker.failures,
        "opened_at": breaker.opened_at and as_text(breaker.opened_at),
        "probe_at": breaker.probe_at and as_text(breaker.probe_at),
        "probe": breaker.probe and str(breaker.probe),
    }


def held_by(job: Job) -> int:
    return LiveRun.objects.filter(job=job, state="blocked", reason=Reason.BREAKER).count()


def describe(breaker: Breaker) -> str:
    """Return what holds the job's runs back. Empty: nothing does."""
    if breaker.state == BreakerState.CLOSED or breaker.opened_at is None:
        return ""
    failures = "a failure" if breaker.limit == 1 else f"{breaker.limit} failures in a row"
    since = f"its breaker opened at {as_text(breaker.opened_at)} after {failures}"
    if breaker.state == BreakerState.HALF_OPEN:
        return f"{since}; the run {breaker.probe} tries whether it works again, the others wait for it"
    assert breaker.probe_at is not None  # noqa: S101 - the database makes sure
    return f"{since}; its runs are held, and at {as_text(breaker.probe_at)} one may try again"
