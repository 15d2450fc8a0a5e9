"""The circuit breaker of a job, as people see it and close it. What moves it by itself is in ledger.sql and the sweep.

closed -- so many failed attempts in a row --> open -- the cool-down is over, a run waits --> half open: it is the probe
half open -- the probe succeeds --> closed, and what was held goes; -- it fails --> open for another cool-down
A probe that ends without a word on the target (cancelled, or its input was wrong) is followed by another.
"""

from django.db import connection, transaction
from django.db.models import QuerySet

from auditlog.actions import Action
from auditlog.record import record
from jobs.database_clock import database_now
from jobs.input_checks import Json
from jobs.instants import as_text
from jobs.models import Job
from jobs.refusals import Conflict, Missing
from runs.models import Breaker, BreakerState, JobGate, LiveRun
from runs.transitions import BREAKER, release_broken
from scheduler_project.sdk.postgres import MOST_RELEASED


class BreakerIsClosed(Conflict):
    """The breaker of the job is closed: its runs go."""

    code = "breaker_is_closed"


def breaker_of(job: Job) -> Breaker | None:
    return Breaker.objects.filter(job=job).first()


def not_closed() -> QuerySet[Breaker]:
    """Those that hold the runs of their jobs, or let one of them try."""
    return Breaker.objects.exclude(state=BreakerState.CLOSED)


@transaction.atomic
def close_breaker(job: Job, reason: str = "") -> Breaker:
    """By a person, who knows that it works again. Its runs go at once, the first of them here."""
    JobGate.objects.select_for_update().filter(job=job).first()
    breaker = breaker_of(job)
    if breaker is None:
        raise Missing("the job has no breaker")
    if breaker.state == BreakerState.CLOSED:
        raise BreakerIsClosed(field="state", hint="there is nothing to close")
    before = facts(breaker)
    Breaker.objects.filter(job=job).update(
        state=BreakerState.CLOSED,
        failures=0,
        opened_at=None,
        probe_at=None,
        probe=None,
        changed_at=database_now(),
    )
    connection.ensure_connection()
    release_broken(connection.connection, [job.pk], MOST_RELEASED)
    breaker.refresh_from_db()
    after = facts(breaker)
    record(Action.BREAKER_CLOSED, job, tenant_id=job.tenant_id, before=before, after=after, reason=reason)
    return breaker


def facts(breaker: Breaker) -> Json:
    return {
        "state": breaker.state,
        "failures": breaker.failures,
        "opened_at": breaker.opened_at and as_text(breaker.opened_at),
        "probe_at": breaker.probe_at and as_text(breaker.probe_at),
        "probe": breaker.probe and str(breaker.probe),
    }


def held_by(job: Job) -> int:
    return LiveRun.objects.filter(job=job, state="blocked", reason=BREAKER).count()


def in_words(breaker: Breaker) -> str:
    """What holds the job's runs back; empty: nothing does."""
    if breaker.state == BreakerState.CLOSED or breaker.opened_at is None:
        return ""
    since = f"its breaker opened at {as_text(breaker.opened_at)} after {times(breaker.limit)}"
    if breaker.state == BreakerState.HALF_OPEN:
        return f"{since}; the run {breaker.probe} tries whether it works again, the others wait for it"
    assert breaker.probe_at is not None  # noqa: S101 - the database makes sure
    return f"{since}; its runs are held, and at {as_text(breaker.probe_at)} one may try again"


def times(failures: int) -> str:
    return "a failure" if failures == 1 else f"{failures} failures in a row"
