"""The Celery app of the platform on a broker that others use too."""

import ssl
from typing import Any

import pytest
from django.conf import settings
from kombu import Connection

from runs.celery_beat.source import of_platform
from scheduler_project.celery import app
from scheduler_project.sdk.transport.broker_tls import CheckedConnection, with_ca
from tests.support.certificates import OwnCA
from tests.support.servers.rabbitmq import PrivateRabbitMQ


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


def test_over_tls_the_app_talks_to_the_broker_and_to_nobody_else(
    private_rabbitmq: PrivateRabbitMQ, own_ca: OwnCA
) -> None:
    url = with_ca(private_rabbitmq.tls_url, str(own_ca.ca))
    with app.connection_for_write(url).clone() as broker:
        channel: Any = broker.default_channel
        assert isinstance(channel.connection.sock, ssl.SSLSocket)
    unknown: Any = app.connection_for_write(private_rabbitmq.tls_url).clone()
    with pytest.raises(ssl.SSLCertVerificationError):
        unknown.transport.establish_connection()


def test_so_does_the_app_of_the_periodic_tasks_that_the_platform_serves(settings: Any) -> None:
    settings.CELERY_BEAT_URL = "postgresql://theirs"
    settings.CELERY_BEAT_BROKER_URL = "amqps://theirs"
    served = of_platform()
    assert served is not None and isinstance(served.app.connection_for_write(), CheckedConnection)
