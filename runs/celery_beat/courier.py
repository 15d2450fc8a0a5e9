"""Takes a periodic task's message to the broker of its own application, and waits for the broker's word.

The message is the one that celery beat would send: by the application's own send_task, or apply_async of a task it
knows, with the options of the row.
"""

import logging
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.utils import json

logger = logging.getLogger(__name__)

# A scheduler that is silent for longer than its session may be loses what it holds.
CONNECT_SECONDS = 0.7
CONFIRM_SECONDS = 1.0
AMQP = "amqp"


class Unsendable(Exception):
    """The row's message cannot be made, or the broker will not have it."""


class Undelivered(Exception):
    """The broker went away; whether the message arrived is unknown."""


class Away(Exception):
    """The broker does not answer; nothing went out."""


class Courier:
    def __init__(self, app: Celery) -> None:
        self.app = app
        self._connection: Any = None
        self._producer: Any = None
        self._was_ready = True

    def is_ready(self) -> bool:
        """Whether the broker answers; asked before anything is marked as on its way."""
        try:
            self._reach()
        except Exception as error:  # transports have errors of their own
            self.close()
            if self._was_ready:
                logger.error("the broker of the periodic tasks does not answer: %s", type(error).__name__)
            self._was_ready = False
            return False
        self._was_ready = True
        return True

    def _reach(self) -> None:
        if self._connection is None:
            self._connection = self._opened()
            self._producer = self.app.amqp.Producer(self._connection, auto_declare=False)
        if self._speaks_amqp():
            # A round trip: a connection that was cut would take a message and say nothing.
            self._producer.channel.basic_qos(0, 1, False)

    def _opened(self) -> Any:
        options: dict[str, Any] = {"confirm_publish": True}
        connection = self.app.connection_for_write(connect_timeout=CONNECT_SECONDS)
        if connection.transport.driver_type == AMQP:
            options |= {"read_timeout": CONFIRM_SECONDS, "write_timeout": CONFIRM_SECONDS}
        connection.transport_options = {**(connection.transport_options or {}), **options}
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        return connection

    def _speaks_amqp(self) -> bool:
        return bool(self._connection.transport.driver_type == AMQP)

    def send(self, message: Any) -> None:
        """Returns when the broker has it."""
        args, kwargs, options = read_message(message)
        if self._connection is None and not self.is_ready():
            raise Away(Away.__doc__)
        known: Any = self.app.tasks.get(message.task)
        timing: dict[str, Any] = {"retry": False}
        if self._speaks_amqp():
            timing["confirm_timeout"] = CONFIRM_SECONDS
        lost = (*self._connection.recoverable_connection_errors, OperationalError, TimeoutError)
        try:
            given = {"task_id": str(message.message_id), "producer": self._producer, **options, **timing}
            if known is not None:
                known.apply_async(args, kwargs, **given)
            else:
                self.app.send_task(message.task, args, kwargs, **given)
        except lost as error:
            self.close()
            raise Undelivered(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            # A channel that the broker has closed is of no use to the next message.
            self.close()
            raise Unsendable(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            try:
                connection.collect(socket_timeout=CONNECT_SECONDS)
            except Exception as error:  # it is given up in any case
                logger.debug("the connection was gone: %s", error)


def read_message(message: Any) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Arguments and options as django-celery-beat reads them off a row, and beat's own header."""
    args = _read(message, "args", list)
    kwargs = _read(message, "kwargs", dict)
    names = ("queue", "exchange", "routing_key", "priority")
    options = {name: getattr(message, name) for name in names if getattr(message, name) is not None}
    expires = message.expires or message.expire_seconds
    if expires:
        options["expires"] = expires
    headers = _read(message, "headers", dict)
    options["headers"] = {**headers, "periodic_task_name": message.name, "celery_beat_task": True}
    return args, kwargs, options


def _read(message: Any, name: str, kind: type) -> Any:
    text = getattr(message, name)
    try:
        value = json.loads(text or ("[]" if kind is list else "{}"))
    except ValueError as error:
        raise Unsendable(f"its {name} are not JSON: {error}") from error
    if not isinstance(value, kind):
        raise Unsendable(f"its {name} are not a JSON {'list' if kind is list else 'object'}")
    return value
