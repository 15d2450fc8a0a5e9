"""RabbitMQ: is it there, and do the lanes that hold work have queues and consumers."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from amqp.exceptions import NotFound
from django.conf import settings
from kombu import Connection

from runs.models import Lane, LiveRun
from runs.states import LiveState
from scheduler_project.doctor.database import first_line, place
from scheduler_project.doctor.findings import Findings, counted, fine, note, problem

CONNECT_SECONDS = 5
OLDEST_VERSION = (3, 8)
LANES_LOOKED_AT = 500
FILES_PER_QUEUE = 4
LOCAL = ("127.0.0.1", "localhost", "::1")


def reachable() -> Findings:
    if not settings.CELERY_BROKER_URL:
        yield note("no broker is set: workers take their runs from the database, every half second at most")
        return
    try:
        with broker() as link:
            properties = link.default_channel.connection.server_properties
    except Exception as error:  # the drivers raise a dozen unrelated classes
        yield problem(
            f"the broker at {place(settings.CELERY_BROKER_URL)} does not answer: {first_line(error)}",
            "start RabbitMQ, or correct CELERY_BROKER_URL; until then runs reach their workers more slowly",
        )
        return
    name, version = properties.get("product", "the broker"), str(properties.get("version", ""))
    yield fine(f"{name} {version} at {place(settings.CELERY_BROKER_URL)} answers")
    if (numbers := version_numbers(version)) and numbers < OLDEST_VERSION:
        yield problem(f"{name} {version} is too old", "upgrade to RabbitMQ 3.8 or newer")


def is_reachable() -> bool:
    if not settings.CELERY_BROKER_URL:
        return False
    try:
        with broker():
            return True
    except Exception:  # any reason will do: the check before has told it
        return False


def lane_queues() -> Findings:
    """Passively: declaring is the schedulers' alone. Each missing queue costs its channel."""
    lanes = lanes_with_permits()
    missing, deaf = [], []
    with broker() as link:
        for queue in lanes:
            consumers = consumers_of(link, queue)
            if consumers is None:
                missing.append(queue)
            elif not consumers:
                deaf.append(queue)
    if missing:
        yield problem(
            f"{counted(len(missing), 'queue')} of lanes with queued runs do not exist: {some(missing)}",
            "schedulers declare them: see whether one is alive and reaches the broker",
        )
    if deaf:
        yield note(
            f"{counted(len(deaf), 'lane')} with queued runs have no consumer: {some(deaf)};"
            " their workers are fed from the database",
            "start a worker of the pool, or see whether its workers reach the broker",
        )
    if not missing and not deaf:
        yield fine(
            "every lane with queued runs has a queue and a consumer" if lanes else "no lane has queued runs"
        )


def lanes_with_permits() -> list[str]:
    waiting = LiveRun.objects.filter(state=LiveState.QUEUED).values_list("pool_id", "tenant_id").distinct()
    known = {(lane.pool_id, lane.tenant_id): lane.queue for lane in Lane.objects.all()}
    return [known[pair] for pair in waiting[:LANES_LOOKED_AT] if pair in known]


def consumers_of(link: Any, queue: str) -> int | None:
    channel = link.channel()
    try:
        return int(channel.queue_declare(queue, passive=True).consumer_count)
    except NotFound:
        return None
    finally:
        if channel.is_open:
            channel.close()


def open_files() -> Findings:
    """A broker that runs out of files stops answering altogether."""
    queues = Lane.objects.count()
    limit = broker_file_limit()
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        what = "of this machine (the broker's own cannot be seen from here)"
    else:
        what = "of the broker"
    if queues * FILES_PER_QUEUE <= limit:
        yield fine(f"{counted(queues, 'lane queue')}; the limit of open files {what} is {limit:,}")
        return
    yield problem(
        f"{counted(queues, 'lane queue')} may need more than the {limit:,} open files {what}",
        f"raise the broker's nofile limit to {queues * FILES_PER_QUEUE:,} or more (LimitNOFILE of its service)",
    )


def broker_file_limit() -> int | None:
    if urlsplit(settings.CELERY_BROKER_URL).hostname not in LOCAL:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "beam.smp":
                return soft_limit((process / "limits").read_text())
        except OSError:  # it ended, or belongs to somebody else
            continue
    return None


def soft_limit(limits: str) -> int | None:
    for line in limits.splitlines():
        if line.startswith("Max open files") and line.split()[3].isdigit():
            return int(line.split()[3])
    return None


@contextmanager
def broker() -> Iterator[Any]:
    link = Connection(settings.CELERY_BROKER_URL, connect_timeout=CONNECT_SECONDS)
    try:
        link.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_SECONDS)
        yield link
    finally:
        link.release()


def version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
