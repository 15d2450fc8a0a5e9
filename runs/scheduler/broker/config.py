"""Read which brokers there are, and declare how their queues are made. A URL is a secret and is never shown."""

from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from scheduler_project.sdk.transport.broker_tls import tls_trouble

# A wake-up older than this helps nobody: its run was served by a heartbeat. Where nobody consumes, because workers
# listen to another broker or to none, they would pile up.
WAKEUP_LIFE_MS = 60_000
MAX_IN_A_QUEUE = 20_000
# The broker deletes a queue without a consumer for this long: of an old type, a former pool, a pool without workers. If
# the queue is used again, the first wake-up comes back and it is declared anew.
QUEUE_LIFE_MS = 86_400_000
# Where the broker moves what a worker could not read and rejected; exchange and queue have one name.
DEAD_MESSAGES = f"{settings.QUEUE_PREFIX}.dead"
BOUNDS = {
    "x-message-ttl": WAKEUP_LIFE_MS,
    "x-max-length": MAX_IN_A_QUEUE,
    "x-expires": QUEUE_LIFE_MS,
    "x-dead-letter-exchange": DEAD_MESSAGES,
}
# Wake-ups that grew too old or were too many come there as well: only what was rejected gets into the queue.
REJECTED_ALONE = {"x-match": "all-with-x", "x-first-death-reason": "rejected"}
DEAD_MESSAGES_KEPT = {"x-queue-type": "classic", "x-max-length": 10_000}
# Version and arguments by queue type. The version is part of a queue's name, so that queues of old and new
# arguments stand side by side: change the arguments, change the version.
# Wake-ups have no priority: without the argument these would be other broker queues, of another version.
CLASSIC = ("v2", {"x-queue-type": "classic", "x-max-priority": 9, **BOUNDS})
# A quorum queue has its priorities without asking: none up to 3.13, two levels in 4.0 to 4.2, 32 from 4.3.
QUORUM = ("q2", {"x-queue-type": "quorum", **BOUNDS})
QUEUES: dict[str, tuple[str, dict[str, Any]]] = {"classic": CLASSIC, "quorum": QUORUM}
# For a broker whose certificate is refused.
REMEDY = "BEATKEEPER_BROKER_CA_FILE names the CA, and the URL the host as the certificate does"


@dataclass(frozen=True)
class Broker:
    name: str
    # The URLs of a cluster's nodes are separated by `;` and tried in turn.
    url: str = field(repr=False)
    queue_type: str = "classic"

    def __str__(self) -> str:
        return f"broker {self.name}" if self.name else "the platform's broker"

    @property
    def arguments(self) -> dict[str, Any]:
        return QUEUES[self.queue_type][1]

    @property
    def setting(self) -> str:
        """Return the setting that holds its URL."""
        return "BEATKEEPER_BROKERS" if self.name else "CELERY_BROKER_URL"

    @property
    def addresses(self) -> list[str]:
        return [address for address in self.url.split(";") if address]

    def address(self, attempt: int) -> str:
        return self.addresses[attempt % len(self.addresses)]


def known_brokers() -> dict[str, Broker]:
    """Return the brokers by name; the platform's own has none. Without a broker heartbeats feed the workers."""
    urls = {"": settings.CELERY_BROKER_URL, **settings.BROKERS}
    return {name: Broker(name, url, queue_type(name)) for name, url in urls.items() if url}


def why_away(error: BaseException) -> str:
    return tls_trouble(error, REMEDY) or f"{type(error).__name__}: {error}"


def queue_type(broker: str) -> str:
    types: dict[str, str] = settings.QUEUE_TYPES
    return types.get(broker, types[""])


def queue_version(broker: str) -> str:
    """Return the last part of the names of a broker's queues."""
    return QUEUES[queue_type(broker)][0]
