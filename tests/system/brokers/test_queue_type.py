"""The type of a broker's queues changes under way: old queues are emptied, new ones used, no run is lost or doubled."""

import signal

import pytest

from tests.support.processes import RealProcess
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.system.platform import Platform, Worker

RUNS = 30


def start_scheduler(platform: Platform, queue_type: str, monkeypatch: pytest.MonkeyPatch) -> RealProcess:
    with monkeypatch.context() as changed:
        changed.setenv("BEATKEEPER_QUEUE_TYPE", queue_type)
        return platform.scheduler()


@pytest.mark.parametrize(("before", "after"), [("classic", "quorum"), ("quorum", "classic")])
def test_runs_go_on_by_wakeup_when_the_queue_type_changes(
    platform_with_own_broker: Platform,
    private_rabbitmq: PrivateRabbitMQ,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
) -> None:
    platform = platform_with_own_broker
    scheduler = start_scheduler(platform, before, monkeypatch)
    worker = platform.worker(slots=2)
    runs_by_wakeup(platform, worker)
    old = platform.broker_queue()

    scheduler.send(signal.SIGTERM)
    assert scheduler.wait(20) == 0
    scheduler = start_scheduler(platform, after, monkeypatch)
    new = str(platform.wait(lambda: platform.broker_queue() != old and platform.broker_queue(), 30, "new"))
    assert types(private_rabbitmq)[old] == before
    platform.wait(lambda: platform.queue(new)[1] == 1, 30, "a consumer of the new queue")
    # The worker that knew the old queue goes on with it, so that nothing stays there.
    assert platform.queue(old)[1] == 1

    runs_by_wakeup(platform, worker)
    assert types(private_rabbitmq)[new] == after
    assert platform.queue(old)[0] == platform.queue(new)[0] == 0
    assert "other arguments" not in scheduler.text()
    assert "connection lost" not in worker.process.text()


def runs_by_wakeup(platform: Platform, worker: Worker) -> None:
    """All of them once, and most not by the feed, which has children of its own."""
    job = platform.run_often(RUNS)
    platform.wait(lambda: len(platform.finished(job)) == RUNS, 60, "all runs to end")
    platform.assert_each_ran_once(platform.runs(job))
    pool = worker.children()
    ours = {str(run["id"]) for run in platform.runs(job)}
    assert sum(seen.run in ours and seen.pid in pool for seen in platform.witnessed()) > RUNS / 2


def types(rabbitmq: PrivateRabbitMQ) -> dict[str, str]:
    listed = rabbitmq.ctl("list_queues", "--vhost", rabbitmq.vhost, "--no-table-headers", "name", "type")
    return dict(line.split() for line in listed.splitlines())
