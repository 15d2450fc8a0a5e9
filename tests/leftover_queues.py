"""Queues that a test run leaves in a broker it shares with others."""

import subprocess
from collections.abc import Iterable

import amqp
from kombu.utils.url import parse_url


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


def listed_queues() -> Iterable[str]:
    command = ["rabbitmqctl", "--quiet", "list_queues", "--no-table-headers", "name"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.splitlines() if answer.returncode == 0 else []
