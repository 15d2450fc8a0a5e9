"""Every change of a run by a person or a key: one transaction each, with its audit entry."""

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record, record_each
from jobs.database_clock import database_now
from jobs.input_checks import expect_object, refuse_large
from jobs.models import Job, JobStatus
from jobs.refusals import Conflict, JobNotRunnable, Missing, RunIsFinal, RunIsUnfinished
from jobs.secret_references import check_input
from runs import requests
from runs.births import rank
from runs.models import DeadLetter, Decision, Run
from runs.states import LiveState, Trigger
from runs.transitions import RETRY_BUDGET
from scheduler_project.sdk.ids import created_run_id


class NotPermitted(Conflict):
    """The pool does not run this for the tenant any more."""

    code = "not_permitted"


class RunIdTaken(Conflict):
    """Another run was asked for with the same request id in the same millisecond."""

    code = "run_id_taken"


@transaction.atomic
def run_now(job: Job, given: object = None, *, request: bytes = b"", reason: str = "") -> Run:
    """One more run of the present version. `request` tells two requests apart that arrive in one millisecond."""
    if given is not None:
        refuse_large(expect_object(given, "input"), "input")
        check_input(job.tenant, expect_object(given, "input"))
    asked = lock_job(job.pk)
    run = _insert(
        job,
        asked,
        version=asked["version"],
        pool_id=asked["pool_id"],
        trigger=Trigger.MANUAL,
        given=given,
        request=request,
    )
    record(Action.RUN_REQUESTED, run, tenant_id=job.tenant_id, after=facts(run), reason=reason)
    return run


@transaction.atomic
def cancel_run(run: Run, reason: str = "") -> Run:
    """Ends it at once if no worker has it; otherwise its worker is told. Asking again changes nothing."""
    live = requests.lock_run(run.pk, run.job_id)
    if live is None:
        raise _final(run)
    if live["cancel_requested_at"] is not None:
        return _read(run.pk)
    stated = reason or "cancelled on request"
    ended = requests.cancel([run.pk], stated).ended
    if ended:
        requests.let_next_go(run.job_id)
    action = Action.RUN_CANCELLED if ended else Action.RUN_CANCEL_REQUESTED
    before, after = {"state": live["state"]}, {"state": "cancelled" if ended else live["state"]}
    record(action, run, tenant_id=run.tenant_id, before=before, after=after, reason=reason)
    return _read(run.pk)


@transaction.atomic
def retry_run(run: Run, *, request: bytes = b"", reason: str = "") -> Run:
    """A finished run stays as it is: the retry is a new run of the same version, input and planned time.

    Only a run that waits for its back-off is moved itself: it goes now.
    """
    asked = lock_job(run.job_id)
    live = requests.lock_run(run.pk, run.job_id)
    if live is not None:
        return _hurry(run, live, reason)
    finished = _read(run.pk)
    retry = insert_again(finished, asked, Trigger.RETRY, finished.input, request)
    _leave_desk(finished, retry, reason)
    after = {**facts(retry), "retry_of": str(finished.pk)}
    record(Action.RUN_RETRIED, retry, tenant_id=run.tenant_id, after=after, reason=reason)
    return retry


def cancel_unfinished(job: Job, reason: str) -> int:
    """All of a job's, in the caller's transaction. Returns how many ended or were asked to."""
    ids = [live["id"] for live in requests.lock_runs_of(job.pk)]
    done = requests.cancel(ids, reason)
    for action, changed in ((Action.RUN_CANCELLED, done.ended), (Action.RUN_CANCEL_REQUESTED, done.asked)):
        record_each(action, [Run(pk=run_id) for run_id in changed], tenant_id=job.tenant_id, reason=reason)
    return len(ids)


def _hurry(run: Run, live: dict[str, Any], reason: str) -> Run:
    state = live["state"]
    if state != LiveState.DELAYED and live["reason"] != RETRY_BUDGET:
        raise RunIsUnfinished(
            f"the run is {state}", field="state", hint="cancel it first, or wait for its outcome"
        )
    now = database_now()
    requests.hurry(run.pk, now, rank(now, run.priority))
    record(
        Action.RUN_HURRIED,
        run,
        tenant_id=run.tenant_id,
        before={"state": state},
        after={"state": LiveState.READY.value},
        reason=reason,
    )
    return _read(run.pk)


def insert_again(
    finished: Run, asked: dict[str, Any], trigger: Trigger, given: object, request: bytes = b""
) -> Run:
    """A new run of the same version and planned time that points to the finished one. Its job is locked."""
    return _insert(
        finished.job,
        asked,
        version=finished.version,
        pool_id=finished.pool_id,
        trigger=trigger,
        given=given,
        request=request,
        planned_at=finished.planned_at,
        retry_of=finished.pk,
    )


def _leave_desk(finished: Run, retry: Run, reason: str) -> None:
    """A dead run that is tried again by hand needs no other decision."""
    DeadLetter.objects.filter(pk=finished.pk, decision=Decision.OPEN).update(
        decision=Decision.REDRIVEN,
        decided_at=retry.created_at,
        decided_by=current_actor().name[:200],
        note=reason,
        redriven_as=retry.pk,
    )


def lock_job(job_id: UUID) -> dict[str, Any]:
    asked = requests.job_for_run(job_id)
    if asked is None or not asked["present"]:
        raise JobNotRunnable("the job was deleted", field="job", hint="create it again")
    if asked["status"] == JobStatus.CANCELLED:
        raise JobNotRunnable("the job is cancelled", field="status", hint="create a new job")
    return asked


def _insert(
    job: Job,
    asked: dict[str, Any],
    *,
    version: int,
    pool_id: int,
    trigger: Trigger,
    given: object,
    request: bytes,
    planned_at: datetime | None = None,
    retry_of: UUID | None = None,
) -> Run:
    spec = requests.spec_for_run(job.pk, version, job.tenant_id, pool_id)
    _check_permitted(spec)
    now = database_now()
    identity = created_run_id(now, request or uuid4().bytes)
    values = {
        "id": identity,
        "tenant_id": job.tenant_id,
        "job_id": job.pk,
        "version": version,
        "pool_id": pool_id,
        "trigger": trigger.value,
        "planned_at": planned_at or now,
        "now": now,
        "priority": asked["priority"],
        "rank": rank(now, asked["priority"]),
        "input": given,
        "retry_of": retry_of,
        "requested_by": current_actor().name[:200],
        "target_key": spec["target_key"],
        "gated": spec["gated"],
    }
    if not requests.insert_run(values):
        raise RunIdTaken
    return _read(identity)


def _check_permitted(spec: dict[str, Any]) -> None:
    """The pool may have been withdrawn, or its exports, since the job was written down."""
    if not spec["allowed"]:
        raise NotPermitted(
            f"the pool {spec['pool']} is not open to you any more",
            field="pool",
            hint="move the job to another pool, or ask an operator to open this one again",
        )
    if not spec["exported"]:
        raise NotPermitted(
            f"the pool {spec['pool']} does not export {spec['target_key']} any more",
            field="target",
            hint="change the job's target or pool, or ask an operator to export it again",
        )


def _final(run: Run) -> Exception:
    finished = Run.objects.filter(pk=run.pk).first()
    if finished is None:
        return Missing()
    return RunIsFinal(
        f"the run has ended: {finished.state}", field="state", hint="a finished run never changes"
    )


def _read(run_id: UUID) -> Run:
    return Run.objects.select_related("live", "job").get(pk=run_id)


def facts(run: Run) -> dict[str, Any]:
    return {
        "job": str(run.job_id),
        "version": run.version,
        "trigger": run.trigger,
        "planned_at": run.planned_at.isoformat(),
        "input": run.input,
    }
