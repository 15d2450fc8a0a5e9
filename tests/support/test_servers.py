"""The servers that other tests stop must come back with what they held."""

import amqp
import psycopg
import pytest

from tests.support.servers.postgres import PrivatePostgres
from tests.support.servers.rabbitmq import PrivateRabbitMQ

pytestmark = pytest.mark.servers


def test_private_postgres_keeps_its_data_through_a_stop_and_a_kill(private_postgres: PrivatePostgres) -> None:
    url = private_postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    private_postgres.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    private_postgres.start()
    private_postgres.kill()
    private_postgres.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_private_database_has_our_tables(private_database_url: str) -> None:
    with psycopg.connect(private_database_url) as connection:
        connection.execute("SELECT id FROM beatkeeper_live_run")


def test_private_rabbitmq_keeps_durable_messages_through_a_stop_and_a_kill(
    private_rabbitmq: PrivateRabbitMQ,
) -> None:
    with connect(private_rabbitmq) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True, auto_delete=False)
        channel.basic_publish_confirm(amqp.Message("wakeup", delivery_mode=2), routing_key="kept")
    private_rabbitmq.stop()
    with pytest.raises(OSError):
        connect(private_rabbitmq).connect()
    private_rabbitmq.start()
    private_rabbitmq.kill()
    private_rabbitmq.start()
    assert private_rabbitmq.queues() == {"kept": 1}


def test_private_rabbitmq_is_empty_for_the_next_test(private_rabbitmq: PrivateRabbitMQ) -> None:
    assert private_rabbitmq.queues() == {}


def test_the_pooler_shares_one_server_connection_between_clients(pooled_database_url: str) -> None:
    """What a session keeps between its transactions is another's as well: the trap our code must not fall into."""
    with psycopg.connect(pooled_database_url, prepare_threshold=None) as one:
        mine = one.execute("SELECT pg_backend_pid()").fetchone()
        one.commit()
        with psycopg.connect(pooled_database_url, prepare_threshold=None) as other:
            assert other.execute("SELECT pg_backend_pid()").fetchone() == mine


def connect(server: PrivateRabbitMQ) -> amqp.Connection:
    return amqp.Connection(f"127.0.0.1:{server.port}", virtual_host=server.vhost, connect_timeout=5)
