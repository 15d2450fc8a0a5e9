"""The Celery app of the platform on a broker that others use too."""

from typing import Any

from django.conf import settings
from kombu import Connection

from scheduler_project.celery import app


def test_everything_a_worker_declares_by_itself_bears_our_prefix() -> None:
    names = [name for queue in app.amqp.queues.values() for name in (queue.name, queue.exchange.name)]
    assert names == [f"{settings.QUEUE_PREFIX}.celery"] * 2
    assert app.amqp.router.route({}, "anything")["queue"].name == names[0]


def test_the_queues_of_the_app_can_be_declared(broker_url: str) -> None:
    with Connection(broker_url, connect_timeout=5) as broker:
        channel: Any = broker.channel()
        for queue in app.amqp.queues.values():
            queue(channel).declare()
            channel.queue_delete(queue.name)
            channel.exchange_delete(queue.exchange.name)
