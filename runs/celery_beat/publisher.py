"""Send a periodic task's message to the broker of its own application, and wait for the broker's confirmation.

The message is the one that celery beat would send: by the application's own send_task, or apply_async of a task it
knows, with the options of the row.
"""

import logging
from importlib.util import find_spec
from typing import Any

from amqp.exceptions import NotFound
from celery import Celery
from celery._state import _set_task_join_will_block  # type: ignore[attr-defined]  # the stubs leave it out
from django.conf import settings
from django.db import close_old_connections
from kombu.exceptions import OperationalError
from kombu.utils import json

from scheduler_project.sdk.transport.broker_tls import REQS, tls_trouble, trusts_anybody

logger = logging.getLogger(__name__)

# A scheduler that is silent for longer than its session may be loses what it holds.
CONNECT_SECONDS = 0.7
CONFIRM_SECONDS = 1.0
# So many nodes of a cluster are tried, since each may take CONNECT_SECONDS.
MAX_ADDRESSES = 4
AMQP, REDIS = "amqp", "redis"
REDIS_SCHEMES = ("redis", "rediss", "sentinel")
NO_REDIS = "a Redis needs the package redis where the scheduler runs: pip install redis"
# What Redis says when it takes nothing from anybody: the next one may be taken.
REDIS_IS_UNFIT = {"ReadOnlyError", "OutOfMemoryError", "MasterDownError"}
REMEDY = (
    "ca_certs (of a Redis ssl_ca_certs) in broker_use_ssl, or the platform's BEATKEEPER_BROKER_CA_FILE, names the CA, "
    "and the URL the host as the certificate does"
)


class Unsendable(Exception):
    """The row's message cannot be made, or the broker refuses it."""


class Undelivered(Exception):
    """The broker went away; whether the message arrived is unknown."""


class Away(Exception):
    """The broker takes nothing; nothing was sent."""


class CeleryPublisher:
    def __init__(self, app: Celery, knows_queues: bool = True) -> None:
        self.app = app
        self.knows_queues = knows_queues
        self._connection: Any = None
        self._producer: Any = None
        self._reported = ""
        self._found_queues = set[str]()
        # Set for the whole process, as in a worker's children, because no result is awaited. Otherwise the backends
        # of Redis and rpc prepare for one before each message, and a Redis that is away is tried for longer than a
        # session lives.
        _set_task_join_will_block(True)

    def is_ready(self) -> bool:
        """Return whether the broker answers; checked before anything is marked as publishing."""
        if settings.configured:
            # A task's own apply_async may use the ORM, in this thread, which no request of Django's comes by.
            close_old_connections()
        try:
            self._reach()
        except Exception as error:  # transports have errors of their own
            self.close()
            self._report(tls_trouble(error, REMEDY) or missing_package(self.app) or type(error).__name__)
            return False
        return True

    def _report(self, why: str) -> None:
        """Log a failure once: until a message gets through, it is the same failure."""
        if why != self._reported:
            logger.error("the broker of the periodic tasks takes nothing: %s", why)
        self._reported = why

    def _reach(self) -> None:
        if self._connection is None:
            self._connection = self._opened()
            self._producer = self.app.amqp.Producer(self._connection, auto_declare=False)
        # A round trip: a connection that was cut would take a message and say nothing.
        if self._speaks(AMQP):
            self._producer.channel.basic_qos(0, 1, False)
        elif self._speaks(REDIS):
            self._producer.channel.client.ping()

    def _opened(self) -> Any:
        options: dict[str, Any] = {"confirm_publish": True}
        connection = self.app.connection_for_write(connect_timeout=CONNECT_SECONDS)
        if connection.transport.driver_type == AMQP:
            options |= {"read_timeout": CONFIRM_SECONDS, "write_timeout": CONFIRM_SECONDS}
        elif connection.transport.driver_type == REDIS:
            # A command that may have arrived is not sent again.
            options |= {
                "socket_connect_timeout": CONNECT_SECONDS,
                "socket_timeout": CONFIRM_SECONDS,
                "retry_on_timeout": False,
            }
        connection.transport_options = {**(connection.transport_options or {}), **options}
        others = min(len(connection.alt or ()), MAX_ADDRESSES) - 1
        connection.ensure_connection(max_retries=max(1, others), interval_start=0, interval_step=0)
        if trusts_anybody(connection.ssl):
            logger.warning(
                "anybody may be the broker of the periodic tasks: its certificate is not checked (%s)", REQS
            )
        return connection

    def _speaks(self, protocol: str) -> bool:
        return bool(self._connection.transport.driver_type == protocol)

    def send(self, message: Any) -> None:
        """Send the message, and return when the broker has it."""
        args, kwargs, options = read_message(message)
        if self._connection is None and not self.is_ready():
            raise Away(Away.__doc__)
        known: Any = self.app.tasks.get(message.task)
        given = {"task_id": str(message.message_id), "producer": self._producer, **options, "retry": False}
        if self._speaks(AMQP):
            given["confirm_timeout"] = CONFIRM_SECONDS
        lost = (*self._connection.recoverable_connection_errors, OperationalError, TimeoutError)
        try:
            if not self.knows_queues and self._speaks(AMQP):
                self._see_to_queue(options.get("queue") or self.app.conf.task_default_queue)
                given["declare"] = []
            if known is not None:
                known.apply_async(args, kwargs, **given)
            else:
                self.app.send_task(message.task, args, kwargs, **given)
        except Exception as error:
            failure = Undelivered if isinstance(error, lost) else Unsendable
            refusal = self._redis_refusal(error)
            # A channel that the broker has closed is of no use to the next message.
            self.close()
            raise refusal or failure(describe(error)) from error
        self._reported = ""

    def _see_to_queue(self, name: str) -> None:
        """Make the queue if it is missing; declared again without its own arguments, it would be refused."""
        if name in self._found_queues:
            return
        try:
            with self._connection.channel() as channel:
                channel.queue_declare(name, passive=True)
        except NotFound:
            self.app.amqp.queues[name].bind(self._producer.channel).declare()
        self._found_queues.add(name)

    def _redis_refusal(self, error: Exception) -> Exception | None:
        """Say why Redis refused: it takes nothing at all, or the row is to blame. Nothing was sent."""
        cause = error.__cause__ or error
        if not self._speaks(REDIS) or not isinstance(cause, self._connection.channel_errors):
            return None
        # It is full, or a read-only replica; a failing disk has no class of its own.
        if type(cause).__name__ in REDIS_IS_UNFIT or str(cause).startswith("MISCONF"):
            self._report(describe(cause))
            return Away(Away.__doc__)
        return Unsendable(describe(cause))

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        self._found_queues.clear()
        if connection is not None:
            try:
                connection.collect(socket_timeout=CONNECT_SECONDS)
            except Exception as error:  # it is given up in any case
                logger.debug("the connection was gone: %s", error)


def missing_package(app: Celery) -> str:
    """Name the package that the transport needs; Kombu itself only fails on it later."""
    addresses = app.conf.broker_write_url
    scheme = str(addresses if isinstance(addresses, str) else (addresses or [""])[0]).partition("://")[0]
    return NO_REDIS if scheme in REDIS_SCHEMES and find_spec("redis") is None else ""


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def read_message(message: Any) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Read arguments and options off a row as django-celery-beat does, with beat's own header."""
    args = _read(message, "args", list)
    kwargs = _read(message, "kwargs", dict)
    names = ("queue", "exchange", "routing_key", "priority")
    options = {name: getattr(message, name) for name in names if getattr(message, name) is not None}
    if expires := message.expires or message.expire_seconds:
        options["expires"] = expires
    headers = _read(message, "headers", dict)
    options["headers"] = {**headers, "periodic_task_name": message.name, "celery_beat_task": True}
    return args, kwargs, options


def _read(message: Any, name: str, kind: type) -> Any:
    text = getattr(message, name)
    try:
        value = json.loads(text or ("[]" if kind is list else "{}"))
    except Exception as error:  # whatever kombu's own decoders raise
        raise Unsendable(f"its {name} are not JSON: {error}") from error
    if not value:  # null and the like: beat sends nothing then
        return kind()
    if not isinstance(value, kind):
        raise Unsendable(f"its {name} are not a JSON {'list' if kind is list else 'object'}")
    return value
