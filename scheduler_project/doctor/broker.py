"""Check RabbitMQ: its brokers answer, and queues with work have broker queues and consumers."""

import re
import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from amqp.exceptions import NotFound
from django.conf import settings
from django.db.models import Exists, OuterRef

from jobs.models import Pool
from runs.models import LiveRun, Queue, WorkerNode
from runs.scheduler.broker.config import DEAD_MESSAGES, REMEDY, Broker, known_brokers
from runs.states import LiveState
from scheduler_project.doctor.database import address_of, first_line, some
from scheduler_project.doctor.findings import Findings, counted, fine, fine_unless_found, note, problem
from scheduler_project.sdk.transport.broker_tls import CheckedConnection, tls_trouble

CONNECT_SECONDS = 5
MIN_VERSION = (3, 10)
QUEUES_LOOKED_AT = 500
FILES_PER_QUEUE = 4
LOCAL = ("127.0.0.1", "localhost", "::1")


def reachable() -> Findings:
    brokers = known_brokers()
    if not settings.CELERY_BROKER_URL:
        yield note(
            "no broker is set: workers take their runs from the database, every half second at most"
            if not brokers
            else "the platform has no broker of its own: pools that name none are fed from the database"
        )
    for broker in brokers.values():
        where = ", ".join(address_of(address) for address in broker.addresses)
        try:
            with connected(broker) as link:
                properties = link.default_channel.connection.server_properties
        except Exception as error:  # the drivers raise a dozen unrelated classes
            yield problem(
                f"{broker} at {where} does not answer: {tls_trouble(error, REMEDY) or first_line(error)}",
                f"start RabbitMQ, or correct {broker.setting}; until then runs reach their workers more slowly",
            )
            continue
        name, version = properties.get("product", "a broker"), str(properties.get("version", ""))
        yield fine(
            f"{name} {version}, {broker}, at {where} answers; its broker queues are {broker.queue_type}"
        )
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers and numbers < MIN_VERSION:
            yield problem(f"{name} {version} is too old", "upgrade to RabbitMQ 3.10 or newer")


def names_of_pools() -> Findings:
    """Check that every broker named by a pool is configured."""
    named = Pool.objects.exclude(broker="").values_list("broker", "slug")
    unknown = [f"{slug} ({broker})" for broker, slug in named if broker not in settings.BROKERS]
    if unknown:
        yield problem(
            f"{counted(len(unknown), 'pool')} name a broker that BEATKEEPER_BROKERS does not: {some(unknown)}",
            "name it there, or take it from the pool; until then its workers are fed from the database",
        )
    elif named:
        yield fine("every pool names a broker that is known")


def is_reachable() -> bool:
    return any(True for _ in links())


def links() -> Iterator[tuple[Broker, Any]]:
    """Yield the brokers that answer, each with a connection."""
    for broker in known_brokers().values():
        with ExitStack() as stack:
            try:
                link = stack.enter_context(connected(broker))
            except Exception:  # noqa: S112 - the check before has reported the reason
                continue
            yield broker, link


def broker_queues() -> Findings:
    """Check that broker queues whose workers have queued runs exist and have consumers.

    Broker queues are declared passively: only schedulers create them. Each missing one closes its channel."""
    queues = queues_with_wakeups()
    missing, deaf = [], []
    for broker, link in links():
        for broker_queue in queues.get(broker.name, ()):
            declared = existing(link, broker_queue)
            if declared is None:
                missing.append(broker_queue)
            elif not declared.consumer_count:
                deaf.append(broker_queue)
    if missing:
        yield problem(
            f"{counted(len(missing), 'broker queue')} for queued runs do not exist: {some(missing)}",
            "schedulers declare them: see whether one is alive and reaches the broker",
        )
    if deaf:
        yield note(
            f"{counted(len(deaf), 'queue')} with queued runs have no consumer: {some(deaf)};"
            " their workers are fed from the database",
            "start a worker of the pool, or see whether its workers reach the broker",
        )
    if not missing and not deaf:
        yield fine(
            "every broker queue for queued runs exists and has a consumer"
            if queues
            else "no queue has queued runs"
        )


@fine_unless_found("no message waits that no worker could read")
def dead_messages() -> Findings:
    """Check for messages that no worker could read. Workers log what is wrong with each."""
    for broker, link in links():
        declared = existing(link, DEAD_MESSAGES)
        if declared is not None and declared.message_count:
            waiting = counted(declared.message_count, "message")
            yield problem(
                f"{DEAD_MESSAGES} of {broker} holds {waiting} that no worker could read",
                "find out who sends them, then purge the queue: docs/operations/brokers.md says how",
            )


def queues_with_wakeups() -> dict[str, list[str]]:
    """Return the names of broker queues whose workers have queued runs to take, by broker."""
    queued = LiveRun.objects.filter(state=LiveState.QUEUED)
    living, of_queue = WorkerNode.objects.living(), {"pool": OuterRef("pool"), "tenant": OuterRef("tenant")}
    only_own = living.filter(pool=OuterRef("pk")).exclude(tenant=None)
    for_all = living.filter(pool=OuterRef("pk"), tenant=None)
    pools = Pool.objects.filter(Exists(queued.filter(pool=OuterRef("pk")))).exclude(broker_queue="")
    pools = pools.filter(Exists(for_all) | ~Exists(only_own))
    queues = Queue.objects.filter(Exists(queued.filter(**of_queue)), Exists(living.filter(**of_queue)))
    found = defaultdict(list)
    for broker, broker_queue in [
        *pools.values_list("broker", "broker_queue")[:QUEUES_LOOKED_AT],
        *queues.values_list("pool__broker", "broker_queue")[:QUEUES_LOOKED_AT],
    ]:
        found[broker].append(broker_queue)
    return found


def existing(link: Any, broker_queue: str) -> Any:
    channel = link.channel()
    try:
        return channel.queue_declare(broker_queue, passive=True)
    except NotFound:
        return None
    finally:
        if channel.is_open:
            channel.close()


def open_files() -> Findings:
    """Check the limit of open files: a broker that runs out of files stops answering."""
    queues = Counter(Queue.objects.values_list("pool__broker", flat=True))
    for broker in known_brokers().values():
        counts, needed = counted(queues[broker.name], "broker queue"), queues[broker.name] * FILES_PER_QUEUE
        limit, what = broker_file_limit(broker), "of the broker"
        if limit is None:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            what = "of this machine (the broker's own cannot be seen from here)"
        if needed <= limit:
            yield fine(f"{counts}; the limit of open files {what} is {limit:,}")
        else:
            yield problem(
                f"{counts} may need more than the {limit:,} open files {what}",
                f"raise the broker's nofile limit to {needed:,} or more (LimitNOFILE of its service)",
            )


def broker_file_limit(broker: Broker) -> int | None:
    if urlsplit(broker.addresses[0]).hostname not in LOCAL:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "beam.smp":
                return soft_limit((process / "limits").read_text())
        except OSError:  # it ended, or belongs to somebody else
            continue
    return None


def soft_limit(limits: str) -> int | None:
    found = re.search(r"^Max open files\s+(\d+)", limits, re.MULTILINE)
    return int(found[1]) if found else None


@contextmanager
def connected(broker: Broker) -> Iterator[Any]:
    link = CheckedConnection(broker.url, connect_timeout=CONNECT_SECONDS)
    try:
        link.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_SECONDS)
        yield link
    finally:
        link.release()
