"""What no worker can read, put into a broker queue: it ends with the dead letters, and everything else goes on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest

from runs.scheduler.broker.config import DEAD_MESSAGES, Broker
from runs.scheduler.broker.session import AmqpSession
from scheduler_project.doctor import broker as doctor
from scheduler_project.sdk.worker.wakeup_message import PLAIN_BODY, problem_with
from tests.project.test_doctor import problems
from tests.sdk.worker.celery_stage import QUEUE, CeleryStage
from tests.support.processes import Processes
from tests.support.waiting import wait_until

READABLE: dict[str, Any] = {"task": "beatkeeper.run", "id": "an-id", "beatkeeper_queue": QUEUE}
BODY = PLAIN_BODY.decode()
CHAINED = json.dumps([[], {}, {"chain": [{"task": "celery.backend_cleanup", "args": [], "kwargs": {}}]}])
# Each with what differs from a wake-up: headers, body, properties. The first five crash a Celery worker that gets them.
POISON: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "no id": ({"id": None}, BODY, {}),
    "body is no list of three": ({}, '{"a": 1}', {}),
    "no content type": ({}, BODY, {"content_type": None}),
    "no encoding": ({}, BODY, {"content_encoding": None}),
    "time limit is no list": ({"timelimit": 5}, BODY, {}),
    "bad JSON": ({}, '[[], {}, {"callbacks"', {}),
    "wrong content type": ({}, BODY, {"content_type": "application/x-python-serialize"}),
    "unknown task": ({"task": "nobody.knows"}, BODY, {}),
    "no headers": (dict.fromkeys(READABLE), BODY, {}),
    "bad expires": ({"expires": "the day after"}, BODY, {}),
    "bad eta": ({"eta": {"a": 1}}, BODY, {}),
    "no queue": ({"beatkeeper_queue": "default:acme"}, BODY, {}),
    "a queue beyond all numbers": ({"beatkeeper_queue": f"1:{'1' * 5000}"}, BODY, {}),
    "arguments": ({}, "[[1], {}, {}]", {}),
    "a chain": ({}, CHAINED, {}),
    "deep": ({}, "[" * 10_000, {}),
    "empty": ({}, "", {}),
    "bad task limits": ({"timelimit": ["a", {}]}, BODY, {}),
    "stamps that are none": ({"stamped_headers": 7, "stamps": 8}, BODY, {}),
}
# These are wake-ups, whatever came along with them.
HARMLESS = ("stamps that are none",)


def message_of(headers: dict[str, Any], body: str, properties: dict[str, Any]) -> amqp.Message:
    given = {name: value for name, value in {**READABLE, **headers}.items() if value is not None}
    said = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
    said = {name: value for name, value in said.items() if value is not None}
    return amqp.Message(body.encode(), application_headers=given, correlation_id="an-id", **said)


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str, request: Any) -> Iterator[CeleryStage]:
    with AmqpSession(Broker("", broker_url)):
        stage = CeleryStage(processes, tmp_path, broker_url, getattr(request, "param", "classic"))
    stage.channel.queue_purge(DEAD_MESSAGES)
    yield stage
    processes.stop_all()
    stage.channel.queue_purge(DEAD_MESSAGES)
    stage.close()


def publish(stage: CeleryStage, message: amqp.Message) -> None:
    stage.channel.basic_publish(message, "", stage.broker_queue)


def dead(stage: CeleryStage) -> int:
    return int(stage.channel.queue_declare(DEAD_MESSAGES, passive=True).message_count)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_they_end_with_the_dead_messages_and_the_worker_goes_on(stage: CeleryStage, pool: str) -> None:
    worker = stage.worker(1, pool=pool)
    poison = {name: parts for name, parts in POISON.items() if name not in HARMLESS}
    for parts in poison.values():
        publish(stage, message_of(*parts))
    for name in HARMLESS:
        publish(stage, message_of(*POISON[name]))
    wait_until(lambda: dead(stage) >= len(poison), 20, f"{len(poison)} dead letters, not {dead(stage)}")
    run = stage.add_run_with_wakeup("tests.succeeds", 3)
    assert stage.wait_for_end(run)["result"] == 3
    assert worker.is_alive() and dead(stage) == len(poison)
    text = worker.text()
    assert "connection lost" not in text and text.count("is put aside") == len(poison)
    assert "the day after" not in text and "nobody.knows" not in text


@pytest.mark.parametrize("stage", ["classic", "quorum"], indirect=True)
def test_a_dead_letter_is_kept_whole_and_says_where_it_was(stage: CeleryStage) -> None:
    stage.worker(1)
    publish(stage, message_of(*POISON["unknown task"]))
    wait_until(lambda: dead(stage) == 1, 20, "the dead letter")
    kept = stage.channel.basic_get(DEAD_MESSAGES, no_ack=True)
    assert kept.headers["task"] == "nobody.knows" and kept.body in (BODY, BODY.encode())
    assert kept.headers["x-first-death-queue"] == stage.broker_queue
    assert kept.headers["x-first-death-reason"] == "rejected"


@pytest.mark.parametrize("stage", ["classic", "quorum"], indirect=True)
def test_wakeups_that_grew_too_old_or_too_many_are_no_dead_messages(stage: CeleryStage) -> None:
    """Without a consumer the broker drops them, by way of the same exchange."""
    small = f"{stage.broker_queue}.small"
    stage.channel.queue_declare(
        small, durable=True, auto_delete=False, arguments={**stage.arguments, "x-max-length": 2}
    )
    for _ in range(6):
        stage.wakeup(small)
        publish(stage, message_of({}, BODY, {"expiration": "1"}))
    wait_until(lambda: stage.messages() == 0, 20, "the wake-ups to expire")
    rejected = wait_until(lambda: stage.channel.basic_get(small), 10, "one that is left")
    assert int(stage.channel.queue_declare(small, passive=True).message_count) == 1
    stage.channel.basic_reject(rejected.delivery_tag, requeue=False)
    wait_until(lambda: dead(stage) >= 1, 10, "the one that was rejected")
    stage.channel.queue_delete(small)
    assert dead(stage) == 1


def test_doctor_counts_them(stage: CeleryStage, settings: Any) -> None:
    settings.CELERY_BROKER_URL = stage.broker
    assert problems(doctor.dead_messages) == ""
    stage.worker(1)
    for name in ("no id", "bad JSON"):
        publish(stage, message_of(*POISON[name]))
    wait_until(lambda: dead(stage) == 2, 20, "the dead messages")
    said = problems(doctor.dead_messages)
    assert "2 messages" in said and DEAD_MESSAGES in said and "docs/operations/brokers.md" in said


@pytest.mark.parametrize("name", [name for name in POISON if name not in HARMLESS])
def test_what_is_said_of_one_shows_nothing_of_it(name: str) -> None:
    headers, body, properties = POISON[name]
    assert problem_with(Seen({**READABLE, **headers}, body.encode(), **properties))


@pytest.mark.parametrize("body", [PLAIN_BODY, BODY, b"[[], {}, {}]", memoryview(PLAIN_BODY)])
def test_a_wakeup_is_a_wakeup_however_it_was_written(body: Any) -> None:
    for more in ({}, {"timelimit": [None, None]}, {"timelimit": [5, 4.5]}, {"eta": None, "expires": None}):
        assert problem_with(Seen({**READABLE, **more}, body)) == ""


class Seen:
    def __init__(
        self,
        headers: Any,
        body: Any,
        content_type: str | None = "application/json",
        content_encoding: str | None = "utf-8",
    ) -> None:
        self.headers, self.body = headers, body
        self.content_type, self.content_encoding = content_type, content_encoding
