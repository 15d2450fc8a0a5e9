"""RabbitMQ: are the brokers there that pools name, and do the lanes that hold work have queues and consumers."""

import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from amqp.exceptions import NotFound
from django.conf import settings

from jobs.models import Pool
from runs.brokers import DEAD_MESSAGES, REMEDY, Broker, known_brokers
from runs.models import Lane, LiveRun
from runs.states import LiveState
from scheduler_project.doctor.database import address_of, first_line
from scheduler_project.doctor.findings import Findings, counted, fine, note, problem
from scheduler_project.sdk.broker_tls import CheckedConnection, tls_trouble

CONNECT_SECONDS = 5
OLDEST_VERSION = (3, 10)
LANES_LOOKED_AT = 500
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
        yield from answers(broker)


def answers(broker: Broker) -> Findings:
    where = ", ".join(address_of(address) for address in broker.addresses)
    try:
        with connected(broker) as link:
            properties = link.default_channel.connection.server_properties
    except Exception as error:  # the drivers raise a dozen unrelated classes
        yield problem(
            f"{broker} at {where} does not answer: {tls_trouble(error, REMEDY) or first_line(error)}",
            f"start RabbitMQ, or correct {broker.setting}; until then runs reach their workers more slowly",
        )
        return
    name, version = properties.get("product", "a broker"), str(properties.get("version", ""))
    yield fine(f"{name} {version}, {broker}, at {where} answers; its queues are {broker.queue_type}")
    if (numbers := version_numbers(version)) and numbers < OLDEST_VERSION:
        yield problem(f"{name} {version} is too old", "upgrade to RabbitMQ 3.10 or newer")


def names_of_pools() -> Findings:
    """A pool may have named a broker that was taken away since."""
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
    return any(map(is_there, known_brokers().values()))


def is_there(broker: Broker) -> bool:
    try:
        with connected(broker):
            return True
    except Exception:  # any reason will do: the check before has told it
        return False


def lane_queues() -> Findings:
    """Passively: declaring is the schedulers' alone. Each missing queue costs its channel."""
    lanes = lanes_with_permits()
    missing, deaf = [], []
    for broker in filter(is_there, known_brokers().values()):
        with connected(broker) as link:
            for queue in lanes.get(broker.name, ()):
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


def dead_messages() -> Findings:
    """What workers could not read. A worker's log says of each what was wrong with it."""
    found = False
    for broker in filter(is_there, known_brokers().values()):
        with connected(broker) as link:
            waiting = messages_of(link, DEAD_MESSAGES)
        if waiting:
            found = True
            yield problem(
                f"{DEAD_MESSAGES} of {broker} holds {counted(waiting, 'message')} that no worker could read",
                "find out who sends them, then purge the queue: docs/brokers.md says how",
            )
    if not found:
        yield fine("no message waits that no worker could read")


def lanes_with_permits() -> dict[str, list[str]]:
    """Queues by broker."""
    waiting = LiveRun.objects.filter(state=LiveState.QUEUED).values_list("pool_id", "tenant_id").distinct()
    known = {(lane.pool_id, lane.tenant_id): lane for lane in Lane.objects.select_related("pool")}
    found = defaultdict(list)
    for pair in waiting[:LANES_LOOKED_AT]:
        if pair in known:
            found[known[pair].pool.broker].append(known[pair].queue)
    return found


def consumers_of(link: Any, queue: str) -> int | None:
    declared = existing(link, queue)
    return None if declared is None else int(declared.consumer_count)


def messages_of(link: Any, queue: str) -> int:
    declared = existing(link, queue)
    return 0 if declared is None else int(declared.message_count)


def existing(link: Any, queue: str) -> Any:
    channel = link.channel()
    try:
        return channel.queue_declare(queue, passive=True)
    except NotFound:
        return None
    finally:
        if channel.is_open:
            channel.close()


def open_files() -> Findings:
    """A broker that runs out of files stops answering altogether."""
    lanes = Counter(Lane.objects.values_list("pool__broker", flat=True))
    for broker in known_brokers().values():
        yield from enough_files(broker, lanes[broker.name])


def enough_files(broker: Broker, queues: int) -> Findings:
    limit = broker_file_limit(broker)
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
    for line in limits.splitlines():
        if line.startswith("Max open files") and line.split()[3].isdigit():
            return int(line.split()[3])
    return None


@contextmanager
def connected(broker: Broker) -> Iterator[Any]:
    link = CheckedConnection(broker.url, connect_timeout=CONNECT_SECONDS)
    try:
        link.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_SECONDS)
        yield link
    finally:
        link.release()


def version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
