"""What a test run leaves behind when it is killed. Everything it makes carries its name."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

import amqp
import psycopg
from kombu.utils.url import parse_url
from psycopg import sql


class CannotList(Exception):
    """There is no such tool, or it may not ask this broker."""


def remove(test_id: str, database_url: str, broker_url: str) -> None:
    """Remove them, unless the server is gone: then it holds nothing to remove."""
    with suppress(OSError, amqp.AMQPError):
        delete_queues(broker_url, f"bk-{test_id}.")
    with suppress(psycopg.Error):
        drop_databases(database_url, test_id)
    for folder in Path(gettempdir()).glob(f"bk-*-{test_id}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def drop_databases(database_url: str, test_id: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        names = connection.execute("SELECT datname FROM pg_database").fetchall()
        for (name,) in names:
            if name.startswith("beatkeeper_") and test_id in name.split("_"):
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def delete_queues(broker_url: str, prefix: str) -> None:
    """AMQP cannot list queues, so the broker's own tool is asked; without the right to, they stay."""
    address = parse_url(broker_url)
    names = [name for name in listed_queues() if name.startswith(prefix)]
    if not names:
        return
    host = f"{address['hostname']}:{address['port'] or 5672}"
    with amqp.Connection(
        host,
        address["userid"] or "guest",
        address["password"] or "guest",
        virtual_host=address["virtual_host"] or "/",
    ) as connection:
        channel = connection.channel()
        for name in names:
            channel.queue_delete(name)
        channel.exchange_delete(f"{prefix}dead")


def listed_queues() -> Iterable[str]:
    try:
        return list_queues("name").splitlines()
    except CannotList:
        return []


def list_queues(*columns: str) -> str:
    """By the broker's own tool: `make test` names that of a broker which it started."""
    program = os.environ.get("BEATKEEPER_TEST_RABBITMQCTL", "rabbitmqctl")
    command = [program, "--quiet", "list_queues", "--no-table-headers", *columns]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotList(str(error)) from error
    if answer.returncode:
        raise CannotList(answer.stderr or answer.stdout)
    return answer.stdout
