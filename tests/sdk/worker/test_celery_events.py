"""Every way in which Celery ends a task, or a worker, and what becomes of the run: real processes, each pool.

No hook of Celery is called for all of these, so none is relied on. Each attempt has exactly one end,
its slot is free for the next run, and the worker goes on.
"""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from celery import Celery
from kombu import Connection

from scheduler_project.sdk.app import Beatkeeper
from scheduler_project.sdk.shared.slot_record import FREE
from scheduler_project.sdk.worker.wakeup_task import NAME
from tests.sdk.stage import gone, kill
from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.processes import Processes, RealProcess
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until

ONCE = {"max_attempts": 1}
AGAIN = {"max_attempts": 3, "backoff": "fixed", "base": 0.0, "cap": 0.0}


# As an operator gives them on the command line.
CANCELS_ON_LOSS = ["--", "worker.cancel_long_running_tasks_on_connection_loss=yes"]
RETRIES_LOST = ["--", "task.retry_on_worker_lost=yes", "task.acks_on_failure=no", "task.acks_on_timeout=no"]


class Event(NamedTuple):
    task: str
    ends_as: str
    error_class: str
    error_type: str
    options: Mapping[str, Any] = {}
    # Whether the process that ran it is gone.
    kills: bool = False


EVENTS = {
    "exception": Event("tests.raises", "dead", "transient", "ValueError"),
    "retry": Event("tests.retries", "delayed", "transient", "ValueError", {"retry": AGAIN}),
    "autoretry": Event("tests.autoretries", "delayed", "transient", "KeyError", {"retry": AGAIN}),
    "soft limit": Event("tests.sleeps", "dead", "timeout", "TimeLimitReached", {"timeout": 0.4}),
    "hard limit": Event("tests.hangs", "dead", "timeout", "TimeLimitReached", {"timeout": 0.4}, kills=True),
    "killed child": Event("tests.dies", "dead", "worker_lost", "WorkerLost", kills=True),
    "SystemExit": Event("tests.exits", "dead", "transient", "SystemExit"),
    "BaseException": Event("tests.halts", "dead", "transient", "tests.support.sample_tasks.Halt"),
    "no memory left": Event("tests.hoards", "dead", "transient", "MemoryError"),
}
# What a solo worker cannot survive has tests of its own.
SOLO = [name for name, event in EVENTS.items() if not event.kills and name != "no memory left"]
POOLS = ["prefork", "threads", "gevent"]
CASES = [(pool, name) for pool in POOLS for name in EVENTS] + [("solo", name) for name in SOLO]


class Shared(NamedTuple):
    """One worker for all events that it survives."""

    stage: CeleryStage
    worker: RealProcess


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, broker_url: str) -> Iterator[dict[str, Shared]]:
    processes = Processes(tmp_path_factory.mktemp("workers"))
    found: dict[str, Shared] = {}

    class OnDemand(dict[str, Shared]):
        def __missing__(self, pool: str) -> Shared:
            stage = CeleryStage(processes, tmp_path_factory.mktemp(pool), broker_url)
            found[pool] = self[pool] = Shared(stage, stage.worker(1, pool=pool))
            return self[pool]

    yield OnDemand()
    processes.stop_all()
    for shared in found.values():
        shared.stage.close()


@pytest.mark.parametrize(("pool", "name"), CASES)
def test_what_ends_a_task_ends_its_run_once(workers: dict[str, Shared], pool: str, name: str) -> None:
    stage, worker = workers[pool]
    event = EVENTS[name]
    run = stage.add_run_with_wakeup(event.task, **{"retry": ONCE, **event.options})
    end = stage.wait_for_end(run)
    assert (end["next"], end["error_class"], end["error_type"]) == event[1:4]
    if event.kills:
        assert all(gone(entry["pid"]) for entry in entries_of(stage, run))
    assert_it_goes_on(stage, worker)
    if end["next"] == "dead":
        assert len(stage.ledger.ends(run)) == 1


@pytest.mark.parametrize("pool", [*POOLS, "solo"])
def test_a_cancel_is_requested_acknowledged_and_ends(workers: dict[str, Shared], pool: str) -> None:
    stage, worker = workers[pool]
    run = stage.add_run_with_wakeup("tests.sleeps", 60)
    stage.wait_for_event("sleeps", run)
    assert not stage.ledger.run(run).get("acknowledged")
    stage.ledger.change_run(run, cancel=True)
    assert stage.wait_for_end(run)["next"] == "cancelled"
    assert_it_goes_on(stage, worker)


@pytest.mark.parametrize("pool", POOLS)
def test_a_termination_kills_at_once(workers: dict[str, Shared], pool: str) -> None:
    stage, worker = workers[pool]
    run = stage.add_run_with_wakeup("tests.hangs")
    body = stage.wait_for_event("hangs", run)["pid"]
    stage.ledger.change_run(run, cancel=True, terminate=True)
    assert stage.wait_for_end(run)["next"] == "cancelled"
    wait_until(lambda: gone(body), 15, "the end of the body")
    assert not stage.events("shrugged", run)
    assert_it_goes_on(stage, worker)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_revoked_run_goes_on(workers: dict[str, Shared], pool: str, tmp_path: Path) -> None:
    """Celery's own revoke knows nothing of runs: who wants one ended cancels it."""
    stage, worker = workers[pool]
    gate = tmp_path / "gate"
    run = stage.add_run_with_wakeup("tests.witnesses", 0, str(gate))
    stage.wait_for_event("start", run)
    revoke(workers[pool], str(run))
    gate.touch()
    assert stage.wait_for_end(run)["next"] == "succeeded"
    assert len(stage.events("start", run)) == 1
    assert_it_goes_on(stage, worker)


@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_revoked_wakeup_loses_no_run(
    workers: dict[str, Shared], pool: str, number: str, tmp_path: Path
) -> None:
    """Where it ends the child, that is a lost worker; where it does not, nothing happened."""
    stage, worker = workers[pool]
    gate = tmp_path / "gate"
    run = stage.ledger.add_run("tests.witnesses", 0, str(gate), retry=AGAIN)
    wakeup = stage.wakeup()
    stage.wait_for_event("start", run)
    revoke(workers[pool], wakeup, number)
    with work_named(stage):
        if pool == "prefork":
            stage.wait_for_event("start", run, count=2)
        gate.touch()
        wait_until(lambda: stage.ledger.run(run)["state"] == "succeeded", 20, "its success")
    assert not any(entry["met_alive"] for entry in stage.events("start", run))
    assert_it_goes_on(stage, worker)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_wakeup_that_celery_drops_loses_no_run(workers: dict[str, Shared], pool: str, how: str) -> None:
    stage, worker = workers[pool]
    run, wakeup = stage.ledger.add_run(), str(uuid4())
    if how == "revoked":
        revoke(workers[pool], wakeup)
        stage.wakeup(id=wakeup)
    else:
        stage.wakeup(expires="2020-01-01T00:00:00+00:00")
    with work_named(stage):
        assert stage.wait_for_end(run)["next"] == "succeeded"
    assert_it_goes_on(stage, worker)


# What the worker does not survive.


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[CeleryStage]:
    stage = CeleryStage(processes, tmp_path, broker_url)
    yield stage
    processes.stop_all()
    stage.close()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_cold_shutdown_loses_no_run_and_leaves_no_body(stage: CeleryStage, pool: str) -> None:
    """Celery itself would forget what it acked early, and send again what it acked late."""
    worker = stage.worker(1, pool=pool)
    run = stage.add_run_with_wakeup("tests.hangs", retry=AGAIN)
    body = stage.wait_for_event("hangs", run)["pid"]
    worker.send(signal.SIGQUIT)
    worker.wait()
    wait_until(lambda: gone(body), 10, "the end of the body")
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    assert stage.ledger.run(run)["state"] == "queued"
    wait_until(lambda: all(one["left"] for one in stage.ledger.workers().values()), 10, "its last words")


def test_a_cold_shutdown_does_not_wait_for_a_long_run(stage: CeleryStage) -> None:
    """Its wake-up is acked, and for the end of what is acked Celery waits."""
    worker = stage.worker(1, SAMPLE_ACKED_AFTER="0.1")
    run = stage.add_run_with_wakeup("tests.hangs", retry=AGAIN)
    body = stage.wait_for_event("hangs", run)["pid"]
    wait_until(lambda: stage.unacked() == 0, 10, "an acked wake-up")
    worker.send(signal.SIGQUIT)
    wait_until(lambda: gone(body), 10, "the end of the body")
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    worker.wait()


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_killed_worker_leaves_no_body_and_is_reported(stage: CeleryStage, pool: str) -> None:
    worker = stage.worker(1, pool=pool)
    run = stage.add_run_with_wakeup("tests.hangs", retry=AGAIN)
    body = stage.wait_for_event("hangs", run)["pid"]
    kill(worker.pid)
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    wait_until(lambda: gone(body), 15, "the end of the body")


def test_a_solo_worker_ends_with_a_body_that_takes_no_hint(stage: CeleryStage) -> None:
    """They are one process. Its service manager starts it again; the guard reports the end meanwhile."""
    worker = stage.worker(1, pool="solo")
    run = stage.add_run_with_wakeup("tests.hangs", timeout=0.5, retry=ONCE)
    end = stage.wait_for_end(run)
    assert (end["next"], end["error_class"]) == ("dead", "timeout")
    assert worker.wait() == -signal.SIGKILL
    wait_until(lambda: not list(stage.spool.glob("worker-*")), 10, "the guard's last words")


@pytest.mark.parametrize(
    ("pool", "settings"), [("prefork", []), ("prefork", CANCELS_ON_LOSS), ("threads", [])]
)
def test_a_lost_broker_connection_starts_nothing_twice(
    processes: Processes, tmp_path: Path, private_rabbitmq: PrivateRabbitMQ, pool: str, settings: list[str]
) -> None:
    """Unacked wake-ups come again: they find nothing, or other runs."""
    stage = CeleryStage(processes, tmp_path, private_rabbitmq.url)
    gate = tmp_path / "gate"
    worker = stage.worker(2, *settings, pool=pool)
    run = stage.add_run_with_wakeup("tests.witnesses", 0, str(gate), retry=ONCE)
    stage.wait_for_event("start", run)
    lose_connections(stage, worker, private_rabbitmq)
    stage.wait_for_end(stage.add_run_with_wakeup())
    gate.touch()
    assert stage.wait_for_end(run)["next"] == "succeeded"
    assert len(stage.events("start", run)) == 1 and len(stage.ledger.ends(run)) == 1
    assert ("is not terminated" in worker.text()) is bool(settings)


def test_after_a_lost_connection_a_busy_worker_keeps_no_wakeups(
    processes: Processes, tmp_path: Path, private_rabbitmq: PrivateRabbitMQ
) -> None:
    """What went on through it still has its child."""
    stage = CeleryStage(processes, tmp_path, private_rabbitmq.url)
    worker = stage.worker(1)
    stage.wait_for_event("sleeps", stage.add_run_with_wakeup("tests.sleeps", 60))
    lose_connections(stage, worker, private_rabbitmq)
    wait_until(lambda: stage.consumers() > 0, 20, "a consumer again")
    stage.wakeup()
    wait_until(lambda: private_rabbitmq.queues()[stage.broker_queue] == 0, 20, "acked wake-ups")
    assert not stage.events("slept")


def test_a_lost_child_sends_no_wakeup_of_its_own(stage: CeleryStage) -> None:
    """Celery would send one that waits, and declare the broker queue for it."""
    worker = stage.worker(1, *RETRIES_LOST)
    run = stage.add_run_with_wakeup("tests.dies", retry=ONCE)
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    assert_it_goes_on(stage, worker)
    assert "WorkerLostError" in worker.text()
    for sign in ("Failed to retry", "PRECONDITION_FAILED", "retry:"):
        assert sign not in worker.text()


def test_what_the_host_wants_of_its_tasks_changes_no_wakeup() -> None:
    """A wake-up that were rejected after a failure would lie among the dead messages."""
    with Celery(broker="memory://", set_as_current=False) as app:
        Beatkeeper(app)
        app.conf.update(task_acks_on_failure_or_timeout=False, task_acks_late=False)
        app.conf.update(task_acks_on_failure=False, task_acks_on_timeout=False)
        wakeup: Any = app.tasks[NAME]
        assert wakeup.acks_late and wakeup.acks_on_failure_or_timeout
        assert wakeup.acks_on_failure and wakeup.acks_on_timeout


def lose_connections(stage: CeleryStage, worker: RealProcess, broker: PrivateRabbitMQ) -> None:
    broker.ctl("close_all_connections", "--vhost", broker.vhost, "a test")
    stage.connection = Connection(stage.broker)
    stage.channel = stage.connection.channel()
    stage.queue = stage.queue(stage.channel)
    wait_until(lambda: worker.text().count("Wake-ups: connected") == 2, 30, "another connection")


def assert_it_goes_on(stage: CeleryStage, worker: RealProcess) -> None:
    assert stage.wait_for_end(stage.add_run_with_wakeup())["next"] == "succeeded"
    wait_until(lambda: set(stage.table().states()) == {FREE}, 15, "a free slot")
    assert worker.is_alive()


def entries_of(stage: CeleryStage, run: Any) -> list[dict[str, Any]]:
    return [*stage.events("hangs", run), *stage.events("dies", run)]


def revoke(shared: Shared, identity: str, number: str = "SIGTERM") -> None:
    """Revoke as `celery control revoke --terminate` does; return when the worker has replied."""
    name = shared.worker.command[shared.worker.command.index("-n") + 1]
    with Celery(broker=shared.stage.broker, set_as_current=False) as app:
        replies = app.control.revoke(
            identity, terminate=True, signal=number, destination=[name], reply=True, timeout=10
        )
    assert [list(one) for one in replies or []] == [[name]]


@contextmanager
def work_named(stage: CeleryStage) -> Iterator[None]:
    """Heartbeats name queues in which runs wait, as they do without a test that looks at wake-ups."""
    stage.ledger.change(no_work_named=False)
    yield
    stage.ledger.change(no_work_named=True)
