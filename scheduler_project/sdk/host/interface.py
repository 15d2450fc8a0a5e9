"""What a code base requests from the platform: declared jobs, and runs at once or at an instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from ..declarations.checks import as_json
from ..declarations.plan import DeclaredJob

Declarations = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class NewRunRequest:
    """A run that code requests. The same key again, with the same content, is the same request."""

    key: str
    spec: Mapping[str, Any]
    at: datetime | None = None


@dataclass(frozen=True)
class RequestStatus:
    """A request as the platform has it."""

    id: UUID
    state: str
    key: str = ""
    at: datetime | None = None
    job_id: UUID | None = None
    run_id: UUID | None = None
    result: Any = None
    error: str = ""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> RequestStatus:
        """Read a row of the database or an answer of the API."""
        at = row.get("at") or None
        return cls(
            id=UUID(str(row["id"])),
            state=str(row["state"]),
            key=str(row["key"]),
            at=datetime.fromisoformat(at.replace("Z", "+00:00")) if isinstance(at, str) else at,
            job_id=UUID(str(row["job"])) if row.get("job") else None,
            run_id=UUID(str(row["run"])) if row.get("run") else None,
            result=row.get("result"),
            error=str(row.get("error_line") or ""),
        )


class PlatformLink(Protocol):
    def declared(self) -> list[DeclaredJob]:
        """List the declared jobs of the pool, of every code base."""

    def declare(
        self, declarations: Declarations, *, again: Sequence[str] = (), withdraw: Sequence[str] = ()
    ) -> list[DeclaredJob]:
        """Declare jobs, wait a bounded time until they are applied, and return all of the pool.

        `again` names those that are applied again although nothing in them changed, and `withdraw` those to cancel.
        """

    def request(self, new: NewRunRequest) -> RequestStatus: ...

    def requested(self, request_id: UUID) -> RequestStatus: ...

    def cancel(self, request_id: UUID) -> RequestStatus: ...


def as_input(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write the arguments as JSON carries them; refuse here, where they were given, what JSON cannot."""
    given: dict[str, Any] = {}
    if args is not None:
        given["args"] = list(args)
    if kwargs is not None:
        given["kwargs"] = dict(kwargs)
    return {name: as_json(name, value) for name, value in given.items()}
