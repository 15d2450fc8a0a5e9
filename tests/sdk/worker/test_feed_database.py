"""The fed worker over the real ledger: from queued rows to final ones."""

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Job
from runs.models import Attempt, LiveRun, Run, WorkerNode
from runs.states import LiveState
from scheduler_project.sdk import __version__
from tests.sdk.stage import kill
from tests.support.factories import make_job, make_pool, make_queue, make_run, now
from tests.support.processes import Processes, RealProcess
from tests.support.sample_tasks import journal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(processes: Processes, database_url: str, tmp_path: Path) -> Iterator[RealProcess]:
    make_pool(slug="default", exported_tasks=["tests.succeeds", "tests.sleeps", "tests.raises"])
    worker = processes.python(
        *("scheduler_project.sdk.worker.feed", "--app", "tests.support.sample_tasks", "--slots", "2"),
        env={
            "BEATKEEPER_DATABASE_URL": database_url,
            "BEATKEEPER_SPOOL_DIR": str(tmp_path / "spool"),
            "BEATKEEPER_LEASE_SECONDS": "5",
            "BEATKEEPER_BEAT_SECONDS": "0.5",
            "BEATKEEPER_FENCE_MARGIN_SECONDS": "1",
            "SAMPLE_JOURNAL": str(tmp_path / "journal"),
        },
        name="feed",
    )
    wait_until(lambda: WorkerNode.objects.exists() or not worker.is_alive(), 30, "a registered worker")
    assert worker.is_alive(), worker.text()
    yield worker
    worker.terminate()


def test_a_worker_registers_its_version(worker: RealProcess) -> None:
    assert WorkerNode.objects.get().version == __version__ != ""


def queued(job: Job, task: str = "tests.succeeds", *args: Any, **live: Any) -> LiveRun:
    return make_run(job, LiveState.QUEUED, queued_at=now() - timedelta(seconds=1), **live)


def job_of(task: str, *args: Any, retry: dict[str, Any] | None = None, timeout_ms: int = 60_000) -> Job:
    from jobs.models import Pool

    spec = {
        "target": {"kind": "celery", "task": task, "args": list(args), "kwargs": {}},
        "target_key": task,
        "timeout_ms": timeout_ms,
        **({"retry": retry} if retry else {}),
    }
    job = make_job(pool=Pool.objects.get(slug="default"), spec=spec)
    make_queue(job)
    return job


def wait_final(run: LiveRun) -> Run:
    wait_until(lambda: Run.objects.get(id=run.pk).state, 20, f"the end of {run.pk}")
    return Run.objects.get(id=run.pk)


def test_a_queued_run_succeeds(worker: RealProcess) -> None:
    run = wait_final(queued(job_of("tests.succeeds", {"a": 1})))
    assert (run.state, run.result, run.attempts) == ("succeeded", {"a": 1}, 1)
    assert not LiveRun.objects.exists()


def test_many_runs_are_each_executed_once(worker: RealProcess, tmp_path: Path) -> None:
    job = job_of("tests.succeeds")
    runs = [queued(job) for _ in range(50)]
    for run in runs:
        wait_final(run)
    executed = [entry["run"] for entry in journal(tmp_path / "journal")]
    assert sorted(executed) == sorted(str(run.pk) for run in runs)
    assert Attempt.objects.count() == 50


def test_a_failure_without_attempts_left_is_dead(worker: RealProcess) -> None:
    once = {"max_attempts": 1, "backoff": "exponential", "base": 1.0, "cap": 1.0}
    run = wait_final(queued(job_of("tests.raises", retry=once)))
    assert (run.state, run.error_class, run.error_type) == ("dead", "transient", "ValueError")
    assert run.log_object


def test_a_failed_run_waits_for_its_next_attempt(worker: RealProcess) -> None:
    run = queued(job_of("tests.raises"))
    wait_until(lambda: LiveRun.objects.get(run_id=run.pk).state == LiveState.DELAYED, 20, "a delayed run")


def test_a_killed_child_is_reported_at_once(worker: RealProcess, tmp_path: Path) -> None:
    run = queued(job_of("tests.sleeps"))
    [body] = wait_until(lambda: journal(tmp_path / "journal"), 20, "a running body")
    kill(body["pid"])
    wait_until(lambda: Attempt.objects.filter(run_id=run.pk).exists(), 15, "its attempt")
    attempt = Attempt.objects.get(run_id=run.pk)
    assert (attempt.outcome, attempt.error_class) == ("lost", "worker_lost")


def test_a_cancelled_run_stops(worker: RealProcess, tmp_path: Path) -> None:
    run = queued(job_of("tests.sleeps"))
    wait_until(lambda: journal(tmp_path / "journal"), 20, "a running body")
    LiveRun.objects.filter(run_id=run.pk).update(cancel_requested_at=now(), cancel_reason="enough")
    ended = wait_final(run)
    assert (ended.state, ended.reason) == ("cancelled", "enough")


def test_a_stopped_worker_has_left(worker: RealProcess) -> None:
    run = queued(job_of("tests.succeeds"))
    wait_final(run)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert WorkerNode.objects.get().state == "left"
