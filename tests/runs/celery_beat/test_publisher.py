"""The message of a row, beside the one that django-celery-beat's own DatabaseScheduler sends for it."""

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import kombu
import pytest
from celery import Celery

from runs.celery_beat.publisher import Away, CeleryPublisher, Undelivered, Unsendable, read_message
from runs.scheduler.partitions.lock_session import SESSION_SECONDS, SILENCE
from tests.runs.celery_beat.host import HostProject
from tests.support.network import Forwarder
from tests.support.ports import free_port

# In a process of that project: every row once by their scheduler, once by ours, each into a broker in memory.
BOTH = """
import json, os, uuid
import psycopg
from psycopg.rows import namedtuple_row
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry
from runs.celery_beat.publisher import CeleryPublisher
from runs.sql import SQL
from runs.celery_beat.source import prepare

app = tests.runs.celery_beat.host_app.app
every = IntervalSchedule.objects.create(every=1, period="hours")
kinds = [
    dict(task="their.witness"),
    dict(task="their.routed", args="[1, \\"two\\"]", kwargs='{"three": [4]}'),
    dict(task="unknown.to.the.app", priority=9),
    dict(task="their.witness", queue="elsewhere", headers='{"colour": "red", "task": "their.witness"}'),
    dict(task="their.witness", exchange="letters", routing_key="a.b", priority=0),
    dict(task="their.witness", expire_seconds=77),
    dict(task="their.witness", expires=now + timedelta(days=1)),
    dict(task="celery.backend_cleanup"),
]
session = psycopg.connect(os.environ["THEIR_DATABASE_URL"], autocommit=True)
prepare(session)
queues = ["elsewhere", tests.runs.celery_beat.host_app.QUEUE, tests.runs.celery_beat.host_app.QUEUE + ".routed"]
with app.connection_for_write() as broker:
    broker.default_channel.exchange_declare("letters", type="topic")
    broker.default_channel.queue_declare("letters-queue")
    broker.default_channel.queue_bind("letters-queue", "letters", "a.b")
queues.append("letters-queue")

def taken():
    found = []
    with app.connection_for_write() as broker:
        for queue in queues:
            try:
                message = broker.default_channel.basic_get(queue, no_ack=True)
            except Exception:
                continue
            if message is not None:
                info = message.delivery_info
                found.append([queue, info["exchange"], info["routing_key"], message.headers,
                              message.properties, json.loads(message.body), message.content_type,
                              message.content_encoding])
    return found

compared = []
for number, kind in enumerate(kinds):
    row = PeriodicTask.objects.create(name=f"row {number}", interval=every, **kind)
    scheduler = DatabaseScheduler(app, lazy=True)
    scheduler.apply_entry(ModelEntry(PeriodicTask.objects.get(pk=row.pk), app=app))
    host = taken()
    identity = uuid.UUID(host[0][3]["id"])
    with psycopg.Cursor(session, row_factory=namedtuple_row) as cursor:
        cursor.execute("INSERT INTO beatkeeper_celery_firing (task_id, name, task, planned_at, message_id, owner, "
                       "scheduler) VALUES (%s, 'x', 'y', now(), %s, %s, '') RETURNING id", [row.pk, identity, identity])
        firing = cursor.fetchone().id
        values = {"firings": [firing], "owner": identity}
        (message,) = cursor.execute(SQL["publish_firings"], values).fetchall()
    publisher = CeleryPublisher(app)
    assert publisher.is_ready()
    publisher.send(message)
    compared.append([host, taken()])
print(json.dumps(compared, default=str))
"""


def test_every_message_is_the_one_that_database_scheduler_sends(host: HostProject) -> None:
    host.broker_url = "memory://"
    compared = json.loads(host.python(BOTH).splitlines()[-1])
    assert len(compared) == 8
    for by_theirs, by_ours in compared:
        assert len(by_theirs) == len(by_ours) == 1
        assert _comparable(by_ours[0]) == _comparable(by_theirs[0])
    (queue, *_, headers, properties, body, _, _) = compared[1][1][0]
    assert queue.endswith(".routed") and body[:2] == [[1, "two"], {"three": [4]}]
    assert headers["periodic_task_name"] == "row 1" and headers["celery_beat_task"] is True
    assert compared[2][1][0][4]["priority"] == 9


def _comparable(message: list[Any]) -> Any:
    """But for what differs from one message to the next, and times that passed between the two."""
    queue, exchange, key, headers, properties, body, *content = message
    headers = {**headers, "expires": (headers["expires"] or "")[:16]}
    compared = {
        name: value for name, value in properties.items() if name not in ("delivery_tag", "expiration")
    }
    compared["expiration"] = round(float(properties.get("expiration") or 0) / 10_000)
    return queue, exchange, key, headers, compared, body, content


# A task that asks its own database whenever it is sent, as those of many tenants do.
ASKS = """
import os, psycopg
from celery import Task
from runs.celery_beat.publisher import CeleryPublisher, Unsendable
from tests.runs.celery_beat.test_publisher import message
app = tests.runs.celery_beat.host_app.app

class Audited(Task):
    def apply_async(self, *args, **kwargs):
        PeriodicTask.objects.count()
        return super().apply_async(*args, **kwargs)

@app.task(base=Audited, name="their.audited")
def audited(): pass

publisher = CeleryPublisher(app)
assert publisher.is_ready()
publisher.send(message(task="their.audited"))
with psycopg.connect(os.environ["THEIR_DATABASE_URL"], autocommit=True) as killer:
    killer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                   "AND pid <> pg_backend_pid()")
assert publisher.is_ready()
publisher.send(message(task="their.audited"))
print("sent")
"""


def test_a_task_that_asks_its_database_when_it_is_sent_is_sent_after_a_restart_of_it(
    host: HostProject,
) -> None:
    host.broker_url = "memory://"
    assert host.python(ASKS) == "sent\n"


def message(**fields: Any) -> SimpleNamespace:
    nothing = dict.fromkeys(
        ("queue", "exchange", "routing_key", "priority", "headers", "expires", "expire_seconds")
    )
    given = {"id": 1, "message_id": uuid4(), "name": "settle", "task": "their.witness"}
    return SimpleNamespace(**{**nothing, **given, "args": "[]", "kwargs": "{}", **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"args": "[1,"}, "args are not JSON"),
        ({"args": '{"a": 1}'}, "args are not a JSON list"),
        ({"kwargs": "[1]"}, "kwargs are not a JSON object"),
        ({"headers": "colour=red"}, "headers are not JSON"),
        ({"args": '[{"__type__": "decimal", "__value__": "much"}]'}, "args are not JSON"),
    ],
)
def test_what_is_no_message_is_refused_in_words(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Unsendable, match=why):
        read_message(message(**fields))


def test_empty_texts_stand_for_nothing() -> None:
    args, kwargs, options = read_message(message(args="", kwargs="", headers="", priority=0))
    assert (args, kwargs) == ([], {})
    assert options == {
        "priority": 0,
        "headers": {"periodic_task_name": "settle", "celery_beat_task": True},
    }


@pytest.mark.parametrize("nothing", ["null", "[]", "{}", '""', "0", "false"])
def test_what_celery_takes_for_nothing_stands_for_nothing(nothing: str) -> None:
    """Beat looks only whether there is something."""
    args, kwargs, _ = read_message(message(args=nothing, kwargs=nothing))
    assert (args, kwargs) == ([], {})


@pytest.fixture
def app(broker_url: str, host: HostProject) -> Celery:
    app = Celery("host", broker=broker_url, set_as_current=False)
    app.conf.task_default_queue = host.queue
    return app


def test_a_broker_that_is_not_there_is_not_ready_and_takes_nothing() -> None:
    app = Celery("host", broker=f"amqp://guest:guest@127.0.0.1:{free_port()}//", set_as_current=False)
    publisher = CeleryPublisher(app)
    assert not publisher.is_ready()
    with pytest.raises(Away):
        publisher.send(message())


def test_an_exchange_that_is_not_there_is_the_rows_own_trouble(app: Celery) -> None:
    publisher = CeleryPublisher(app)
    assert publisher.is_ready()
    with pytest.raises(Unsendable, match="no exchange"):
        publisher.send(message(exchange="nowhere", routing_key="x"))
    publisher.send(message())
    assert publisher.is_ready()


def test_where_results_are_kept_is_not_asked_when_a_message_is_sent(
    broker_url: str, host: HostProject
) -> None:
    """The workers need it; it may be away while their broker takes what is due."""
    away = f"redis://127.0.0.1:{free_port()}/0"
    app = Celery("host", broker=broker_url, backend=away, set_as_current=False)
    app.conf.task_default_queue = host.queue
    publisher = CeleryPublisher(app)
    assert publisher.is_ready()
    publisher.send(message())


@pytest.mark.parametrize("named", [True, False])
def test_a_queue_that_is_there_is_used_as_it_is(app: Celery, host: HostProject, named: bool) -> None:
    """Its arguments, such as x-max-priority, are known to their application alone."""
    publisher = CeleryPublisher(app, knows_queues=False)
    assert publisher.is_ready()
    given = message(queue=host.queue if named else None, priority=7)
    with app.connection_for_write() as broker:
        channel: Any = broker.default_channel
        kombu.Queue(host.queue, routing_key=host.queue, max_priority=10)(channel).declare()
        publisher.send(given)
        publisher.send(given)
        first, second = (channel.basic_get(host.queue, no_ack=True) for _ in range(2))
    assert first.headers["id"] == second.headers["id"] == str(given.message_id)
    assert first.properties["priority"] == 7


def test_a_queue_that_is_not_there_is_made(app: Celery, host: HostProject) -> None:
    publisher = CeleryPublisher(app, knows_queues=False)
    publisher.send(message(queue=f"{host.queue}.other"))
    with app.connection_for_write() as broker:
        channel: Any = broker.default_channel
        assert channel.basic_get(f"{host.queue}.other", no_ack=True) is not None


@pytest.fixture
def forwarder(broker_url: str) -> Iterator[Forwarder]:
    forwarder = Forwarder(broker_url)
    yield forwarder
    forwarder.close()


def test_of_a_cluster_every_address_is_tried(broker_url: str) -> None:
    dead = [f"amqp://guest:guest@127.0.0.1:{free_port()}//" for _ in range(2)]
    app = Celery("host", broker=";".join([*dead, broker_url]), set_as_current=False)
    assert CeleryPublisher(app).is_ready()


def test_a_broker_that_falls_silent_is_not_waited_for_long(forwarder: Forwarder, host: HostProject) -> None:
    app = Celery("host", broker=forwarder.url, set_as_current=False)
    app.conf.task_default_queue = host.queue
    publisher = CeleryPublisher(app)
    assert publisher.is_ready()
    with forwarder.swallowing():
        asked = time.monotonic()
        with pytest.raises(Undelivered):
            publisher.send(message())
        assert not publisher.is_ready()
        assert time.monotonic() - asked < 2 * SILENCE * SESSION_SECONDS
        with pytest.raises(Away):
            publisher.send(message())
    assert publisher.is_ready()
    publisher.send(message())
