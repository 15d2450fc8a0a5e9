"""Change runs on behalf of a person or a key: one transaction each, with its audit entry."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from psycopg.types.json import Jsonb

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record, record_each
from jobs.clock import database_now
from jobs.errors import Conflict, JobNotRunnable, Missing, RunIsFinal, RunIsUnfinished
from jobs.models import Job, JobStatus, Tenant
from jobs.secrets.references import check_references
from jobs.spec import targets
from jobs.validation.checks import Json, expect_object, invalid, refuse_large
from jobs.validation.instants import as_text
from runs import history
from runs.events import RunsCancelled, RunsCreated, emit_on_commit
from runs.models import DeadLetter, DeadLetterDecision, Run
from runs.reasons import Reason
from runs.scheduler.trigger.new_runs import rank
from runs.sql import django_session, fetch
from runs.states import LiveState, Trigger
from runs.transitions import Cancelled, cancel_live_runs, release_next
from scheduler_project.sdk.ids import created_run_id

# An instant that came this short a time ago is now: the request took a while, or its sender's clock is behind.
LATE = timedelta(minutes=1)


class NotPermitted(Conflict):
    """The pool does not run this for the tenant any more."""

    code = "not_permitted"


class RunIdTaken(Conflict):
    """Another run was asked for with the same request id in the same millisecond."""

    code = "run_id_taken"


def read_input(tenant: Tenant, given: object) -> Json | None:
    """Read the input of a run that is requested. Whether its target takes it is checked with the job locked."""
    if given is None:
        return None
    checked = expect_object(given, "input")
    refuse_large(checked, "input")
    check_references(tenant, checked, "input")
    return checked


@transaction.atomic
def run_now(
    job: Job,
    given: object = None,
    *,
    at: datetime | None = None,
    request: bytes = b"",
    reason: str = "",
) -> Run:
    """Make one more run of the present version; it waits until `at`, if that is still to come.

    `request` distinguishes requests of one millisecond.
    """
    given = read_input(job.tenant, given)
    if at is not None:
        _check_at(at, database_now())
    run = insert_run(job, lock_job(job.pk), Trigger.MANUAL, given, request, at=at, reason=reason)
    record(Action.RUN_REQUESTED, run, after=audit_snapshot(run), reason=reason)
    return run


@transaction.atomic
def cancel_run(run: Run, reason: str = "") -> Run:
    """End it at once if no worker has it; otherwise request it of the worker. Cancelling again changes nothing."""
    live = _lock_run(run)
    if live is None:
        finished = history.find(run.pk)
        if finished is None:
            raise Missing
        hint = "a finished run never changes"
        raise RunIsFinal(f"the run has ended: {finished.state}", field="state", hint=hint)
    if live["cancel_requested_at"] is not None:
        return _read(run.pk)
    ended = _cancel([run.pk], Reason.CANCELLED.with_words(reason)).ended
    if ended:
        # The gate is ours: what waited for this run goes now.
        release_next(django_session(), [run.job_id])
    action = Action.RUN_CANCELLED if ended else Action.RUN_CANCEL_REQUESTED
    before, after = {"state": live["state"]}, {"state": "cancelled" if ended else live["state"]}
    record(action, run, before=before, after=after, reason=reason)
    return _read(run.pk)


@transaction.atomic
def retry_run(run: Run, *, request: bytes = b"", reason: str = "") -> Run:
    """Make a new run of the same version, input and planned time; the finished run stays as it is.

    Only a run that waits for its back-off is moved itself: it goes now.
    """
    locked = lock_job(run.job_id)
    live = _lock_run(run)
    if live is not None:
        return _end_backoff(run, live, reason)
    finished = _read(run.pk)
    retry = insert_run(
        finished.job, locked, Trigger.RETRY, finished.input, request, finished=finished, reason=reason
    )
    _close_dead_letter(finished, retry, reason)
    after = {**audit_snapshot(retry), "retry_of": str(finished.pk)}
    record(Action.RUN_RETRIED, retry, after=after, reason=reason)
    return retry


def cancel_unfinished(job: Job, reason: str) -> int:
    """Cancel all runs of a job, in the caller's transaction; return how many ended or were requested to."""
    ids = [live["id"] for live in lock_runs_of(job.pk)]
    done = _cancel(ids, Reason.JOB_ENDED.with_words(reason))
    changes = {Action.RUN_CANCELLED: done.ended, Action.RUN_CANCEL_REQUESTED: done.requested}
    for action, changed in changes.items():
        record_each(action, [Run(pk=run_id) for run_id in changed], tenant_id=job.tenant_id, reason=reason)
    return len(ids)


def _cancel(ids: Sequence[UUID], reason: str) -> Cancelled:
    done = cancel_live_runs(django_session(), ids, reason)
    emit_on_commit(RunsCancelled(ended=done.ended, requested=done.requested, reason=reason))
    return done


def _end_backoff(run: Run, live: dict[str, Any], reason: str) -> Run:
    state = live["state"]
    if state != LiveState.DELAYED and live["reason"] != Reason.RETRY_BUDGET:
        hint = "cancel it first, or wait for its outcome"
        raise RunIsUnfinished(f"the run is {state}", field="state", hint=hint)
    now = database_now()
    fetch("end_backoff", id=run.pk, now=now, rank=rank(now, run.priority))
    before, after = {"state": state}, {"state": LiveState.READY.value}
    record(Action.RUN_RETRIED, run, before=before, after=after, reason=reason)
    return _read(run.pk)


def _close_dead_letter(finished: Run, retry: Run, reason: str) -> None:
    """Close the dead letter of a run that is tried again by hand: it needs no other decision."""
    DeadLetter.objects.filter(pk=finished.pk, decision=DeadLetterDecision.OPEN).update(
        decision=DeadLetterDecision.REDRIVEN,
        decided_at=retry.created_at,
        decided_by=current_actor().name[:200],
        reason=reason,
        redriven_as=retry.pk,
    )


def lock_job(job_id: UUID) -> dict[str, Any]:
    found = fetch("job_for_run", job_id=job_id)
    if not found or not found[0]["present"]:
        raise JobNotRunnable("the job was deleted", field="job", hint="create it again")
    if found[0]["status"] == JobStatus.CANCELLED:
        raise JobNotRunnable("the job is cancelled", field="status", hint="create a new job")
    return found[0]


def lock_runs_of(job_id: UUID) -> list[dict[str, Any]]:
    """Lock the gate of a job, then its unfinished runs by id: the order in which everybody locks them."""
    fetch("lock_gate_of_job", job_id=job_id)
    return fetch("lock_live_runs_of_job", job_id=job_id)


def _lock_run(run: Run) -> dict[str, Any] | None:
    """Lock the gate of its job, then the run. None: it has its outcome."""
    fetch("lock_gate_of_job", job_id=run.job_id)
    return next(iter(fetch("lock_live_run", id=run.pk)), None)


def insert_run(
    job: Job,
    locked: Json,
    trigger: Trigger,
    given: Json | None,
    request: bytes = b"",
    finished: Run | None = None,
    at: datetime | None = None,
    reason: str = "",
) -> Run:
    """Make a run of a locked job, or of a finished run: of its version and planned time, and points to it."""
    now = database_now()
    later = at if at is not None and at > now else None
    goes_at = later or now
    values = {**locked, "job_id": job.pk, "tenant_id": job.tenant_id, "planned_at": goes_at, "retry_of": None}
    if finished is not None:
        values |= {"version": finished.version, "pool_id": finished.pool_id}
        values |= {"planned_at": finished.planned_at, "retry_of": finished.pk}
    [spec] = fetch("spec_for_run", **values)
    _check_permitted(spec)
    if given is not None:
        targets.check_input(given, json.loads(spec["target"]))
    identity = created_run_id(now, request or uuid4().bytes)
    values |= {
        **spec,
        "id": identity,
        "trigger": trigger.value,
        "now": now,
        "available_at": goes_at,
        "rank": rank(goes_at, locked["priority"]),
        "live_state": LiveState.DELAYED if later else LiveState.READY,
        "live_reason": Reason.REQUESTED_LATER if later else "",
        "wake_at": later,
        "input": None if given is None else Jsonb(given),
        "requested_by": current_actor().name[:200],
        "requested_reason": reason,
    }
    if not fetch("insert_requested_run", **values):
        raise RunIdTaken
    emit_on_commit(RunsCreated(trigger=trigger, runs=1, run_ids=[identity]))
    return _read(identity)


def _check_at(at: datetime, now: datetime) -> None:
    """Refuse an instant that has passed, or for which the run would wait in a partition that may be gone by then."""
    latest = now + timedelta(days=settings.HOT_PERIOD_DAYS - 3)
    if at < now - LATE:
        raise invalid("at", f"{as_text(at)} is in the past", f"it is now {as_text(now)}", "past")
    if at > latest:
        hint = f"up to {as_text(latest)}; beyond that, a one-time job"
        raise invalid("at", f"{as_text(at)} is too far ahead", hint, "too_far")


def _check_permitted(spec: dict[str, Any]) -> None:
    """Refuse a run whose pool or target was withdrawn since the job was saved."""
    if not spec["allowed"]:
        hint = "move the job to another pool, or ask an operator to open this one again"
        raise NotPermitted(f"the pool {spec['pool']} is not open to you any more", field="pool", hint=hint)
    if not spec["exported"]:
        wrong = f"the pool {spec['pool']} does not export {spec['target_key']} any more"
        hint = "change the job's target or pool, or ask an operator to export it again"
        raise NotPermitted(wrong, field="target", hint=hint)


def _read(run_id: UUID) -> Run:
    return history.runs().get(pk=run_id)


def audit_snapshot(run: Run) -> dict[str, Any]:
    return {
        "job": str(run.job_id),
        "version": run.version,
        "trigger": run.trigger,
        "planned_at": run.planned_at.isoformat(),
        "input": run.input,
    }
