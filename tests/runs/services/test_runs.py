"""What people ask of runs: one more, stop this one, again."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.errors import Conflict, InvalidInput, JobNotRunnable, RunIsFinal, RunIsUnfinished
from jobs.models import Job, Pool
from jobs.services.definition import delete_job, edit_job
from jobs.services.status import cancel_job, pause_job
from runs.models import LiveRun, Run
from runs.services.runs import NotPermitted, RunIdTaken, cancel_run, retry_run, run_now
from runs.states import FinalState, LiveState, Trigger
from scheduler_project.sdk.ids import created_run_id, milliseconds
from tests.support.factories import make_finished_run, make_pool, make_run, make_tenant, post_job

pytestmark = pytest.mark.django_db
UNCLAIMED = [
    LiveState.READY,
    LiveState.QUEUED,
    LiveState.DELAYED,
    LiveState.BLOCKED,
    LiveState.WAITING_CALLBACK,
]


def find(run: LiveRun) -> Run:
    return Run.objects.get(pk=run.pk)


def entries(run: Run) -> list[str]:
    found = AuditEntry.objects.filter(object_type="run", object_id=str(run.pk)).order_by("id")
    return list(found.values_list("action", flat=True))


def test_a_run_asked_for_is_ready_now() -> None:
    job = post_job(priority=700, max_concurrency=1)
    run = run_now(job, {"kwargs": {"date": "2026-11-18"}})
    live = LiveRun.objects.get(pk=run.pk)
    assert (run.trigger, run.version, run.state, run.priority) == (Trigger.MANUAL, 1, None, 700)
    assert run.input == live.input == {"kwargs": {"date": "2026-11-18"}}
    assert (live.state, live.target_key, live.gated) == ("ready", job.spec.target_key, True)
    assert milliseconds(run.planned_at) == run.pk.int >> 80
    assert run.planned_at <= database_now()
    assert live.rank == int(run.planned_at.timestamp() * 1000) - 700 * 300
    assert run.requested_by == "system" and entries(run) == ["run.requested"]


def test_two_runs_of_one_millisecond_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    job, instant = post_job(), database_now()
    monkeypatch.setattr("runs.services.runs.database_now", lambda: instant)
    assert run_now(job).pk != run_now(job).pk
    assert LiveRun.objects.filter(job=job).count() == 2


def test_a_taken_id_is_an_error_and_never_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    job, instant = post_job(), database_now()
    monkeypatch.setattr("runs.services.runs.database_now", lambda: instant)
    run = run_now(job, request=b"one")
    assert run.pk == created_run_id(instant, b"one")
    with pytest.raises(RunIdTaken):
        run_now(job, request=b"one")
    assert Run.objects.filter(job=job).count() == 1


@pytest.mark.parametrize("given", [5, "x", [1], {"big": "x" * 65536}])
def test_an_input_that_is_no_small_object_is_refused(given: object) -> None:
    job = post_job()
    with pytest.raises(InvalidInput) as refused:
        run_now(job, given)
    assert refused.value.field == "input" and not Run.objects.exists()


def test_a_paused_job_can_be_run_by_hand() -> None:
    job = post_job(schedule={"every": 60})
    pause_job(job)
    assert LiveRun.objects.filter(pk=run_now(job).pk).exists()


def test_a_cancelled_or_deleted_job_cannot_be_run() -> None:
    cancelled, deleted = post_job(), post_job()
    run = make_finished_run(cancelled)
    cancel_job(cancelled)
    delete_job(deleted)
    for job in (cancelled, deleted):
        with pytest.raises(JobNotRunnable):
            run_now(job)
    with pytest.raises(JobNotRunnable):
        retry_run(run)
    assert not LiveRun.objects.exists()


@pytest.mark.parametrize("state", UNCLAIMED)
def test_an_unclaimed_run_ends_at_once(state: LiveState) -> None:
    run = find(make_run(post_job(), state))
    cancelled = cancel_run(run, "not needed")
    assert (cancelled.state, cancelled.ended_from, cancelled.reason) == (
        "cancelled",
        state,
        "cancelled: not needed",
    )
    assert cancelled.finished_at is not None and not LiveRun.objects.filter(pk=run.pk).exists()
    assert entries(run) == ["run.cancelled"]


def test_a_running_run_is_asked_to_stop_and_the_first_to_ask_is_kept() -> None:
    run = find(make_run(post_job(), LiveState.RUNNING))
    assert cancel_run(run, "first").state is None
    live = LiveRun.objects.get(pk=run.pk)
    assert live.cancel_requested_at is not None and live.cancel_reason == "cancelled: first"
    cancel_run(run, "second")
    assert LiveRun.objects.get(pk=run.pk).cancel_reason == "cancelled: first"
    assert entries(run) == ["run.cancel_requested"]


@pytest.mark.parametrize("state", FinalState.values)
def test_a_finished_run_cannot_be_cancelled(state: str) -> None:
    run = make_finished_run(post_job(), FinalState(state))
    with pytest.raises(RunIsFinal):
        cancel_run(run)
    assert Run.objects.get(pk=run.pk).state == state and entries(run) == []


@pytest.mark.parametrize("state", FinalState.values)
def test_a_retry_is_a_new_run_of_the_same_version_input_and_time(state: str) -> None:
    job = post_job()
    run = make_finished_run(
        job, FinalState(state), input={"args": [1]}, planned_at=database_now() - timedelta(hours=3)
    )
    edit_job(job, {"target": {"kind": "command", "argv": ["later"]}, "priority": 10})
    retry = retry_run(run, reason="fixed upstream")
    live = LiveRun.objects.get(pk=retry.pk)
    assert (retry.retry_of, retry.version, retry.input) == (run.pk, 1, {"args": [1]})
    assert (retry.trigger, retry.planned_at, retry.priority) == (Trigger.RETRY, run.planned_at, 10)
    assert (live.state, live.target_key) == ("ready", "tests.succeeds")
    assert retry.pk.int >> 80 > milliseconds(run.planned_at)
    assert Run.objects.get(pk=run.pk).state == state
    assert entries(retry) == ["run.retried"]


def test_two_retries_are_two_runs() -> None:
    run = make_finished_run(post_job(), FinalState.DEAD)
    assert retry_run(run).pk != retry_run(run).pk


def test_a_run_in_back_off_is_moved_in_place() -> None:
    run = find(make_run(post_job(), LiveState.DELAYED, reason="transient"))
    assert retry_run(run).pk == run.pk
    live = LiveRun.objects.get(pk=run.pk)
    assert (live.state, live.wake_at, live.reason) == ("ready", None, "") and Run.objects.count() == 1
    assert live.rank == int(live.available_at.timestamp() * 1000) - run.priority * 300
    assert entries(run) == ["run.retried"]


@pytest.mark.parametrize("state", [LiveState.READY, LiveState.QUEUED, LiveState.RUNNING, LiveState.BLOCKED])
def test_an_unfinished_run_cannot_be_retried(state: LiveState) -> None:
    run = find(make_run(post_job(), state))
    with pytest.raises(RunIsUnfinished):
        retry_run(run)
    assert Run.objects.count() == 1 and LiveRun.objects.get(pk=run.pk).state == state


def test_without_an_entry_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no entry")

    job = post_job()
    ready, finished = find(make_run(job)), make_finished_run(job)
    monkeypatch.setattr("runs.services.runs.record", fail)
    changes: list[Callable[[], object]] = [
        lambda: run_now(job),
        lambda: cancel_run(ready),
        lambda: retry_run(finished),
    ]
    for change in changes:
        with pytest.raises(RuntimeError, match="no entry"):
            change()
    assert Run.objects.count() == 2 and LiveRun.objects.get().pk == ready.pk


def test_every_unfinished_run_has_one_live_row_and_every_finished_one_none() -> None:
    job = post_job(schedule={"every": 60})
    run = run_now(job)
    cancel_run(run)
    retry_run(Run.objects.get(pk=run.pk))
    make_run(job, LiveState.RUNNING)
    with pytest.raises(Conflict):
        cancel_run(run)
    delete_job(job)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM beatkeeper_run run FULL JOIN beatkeeper_live_run live USING (id)"
            " WHERE (run.state IS NULL) <> (live.id IS NOT NULL) OR run.id IS NULL"
        )
        assert cursor.fetchone() == (0,)


def test_cancelling_a_run_that_vanished_says_so() -> None:
    run = find(make_run(post_job()))
    assert isinstance(run.job, Job)
    LiveRun.objects.filter(pk=run.pk).delete()
    Run.objects.filter(pk=run.pk).delete()
    with pytest.raises(Exception, match="nothing at this address"):
        cancel_run(run)


def withdraw(pool: Pool, what: str) -> None:
    if what == "pool":
        pool.tenants.clear()
    else:
        Pool.objects.filter(pk=pool.pk).update(exported_tasks=[], exported_kinds=[])


@pytest.mark.parametrize(
    ("what", "words"), [("pool", "not open to you any more"), ("export", "does not export")]
)
def test_no_run_is_asked_of_a_pool_that_was_withdrawn(what: str, words: str) -> None:
    tenant, pool = make_tenant(), make_pool(shared=False)
    pool.tenants.add(tenant)
    job = post_job(tenant, pool=pool.slug)
    finished = make_finished_run(job)
    withdraw(pool, what)
    with pytest.raises(NotPermitted, match=words):
        run_now(job)
    with pytest.raises(NotPermitted, match=words):
        retry_run(finished)
    assert not LiveRun.objects.exists()
