"""Keep who is acting: set by the middleware, the key authentication or a worker's ledger, otherwise the system."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from auditlog.models import ActorKind

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class Actor(NamedTuple):
    kind: ActorKind
    name: str


SYSTEM = Actor(ActorKind.SYSTEM, "system")


@dataclass
class Acting:
    # Asked only when an entry is written, so that a request without one reads no session.
    who: Callable[[], Actor] = lambda: SYSTEM
    request_id: str = ""
    address: str | None = None


_acting: ContextVar[Acting | None] = ContextVar("beatkeeper_acting", default=None)


def current() -> Acting:
    return _acting.get() or Acting()


def current_actor() -> Actor:
    return current().who()


@contextmanager
def acting(acting: Acting) -> Iterator[Acting]:
    token = _acting.set(acting)
    try:
        yield acting
    finally:
        _acting.reset(token)


def acting_as(kind: ActorKind, name: str) -> AbstractContextManager[Acting]:
    """Act as somebody outside of a request: in a command, a pass, a worker's declarations."""
    return acting(Acting(who=lambda: Actor(kind, name)))


def identify(kind: ActorKind, name: str) -> None:
    """Set the actor of the current request, once it is authenticated."""
    if entered := _acting.get():
        entered.who = lambda: Actor(kind, name)


def clean_request_id(given: str) -> str:
    """Keep a caller's own request id if it cannot break a log line."""
    return given if REQUEST_ID.fullmatch(given) else uuid4().hex
