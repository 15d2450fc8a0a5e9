"""A Celery worker, a queue of its own on a real broker, and a ledger that is a folder."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from kombu import Connection, Producer, Queue

from runs.scheduler.broker.config import QUEUES
from tests.sdk.fake_ledger import FakeLedger
from tests.sdk.stage import Stage
from tests.support.leftovers import CannotList, list_queues
from tests.support.processes import Processes, RealProcess
from tests.support.waiting import wait_until

QUEUE = "1:2"


class CeleryStage(Stage):
    def __init__(self, processes: Processes, folder: Path, broker: str, queue_type: str = "classic") -> None:
        super().__init__(processes, folder)
        # Wake-ups come by the one, the host's own tasks by the other.
        self.broker = self.host_broker = broker
        suffix = uuid4().hex[:8]
        version, self.arguments = QUEUES[queue_type]
        self.broker_queue = f"{settings.QUEUE_PREFIX}.queue-{suffix}.{version}"
        self.host_queue = f"{settings.QUEUE_PREFIX}.host-{suffix}"
        self.ledger = FakeLedger(str(folder / "ledger"), self.broker_queue)
        self.ledger.change(no_work_named=True)
        self.connection = Connection(broker)
        self.channel: Any = self.connection.channel()
        self.queue: Any = Queue(self.broker_queue, durable=True, queue_arguments=self.arguments)(self.channel)
        self.queue.queue_declare()
        self._declared: list[str] = []

    def worker(
        self,
        slots: int = 2,
        *arguments: str,
        pool: str = "prefork",
        app: str = "tests.support.sample_tasks",
        **changes: str,
    ) -> RealProcess:
        worker = self.processes.python(
            *("celery", "-A", app, "worker", "-Q", self.host_queue, "-l", "INFO"),
            *("-P", pool, "-c", str(slots), "-n", f"{uuid4().hex[:8]}@host", *arguments),
            env=self.environment(SAMPLE_BROKER_URL=self.host_broker, **changes),
        )
        wait_until(
            lambda: self.consumers() > 0 or not worker.is_alive(), 30, f"a consumer; {worker.text()[-2000:]}"
        )
        assert worker.is_alive(), worker.text()
        return worker

    def wakeup(self, queue: str = "", **headers: Any) -> str:
        identity = str(headers.get("id") or uuid4())
        Producer(self.channel).publish(
            [[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}],
            routing_key=queue or self.broker_queue,
            serializer="json",
            correlation_id=identity,
            headers={"task": "beatkeeper.run", "id": identity, "beatkeeper_queue": QUEUE, **headers},
        )
        return identity

    def send(self, task: str, *args: Any) -> None:
        from tests.support.sample_tasks import app

        with app.connection_for_write(self.host_broker) as connection:
            app.send_task(task, args, queue=self.host_queue, connection=connection)

    def consumers(self) -> int:
        return int(self.queue.queue_declare(passive=True).consumer_count)

    def messages(self) -> int:
        return int(self.queue.queue_declare(passive=True).message_count)

    def declare(self, suffix: str, queue_type: str) -> str:
        """Declare a further broker queue that workers do not know yet."""
        version, arguments = QUEUES[queue_type]
        name = f"{self.broker_queue.rpartition('.')[0]}{suffix}.{version}"
        self.channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        self._declared.append(name)
        return name

    def unacked(self, *queues: str) -> int:
        try:
            listed = list_queues("name", "messages_unacknowledged")
        except CannotList as reason:
            pytest.skip(f"unacked messages cannot be counted: {reason}")
        counts = dict(line.split("\t") for line in listed.splitlines())
        return sum(int(counts[queue]) for queue in queues or [self.broker_queue])

    def add_run_with_wakeup(self, task: str = "tests.succeeds", *args: Any, **options: Any) -> Any:
        run = self.ledger.add_run(task, *args, **options)
        self.wakeup()
        return run

    def close(self) -> None:
        channel: Any = self.connection.channel()
        for name in (self.broker_queue, self.host_queue, *self._declared):
            channel.queue_delete(name)
        self.connection.release()
