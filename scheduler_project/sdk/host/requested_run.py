"""A run that a code base requested, as it is given back to its caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from ..errors import PlatformAway
from .interface import PlatformLink, RequestStatus

FINAL = ("succeeded", "dead", "cancelled", "skipped", "refused")
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 2.0


class RequestedRun:
    """A requested run. Its state is as of the last request; `refresh` and `wait` read it again."""

    id: UUID
    key: str
    # None: at once.
    at: datetime | None
    # `requested` until the platform has handled it, `scheduled` until its instant, then the run's state.
    state: str
    job_id: UUID | None
    run_id: UUID | None
    result: Any
    error: str

    def __init__(self, link: Callable[[], PlatformLink], status: RequestStatus) -> None:
        self._link = link
        self._take(status)

    def __repr__(self) -> str:
        return f"RequestedRun({str(self.id)!r}, {self.state!r})"

    def _take(self, status: RequestStatus) -> None:
        vars(self).update(vars(status))

    @property
    def finished(self) -> bool:
        return self.state in FINAL

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    def refresh(self) -> RequestedRun:
        self._take(self._link().requested(self.id))
        return self

    def wait(self, timeout: float) -> RequestedRun:
        """Wait for the outcome, also while the platform is away; raise TimeoutError when that takes longer."""
        until, pause = time.monotonic() + timeout, MIN_POLL_SECONDS
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
            pause = min(pause * 1.5, MAX_POLL_SECONDS)
        return self

    def cancel(self) -> RequestedRun:
        """Cancel it: it never begins, or its worker stops it. A finished run stays as it is."""
        self._take(self._link().cancel(self.id))
        return self
