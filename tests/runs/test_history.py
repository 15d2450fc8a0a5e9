"""All Python code reads runs and attempts through the history; CONTRIBUTING lists the statements that do not."""

import ast
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from runs import history
from runs.models import Attempt, LiveRun, Run
from runs.states import FinalState, LiveState
from scheduler_project.sdk.ids import MILLISECOND, attempt_id
from tests.support.factories import make_finished_run, make_job, make_run, make_tenant, make_worker, now
from tests.support.packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
READERS = {"runs/history.py"}


def finish_attempt(run: Run, claim_seq: int) -> Attempt:
    return Attempt.objects.create(
        id=attempt_id(run.pk, claim_seq),
        run=run,
        tenant_id=run.tenant_id,
        number=claim_seq,
        claim_seq=claim_seq,
        outcome="failed",
        next_state="delayed",
        worker=uuid4(),
        started_at=now(),
        finished_at=now(),
    )


def seen(run: UUID) -> Run:
    found = history.find(run)
    assert found is not None
    return found


@pytest.mark.django_db
def test_find_reads_an_unfinished_run_with_its_live_row() -> None:
    live = make_run(make_job(), LiveState.QUEUED)
    found = seen(live.run_id)
    LiveRun.objects.all().delete()
    assert found.current_state == LiveState.QUEUED
    assert history.find(uuid4()) is None


@pytest.mark.django_db
def test_a_finished_run_has_no_live_row() -> None:
    found = seen(make_finished_run(make_job(), FinalState.DEAD).pk)
    assert (found.current_state, found.live_or_none) == (FinalState.DEAD, None)


@pytest.mark.django_db
def test_runs_are_filtered_by_tenant_state_and_planned_time() -> None:
    job = make_job()
    queued = make_run(job, LiveState.QUEUED).run
    earlier = make_run(job, planned_at=now() - timedelta(hours=1)).run
    dead = make_finished_run(job, FinalState.DEAD)
    own = history.runs().of(job.tenant)
    assert set(own) == {queued, earlier, dead} and not history.runs().of(make_tenant())
    assert set(own.in_states([LiveState.QUEUED])) == {queued}
    assert set(own.in_states([FinalState.DEAD])) == {dead}
    assert set(own.in_states([FinalState.DEAD, LiveState.READY])) == {dead, earlier}
    assert set(own.planned_from(earlier.planned_at).planned_before(earlier.planned_at + MILLISECOND)) == {
        earlier
    }


@pytest.mark.django_db
def test_attempts_are_those_of_the_run_oldest_first() -> None:
    job = make_job()
    run = make_finished_run(job)
    other = make_finished_run(job)
    second, first = finish_attempt(run, 2), finish_attempt(run, 1)
    finish_attempt(other, 1)
    assert history.attempts_of(run.pk) == [first, second]


@pytest.mark.parametrize("run", [UUID(int=0), UUID(int=2**128 - 1)])
@pytest.mark.django_db
def test_any_id_may_be_looked_for(run: UUID) -> None:
    assert history.attempts_of(run) == []


@pytest.mark.django_db
def test_the_open_attempt_is_not_listed_twice() -> None:
    job = make_job()
    worker = make_worker(job.pool, name="w1")
    live = make_run(job, LiveState.RUNNING, worker=worker, claim_seq=3)
    run = seen(live.run_id)
    [found] = history.attempts_with_open(run)
    assert (found.worker, found.worker_name, found.outcome) == (worker.pk, "w1", LiveState.RUNNING)
    assert (found.run_id, found.number) == (run.pk, live.attempt) and not found.finished_at
    finished = finish_attempt(run, 3)
    assert history.attempts_with_open(run) == [finished]
    assert history.attempts_with_open(seen(make_run(job, LiveState.QUEUED).run_id)) == []


def test_nobody_else_queries_the_two_tables() -> None:
    """Statements of the passes that write runs are SQL; what reads them in Python asks the history."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    readers = {str(file.relative_to(ROOT)) for file in files if _queries_history(file)}
    assert readers == READERS


def _queries_history(file: Path) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("objects", "_default_manager", "_base_manager")
        and isinstance(node.value, ast.Name)
        and node.value.id in ("Run", "Attempt")
        for node in ast.walk(ast.parse(file.read_text()))
    )
