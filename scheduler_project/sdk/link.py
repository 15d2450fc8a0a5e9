"""What a code base asks of the platform, besides its workers: declared jobs, and runs at once or at an instant."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from .errors import PlatformAway
from .plan import Declared

FINAL = ("succeeded", "dead", "cancelled", "skipped", "refused")
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.1, 2.0


@dataclass(frozen=True)
class Asked:
    """A run that code asks for. The same key again, with the same words, is the same request."""

    key: str
    spec: Mapping[str, Any]
    at: datetime | None = None


@dataclass(frozen=True)
class Answered:
    """What the platform says of a request."""

    id: UUID
    state: str
    key: str = ""
    at: datetime | None = None
    job_id: UUID | None = None
    run_id: UUID | None = None
    result: Any = None
    error: str = ""


class Link(Protocol):
    def declared(self) -> list[Declared]:
        """All of the pool, of whichever code base."""

    def declare(
        self,
        declarations: Sequence[dict[str, Any]],
        *,
        again: Sequence[str] = (),
        withdraw: Sequence[str] = (),
    ) -> list[Declared]:
        """Waits until they are applied, or for a bounded time; says what came of them.

        `again` names those that are put back as declared though they were declared so before.
        """

    def request(self, asked: Asked) -> Answered: ...

    def requested(self, request_id: UUID) -> Answered: ...

    def cancel(self, request_id: UUID) -> Answered: ...


class RequestedRun:
    """A run that was asked for. Its state is as of the last look; `refresh` and `wait` look again."""

    def __init__(self, link: Callable[[], Link], answered: Answered) -> None:
        self._link, self._answered = link, answered

    def __repr__(self) -> str:
        return f"RequestedRun({str(self.id)!r}, {self.state!r})"

    @property
    def id(self) -> UUID:
        return self._answered.id

    @property
    def key(self) -> str:
        return self._answered.key

    @property
    def at(self) -> datetime | None:
        """None: at once."""
        return self._answered.at

    @property
    def state(self) -> str:
        """`requested` until the platform has looked at it, `scheduled` until its instant, then the run's state."""
        return self._answered.state

    @property
    def job_id(self) -> UUID | None:
        return self._answered.job_id

    @property
    def run_id(self) -> UUID | None:
        return self._answered.run_id

    @property
    def result(self) -> Any:
        return self._answered.result

    @property
    def error(self) -> str:
        return self._answered.error

    @property
    def finished(self) -> bool:
        return self.state in FINAL

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    def refresh(self) -> RequestedRun:
        self._answered = self._link().requested(self.id)
        return self

    def wait(self, timeout: float) -> RequestedRun:
        """Until it has its outcome; TimeoutError when that takes longer. A platform that is away is waited for."""
        until, pause = time.monotonic() + timeout, FIRST_LOOK_SECONDS
        while not self.finished:
            try:
                self.refresh()
            except PlatformAway:
                if time.monotonic() >= until:
                    raise
            if self.finished:
                break
            if time.monotonic() >= until:
                raise TimeoutError(f"The run {self.key} is {self.state} after {timeout:g} s")
            time.sleep(min(pause, max(0.0, until - time.monotonic())))
            pause = min(pause * 1.5, LONGEST_LOOK_SECONDS)
        return self

    def cancel(self) -> RequestedRun:
        """It never begins, or its worker is told; a finished one stays as it is."""
        self._answered = self._link().cancel(self.id)
        return self


def as_input(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was given, as JSON will carry it. A value that JSON has no word for is refused here, where it was given."""
    given: dict[str, Any] = {}
    if args is not None:
        given["args"] = list(args)
    if kwargs is not None:
        given["kwargs"] = dict(kwargs)
    for name, value in given.items():
        try:
            given[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} cannot be written as JSON: {error}") from None
    return given
