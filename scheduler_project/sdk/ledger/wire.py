"""What a remote worker and the platform exchange, as JSON. Both ends read and write it with this module.

Unknown fields are ignored: workers and platform are upgraded one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from ..outcomes import Outcome
from ..retries import Verdict
from .interface import ClaimRequest, CompletedClaim, HeartbeatResponse

T = TypeVar("T")


class InvalidMessage(ValueError):
    """A field of the request or the answer cannot be read."""

    def __init__(self, field: str, wrong: str) -> None:
        super().__init__(f"{field}: {wrong}")
        self.field, self.wrong = field, wrong


@dataclass(frozen=True)
class RunEnding:
    """A `CompletedClaim` whose claim is only identified: the platform knows the rest better."""

    run_id: UUID
    claim_seq: int
    token: UUID
    incarnation: UUID
    outcome: Outcome
    verdict: Verdict
    # Its log as a gzip member in base64, if that is small and was not sent yet.
    log: str = ""


@dataclass(frozen=True)
class ClaimBody:
    request: ClaimRequest
    again: bool = False


@dataclass(frozen=True)
class ReportBody:
    ended: Sequence[RunEnding]
    request: ClaimRequest | None = None


@dataclass(frozen=True)
class DeclareBody:
    pool: str
    tenant: str
    declarations: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class DeclarationNames:
    tenant: str
    names: Sequence[str]


@dataclass(frozen=True)
class LeaveBody:
    incarnation: UUID


@dataclass(frozen=True)
class HeartbeatReply:
    """The answer to a heartbeat, and the database's time when it was given."""

    response: HeartbeatResponse
    at: datetime | None = None


def end_of(ended: CompletedClaim, log: str = "") -> RunEnding:
    claim, outcome = ended.claim, replace(ended.outcome, log=None)
    return RunEnding(
        claim.run_id, claim.claim_seq, claim.token, claim.incarnation, outcome, ended.verdict, log
    )


def packed(value: Any) -> Any:
    """Write dataclasses as objects, and ids and instants as text; the rest is JSON already."""
    if is_dataclass(value):
        return {field.name: packed(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: packed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [packed(item) for item in value]
    return value


def unpacked(kind: type[T], value: Any, at: str = "") -> T:
    """Read the value as a `kind`; raise InvalidMessage with the field that is wrong."""
    return cast(T, _read(kind, value, at))


@lru_cache
def _fields_of(kind: type) -> list[tuple[str, Any, bool]]:
    """Return name and type of each field, and whether it is required."""
    types = get_type_hints(kind)
    return [
        (field.name, types[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    ]


def _read(kind: Any, value: Any, at: str) -> Any:
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _read_object(kind, value, at)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        [only] = [one for one in get_args(kind) if one is not type(None)]
        return None if value is None else _read(only, value, at)
    if origin is not None:
        return _read_many(origin, get_args(kind), value, at)
    return _read_plain(kind, value, at)


def _read_object(kind: Any, value: Any, at: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidMessage(at or "body", "is not an object")
    given = {}
    for name, type_, needed in _fields_of(kind):
        below = f"{at}.{name}".lstrip(".")
        if name in value:
            given[name] = _read(type_, value[name], below)
        elif needed:
            raise InvalidMessage(below, "is missing")
    return kind(**given)


def _read_many(origin: Any, kinds: tuple[Any, ...], value: Any, at: str) -> Any:
    if issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise InvalidMessage(at, "is not an object")
        return {name: _read(kinds[1], item, f"{at}.{name[:60]}") for name, item in value.items()}
    if not isinstance(value, list):
        raise InvalidMessage(at, "is not a list")
    items = [_read(kinds[0], item, f"{at}[{number}]") for number, item in enumerate(value)]
    return tuple(items) if origin is tuple else items


def _read_plain(kind: Any, value: Any, at: str) -> Any:
    if kind is float and type(value) in (int, float):
        with suppress(OverflowError):
            if math.isfinite(number := float(value)):
                return number
    elif kind is int and isinstance(value, float) and value.is_integer():
        # To JSON 3.0 is the same number as 3.
        return int(value)
    elif kind in (UUID, datetime) and isinstance(value, str):
        return _read_text(kind, value, at)
    elif type(value) is kind:
        return value
    raise InvalidMessage(at, f"is not {DESCRIPTIONS.get(kind, 'what it should be')}")


def _read_text(kind: Any, value: str, at: str) -> Any:
    try:
        read = UUID(value) if kind is UUID else datetime.fromisoformat(value.upper().replace("Z", "+00:00"))
    except ValueError:
        raise InvalidMessage(at, f"is not {DESCRIPTIONS[kind]}") from None
    if isinstance(read, datetime) and read.tzinfo is None:
        raise InvalidMessage(at, "is an instant without a zone")
    return read


DESCRIPTIONS = {
    UUID: "a UUID",
    datetime: "an instant",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
