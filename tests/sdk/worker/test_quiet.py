"""When a real worker is quiet: while wake-ups reach it and it has nothing to do, and no longer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_project.sdk.shared.header import WorkerHeader
from tests.sdk.stage import LEASE, stop, wake
from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.processes import Processes
from tests.support.waiting import wait_until

QUIET = 3.0


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[CeleryStage]:
    stage = CeleryStage(processes, tmp_path, broker_url)
    stage.ledger.change(quiet=QUIET)
    yield stage
    processes.stop_all()
    stage.close()


def lease_of(stage: CeleryStage) -> float:
    [worker] = stage.ledger.workers().values()
    return float(worker.get("lease", LEASE))


def quiet_worker(stage: CeleryStage, lease: float = LEASE) -> WorkerHeader:
    stage.worker(2, BEATKEEPER_LEASE_SECONDS=str(lease))
    wait_until(lambda: lease_of(stage) == lease + QUIET, 15, "a longer lease")
    return stage.table().header


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_of_a_quiet_worker_is_soon_under_the_usual_lease(stage: CeleryStage, pool: str) -> None:
    stage.worker(2, pool=pool)
    wait_until(lambda: lease_of(stage) == LEASE + QUIET, 15, "a longer lease")
    run = stage.add_run_with_wakeup("tests.sleeps", 60)
    stage.wait_for_event("sleeps", run)
    wait_until(lambda: lease_of(stage) == LEASE, 1.0, "the usual lease")
    [worker] = stage.ledger.workers().values()
    assert (worker["busy"], len(worker["held"])) == (1, 1)


def test_a_worker_whose_broker_queue_is_gone_hears_nothing(stage: CeleryStage) -> None:
    header = quiet_worker(stage)
    stage.channel.queue_delete(stage.broker_queue)
    wait_until(lambda: header.heard_at == 0.0, 5, "the loss to be noted")
    wait_until(lambda: lease_of(stage) == LEASE, 1.0, "the usual lease")


def test_a_worker_whose_loop_stands_still_hears_nothing(stage: CeleryStage) -> None:
    """As it does for less than a lease; then the worker is taken for lost."""
    header = quiet_worker(stage, lease=20.0)
    parent = header.parent[0]
    stop(parent)
    try:
        wait_until(lambda: not header.hears_wakeups, 5, "a loop that stands still")
        wait_until(lambda: lease_of(stage) == 20.0, 1.0, "the usual lease")
    finally:
        wake(parent)
