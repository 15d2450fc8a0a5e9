"""A wake-up's bytes: what py-amqp itself would write, and a message that a stock worker carries out."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import amqp
from amqp.method_framing import frame_handler
from amqp.serialization import loads
from amqp.spec import Basic
from django.conf import settings
from kombu import Connection

from runs.scheduler.broker import message as wakeups
from runs.scheduler.broker.config import Broker
from runs.scheduler.broker.message import MessageTemplate, Wakeup, publication
from runs.scheduler.broker.session import AmqpSession
from tests.support.processes import PYTHON, Processes
from tests.support.waiting import wait_until

WAKEUP = Wakeup("bk.default.acme.v1", "3:7")
STOCK_APP = """
import os
from celery import Celery
from kombu import Queue

app = Celery(broker=os.environ["STOCK_BROKER"])
app.conf.task_queues = [Queue(os.environ["STOCK_QUEUE"], no_declare=True)]

@app.task(name="beatkeeper.run", bind=True)
def run(self):
    with open(os.environ["STOCK_JOURNAL"], "a") as journal:
        journal.write(f"{self.request.id} {self.request.get('beatkeeper_queue')}\\n")
"""


class Reader:
    """py-amqp's own reader, fed with bytes."""

    bytes_recv = 0

    def __init__(self) -> None:
        self.methods: list[tuple[int, tuple[int, int], bytes, Any]] = []
        self._handle = frame_handler(self, lambda *method: self.methods.append(method))

    def read(self, data: bytes) -> None:
        while data:
            kind, channel, size = data[0], int.from_bytes(data[1:3], "big"), int.from_bytes(data[3:7], "big")
            assert data[7 + size] == 0xCE
            self._handle((kind, channel, data[7 : 7 + size]))
            data = data[8 + size :]


def test_the_bytes_are_those_that_py_amqp_would_write() -> None:
    template = MessageTemplate(1)
    frames = template.frames(WAKEUP, 1)
    identity = identity_of(frames)
    assert frames == publication(WAKEUP, identity, 1, template._origin)
    # The second one comes from the pattern.
    assert template.frames(WAKEUP, 2).replace(b"000000000002", b"000000000001") == frames


def test_py_amqp_reads_the_frames() -> None:
    template = MessageTemplate(5)
    reader = frames_of(template.frames(WAKEUP, 77), template.frames(WAKEUP._replace(tries=1), 78))
    (first, second) = reader
    channel, method, _, message = first
    assert channel == 5
    headers = message.properties["application_headers"]
    assert (headers["task"], headers["beatkeeper_queue"], headers["beatkeeper_v"]) == (
        "beatkeeper.run",
        "3:7",
        1,
    )
    assert headers["id"] == headers["root_id"] == message.properties["correlation_id"]
    assert json.loads(message.body)[:2] == [[], {}]
    assert second[3].properties["application_headers"]["beatkeeper_tries"] == 1


def test_it_is_addressed_to_its_queue_and_comes_back_if_there_is_none() -> None:
    frames = MessageTemplate(1).frames(WAKEUP, 1)
    size = int.from_bytes(frames[3:7], "big")
    arguments, _ = loads("Bssbb", frames[7 : 7 + size], 4)
    assert arguments == [0, "", WAKEUP.broker_queue, True, False]


def test_each_wakeup_has_an_id_that_tells_its_number() -> None:
    template, other = MessageTemplate(1), MessageTemplate(1)
    identities = [identity_of(template.frames(WAKEUP, number)) for number in (1, 2, 16**12 - 1)]
    assert [template.number_of(identity) for identity in identities] == [1, 2, 16**12 - 1]
    assert len({UUID(identity) for identity in identities}) == 3
    assert template.number_of(identity_of(other.frames(WAKEUP, 1))) == 0
    assert template.number_of("somebody else's") == 0


def test_patterns_do_not_pile_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(wakeups, "MAX_PATTERNS", 3)
    template = MessageTemplate(1)
    for number in range(10):
        template.frames(Wakeup(f"queue-{number}", "1:1"), number + 1)
    assert len(template._patterns) <= 3


def test_a_stock_celery_worker_carries_a_wakeup_out(
    broker_url: str, processes: Processes, tmp_path: Path
) -> None:
    queue, journal = f"{settings.QUEUE_PREFIX}.stock.v1", tmp_path / "journal"
    (tmp_path / "stock.py").write_text(STOCK_APP)
    with AmqpSession(Broker("", broker_url)) as session:
        session.send([Wakeup(queue, "3:7"), Wakeup(queue, "3:8")])
    worker = processes.start(
        *(
            PYTHON,
            "-m",
            "celery",
            "-A",
            "stock",
            "worker",
            "-P",
            "solo",
            "--without-gossip",
            "-n",
            settings.TEST_ID,
        ),
        env={
            "DJANGO_SETTINGS_MODULE": None,
            "STOCK_BROKER": broker_url,
            "STOCK_QUEUE": queue,
            "STOCK_JOURNAL": str(journal),
        },
        cwd=tmp_path,
    )
    wait_until(lambda: journal.exists() and len(journal.read_text().splitlines()) == 2, 30, "both wake-ups")
    assert [line.split()[1] for line in journal.read_text().splitlines()] == ["3:7", "3:8"]
    worker.terminate()
    with Connection(broker_url) as connection:
        channel: Any = connection.channel()
        assert channel.queue_declare(queue, passive=True).message_count == 0


def frames_of(*frames: bytes) -> list[Any]:
    """Publications turned into deliveries, which is what py-amqp knows how to read."""
    publish = Basic.Publish[0].to_bytes(2, "big") + Basic.Publish[1].to_bytes(2, "big")
    deliver = Basic.Deliver[0].to_bytes(2, "big") + Basic.Deliver[1].to_bytes(2, "big")
    reader = Reader()
    for data in frames:
        reader.read(data.replace(publish, deliver, 1))
    return reader.methods


def identity_of(frames: bytes) -> str:
    ((_, _, _, message),) = frames_of(frames)
    assert isinstance(message, amqp.Message)
    return str(message.properties["correlation_id"])
