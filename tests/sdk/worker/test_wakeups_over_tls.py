"""Wake-ups over `amqps://`: from a broker with an own CA, by the worker's settings or by its app's."""

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from scheduler_project.sdk.app import Beatkeeper
from scheduler_project.sdk.worker.event_loop import EventLoop
from scheduler_project.sdk.worker.wakeup_connection import wakeup_connection
from scheduler_project.sdk.worker.wakeup_intake import READS_AT_ONCE, WakeupIntake
from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.certificates import OwnCA
from tests.support.ports import free_port
from tests.support.processes import Processes, RealProcess
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until

LOST = "Wake-ups: connection lost ("


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, private_rabbitmq: PrivateRabbitMQ) -> Iterator[CeleryStage]:
    """No heartbeat names work: what runs came by a wake-up."""
    stage = CeleryStage(processes, tmp_path, private_rabbitmq.url)
    yield stage
    processes.stop_all()
    stage.close()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_worker_takes_wakeups_over_tls(
    stage: CeleryStage, private_rabbitmq: PrivateRabbitMQ, own_ca: OwnCA, pool: str
) -> None:
    url = private_rabbitmq.tls_url
    worker = stage.worker(2, pool=pool, BEATKEEPER_BROKER_URL=url, BEATKEEPER_CA_FILE=str(own_ca.ca))
    runs = [stage.add_run_with_wakeup("tests.succeeds", number) for number in range(30)]
    for run in runs:
        stage.wait_for_end(run)
    assert "true" in private_rabbitmq.ctl("list_connections", "ssl")
    assert LOST not in worker.text()
    assert worker.terminate() == 0


def test_an_app_whose_own_broker_speaks_tls_works_unchanged(
    stage: CeleryStage, private_rabbitmq: PrivateRabbitMQ, own_ca: OwnCA
) -> None:
    given = {
        "ca_certs": str(own_ca.ca),
        "cert_reqs": ssl.CERT_REQUIRED,
        "certfile": str(own_ca.certificate),
        "keyfile": str(own_ca.key),
        "server_hostname": "localhost",
    }
    stage.host_broker = private_rabbitmq.tls_url
    worker = stage.worker(2, app="tests.sdk.worker.host_over_tls", SAMPLE_BROKER_USE_SSL=json.dumps(given))
    stage.wait_for_end(stage.add_run_with_wakeup("tests.succeeds"))
    stage.host_broker = private_rabbitmq.url
    stage.send("tests.succeeds")
    wait_until(lambda: len(stage.events("succeeds")) == 2, 20, "the host's own task")
    assert LOST not in worker.text() and "no broker's certificate" not in worker.text()


def test_a_broker_that_cannot_be_verified_brings_no_wakeups_and_runs_come_by_the_heartbeat(
    stage: CeleryStage, private_rabbitmq: PrivateRabbitMQ, tmp_path: Path
) -> None:
    stage.ledger.change(no_work_named=False)
    (tmp_path / "other").mkdir()
    environment = stage.environment(
        SAMPLE_BROKER_URL=stage.broker,
        BEATKEEPER_BROKER_URL=private_rabbitmq.tls_url.replace("guest:guest", "guest:zebra"),
        BEATKEEPER_CA_FILE=str(OwnCA.make(tmp_path / "other").ca),
    )
    worker = stage.processes.python(
        *("celery", "-A", "tests.support.sample_tasks", "worker", "-Q", stage.host_queue, "-c", "2"),
        env=environment,
    )
    line = worker.wait_for_output(f"{LOST}the broker's certificate is not trusted: ")
    assert "BEATKEEPER_CA_FILE names the CA" in line
    stage.wait_for_end(stage.ledger.add_run())
    assert stage.consumers() == 0 and "zebra" not in worker.text()


def test_a_connection_that_is_cut_comes_back(
    stage: CeleryStage, private_rabbitmq: PrivateRabbitMQ, own_ca: OwnCA
) -> None:
    port = free_port()
    relay = a_relay(stage, port, private_rabbitmq)
    url = private_rabbitmq.tls_url.replace(str(private_rabbitmq.tls_port), str(port))
    worker = stage.worker(2, BEATKEEPER_BROKER_URL=url, BEATKEEPER_CA_FILE=str(own_ca.ca))
    stage.wait_for_end(stage.add_run_with_wakeup())
    relay.kill()
    worker.wait_for_output(LOST)
    a_relay(stage, port, private_rabbitmq)
    wait_until(lambda: stage.consumers() > 0, 30, "a consumer again")
    stage.wait_for_end(stage.add_run_with_wakeup())


def a_relay(stage: CeleryStage, port: int, rabbitmq: PrivateRabbitMQ) -> RealProcess:
    return stage.processes.python("tests.system.relay", str(port), str(rabbitmq.tls_port))


class Counting:
    """Admits nothing; the intake keeps what comes."""

    look_every = None

    def room(self) -> int:
        return 0

    def serve(self, _queues: Any) -> None:
        pass

    def maintain(self) -> None:
        pass


def test_wakeups_that_were_decrypted_together_are_all_read(
    stage: CeleryStage, private_rabbitmq: PrivateRabbitMQ, own_ca: OwnCA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket has nothing to read any more then, and a worker of many slots would wait for the next wake-up."""
    monkeypatch.setattr("scheduler_project.sdk.worker.wakeup_intake.WAITING_SECONDS", 60.0)
    app = Celery("of a team", broker="memory://", set_as_current=False)
    Beatkeeper(app, broker_url=private_rabbitmq.tls_url, ca_file=own_ca.ca)
    many = 3 * READS_AT_ONCE + 1
    for _ in range(many):
        stage.wakeup()
    header = SimpleNamespace(responses=1, draining=False, looped_at=0.0)
    table = SimpleNamespace(size=1000, header=header)
    queues = [SimpleNamespace(broker_queue=stage.broker_queue)]
    runtime = SimpleNamespace(table=table, queues=lambda: queues, queues_with_work=list)
    loop = EventLoop()
    intake = WakeupIntake(SimpleNamespace(app=app, amqheartbeat=0), loop, runtime, Counting())  # type: ignore[arg-type]
    intake.start()
    loop.start()
    try:
        wait_until(lambda: len(intake.waiting) == many, 10, "all wake-ups")
    finally:
        loop.close()
        intake.close()


def test_a_mute_broker_does_not_hold_the_hosts_loop_when_it_is_given_up(
    stage: CeleryStage, private_rabbitmq: PrivateRabbitMQ, own_ca: OwnCA
) -> None:
    """TLS would send its close and wait for a reply."""
    app = Celery("of a team", broker="memory://", set_as_current=False)
    Beatkeeper(app, broker_url=private_rabbitmq.tls_url, ca_file=own_ca.ca)
    runtime = SimpleNamespace(table=SimpleNamespace(size=1, header=SimpleNamespace()))
    intake = WakeupIntake(SimpleNamespace(app=app), EventLoop(), runtime, Counting())  # type: ignore[arg-type]
    connection = wakeup_connection(app, connect_timeout=5)
    connection.connect()
    intake._use(connection)
    private_rabbitmq.suspend()
    try:
        began_at = time.monotonic()
        intake.close()
        assert time.monotonic() - began_at < 2
    finally:
        private_rabbitmq.resume()
