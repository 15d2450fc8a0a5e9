"""Every Celery release that a code base may have: the same worker, with real processes and a real broker."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.worker.celery_stage import CeleryStage
from tests.sdk.worker.celery_versions import RELEASES, installed
from tests.support.processes import CHECKOUT, PYTHON, Processes, RealProcess
from tests.support.waiting import wait_until

ONCE = {"max_attempts": 1}


class OldStage(CeleryStage):
    """Its worker imports another Celery than ours."""

    site = Path()

    def environment(self, **changes: str) -> dict[str, str]:
        return super().environment(PYTHONPATH=str(self.site), **changes)

    def celery(self) -> str:
        code = "import celery, kombu, billiard; print(celery.__version__, celery.__file__)"
        printed = subprocess.run(
            [PYTHON, "-c", code], env={**os.environ, **self.environment()}, capture_output=True, text=True
        )
        return printed.stdout


@pytest.fixture
def stage(release: str, processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[OldStage]:
    stage = OldStage(processes, tmp_path, broker_url)
    stage.site = installed(release)
    printed = stage.celery()
    assert printed.startswith(release) and str(stage.site) in printed
    yield stage
    processes.stop_all()
    stage.close()


@pytest.mark.parametrize("release", RELEASES)
def test_runs_retries_cancels_and_survives_a_killed_child(stage: OldStage) -> None:
    runs_of_every_kind_end_well(stage)


@pytest.mark.parametrize("release", ["5.3", "5.5"])
def test_a_worker_of_threads(stage: OldStage) -> None:
    """Its runs are processes of their own, which a feed keeps."""
    worker = stage.worker(2, pool="threads", BEATKEEPER_SLOTS="2")
    assert stage.wait_for_end(stage.add_run_with_wakeup("tests.succeeds", 7))["result"] == 7
    cancelled_while_it_runs(stage)
    the_hosts_own_task_runs(stage)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert_quiet(worker)


@pytest.mark.parametrize("release", RELEASES)
def test_the_code_base_s_own_results_hold_nothing_of_a_run(release: str, tmp_path: Path) -> None:
    """However it ends: before 5.6 Celery looks at the task, not at the request, to know whether errors are kept."""
    done = subprocess.run(
        [PYTHON, "-m", "tests.sdk.targets.kept_results", str(tmp_path)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(installed(release))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["celery"].startswith(release)
    # As Celery says of an id that it knows nothing of.
    assert printed["kept"] == {"": "PENDING", "raises": "PENDING", "retries": "PENDING"}


def runs_of_every_kind_end_well(stage: CeleryStage) -> None:
    """In one worker, because it is the start of one that takes long."""
    worker = stage.worker(2)
    assert stage.wait_for_end(stage.add_run_with_wakeup("tests.succeeds", 7))["result"] == 7
    retried_by_platform(stage)
    cancelled_while_it_runs(stage)
    killed_child(stage)
    the_hosts_own_task_runs(stage)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert all(state["left"] for state in stage.ledger.workers().values())
    assert_quiet(worker)


def retried_by_platform(stage: CeleryStage) -> None:
    end = stage.wait_for_end(stage.add_run_with_wakeup("tests.retries", 3))
    assert (end["next"], end["error_line"], end["retry_after"]) == ("delayed", "later", 3)
    assert stage.wait_for_end(stage.add_run_with_wakeup("tests.autoretries"))["retry_after"] == 3


def cancelled_while_it_runs(stage: CeleryStage) -> None:
    run = stage.add_run_with_wakeup("tests.sleeps", 60, retry=ONCE)
    stage.wait_for_event("sleeps", run)
    stage.ledger.change_run(run, cancel=True)
    assert stage.wait_for_end(run)["next"] == "cancelled"


def killed_child(stage: CeleryStage) -> None:
    run = stage.add_run_with_wakeup("tests.dies", retry=ONCE)
    end = stage.wait_for_end(run)
    assert (end["error_class"], "last words" in stage.log_of(end)) == ("worker_lost", True)
    hung = stage.add_run_with_wakeup("tests.hangs", timeout=0.5, retry=ONCE)
    assert stage.wait_for_end(hung)["error_class"] == "timeout"
    assert stage.wait_for_end(stage.add_run_with_wakeup())["next"] == "succeeded"


def the_hosts_own_task_runs(stage: CeleryStage) -> None:
    before = len(stage.events("succeeds"))
    stage.send("tests.succeeds", 1)
    wait_until(lambda: len(stage.events("succeeds")) == before + 1, 20, "the host's own task")


def assert_quiet(worker: RealProcess) -> None:
    """Nothing of ours broke unseen."""
    text = worker.text()
    for trouble in (
        "Wake-ups: connection lost",
        "The heartbeat failed",
        "The guard ended",
        "unexpected error",
    ):
        assert trouble not in text, text[-4000:]
