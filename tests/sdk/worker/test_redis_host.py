"""A code base whose broker is Redis, which carries no wake-ups: its workers run its own tasks and take runs."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.processes import Processes, RealProcess
from tests.support.servers.redis import PrivateRedis
from tests.support.waiting import wait_until

POOLS = ["prefork", "threads", "gevent", "solo"]


@pytest.fixture
def stage(
    processes: Processes, tmp_path: Path, broker_url: str, private_redis: PrivateRedis
) -> Iterator[CeleryStage]:
    stage = CeleryStage(processes, tmp_path, broker_url)
    stage.host_broker = private_redis.url
    yield stage
    processes.stop_all()
    stage.close()


def worker(stage: CeleryStage, pool: str, slots: int = 2) -> RealProcess:
    """Without wake-ups: it knows of no RabbitMQ."""
    stage.ledger.change(no_work_named=False)
    worker = stage.processes.python(
        *("celery", "-A", "tests.support.sample_tasks", "worker", "-Q", stage.host_queue, "-l", "INFO"),
        *("-P", pool, "-c", str(slots), "-n", f"{uuid4().hex[:8]}@host"),
        env=stage.environment(SAMPLE_BROKER_URL=stage.host_broker),
    )
    worker.wait_for_output("This broker carries no wake-ups")
    worker.wait_for_output("ready.")
    return worker


@pytest.mark.parametrize("pool", POOLS)
def test_it_runs_its_own_tasks_and_runs_of_the_ledger(stage: CeleryStage, pool: str) -> None:
    process = worker(stage, pool)
    stage.send("tests.succeeds")
    wait_until(lambda: stage.events("succeeds"), 20, "the host's own task")
    for number in range(3):
        run = stage.ledger.add_run("tests.succeeds", number)
        assert stage.wait_for_end(run)["result"] == number
    # The guard would have it run by others, much later.
    assert "Wake-ups do not come through" not in process.text()
    assert process.terminate() == 0
    assert all(state["left"] for state in stage.ledger.workers().values())


def test_wakeups_come_from_another_broker(stage: CeleryStage) -> None:
    """No heartbeat names work: what runs came by a wake-up."""
    process = stage.worker(2, BEATKEEPER_BROKER_URL=stage.broker)
    runs = [stage.add_run_with_wakeup("tests.succeeds", number) for number in range(20)]
    for run in runs:
        stage.wait_for_end(run)
    stage.send("tests.succeeds")
    wait_until(lambda: len(stage.events("succeeds")) == 21, 20, "the host's own task")
    assert process.terminate() == 0


def test_runs_go_on_while_redis_is_away_and_after(stage: CeleryStage, private_redis: PrivateRedis) -> None:
    process = worker(stage, "prefork")
    stage.wait_for_end(stage.ledger.add_run())
    private_redis.kill()
    stage.wait_for_end(stage.ledger.add_run(), timeout=40)
    private_redis.start()
    stage.send("tests.succeeds")
    wait_until(lambda: len(stage.events("succeeds")) == 3, 40, "the host's own task")
    stage.wait_for_end(stage.ledger.add_run())
    assert process.is_alive()
