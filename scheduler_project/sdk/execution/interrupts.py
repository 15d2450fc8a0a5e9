"""The request to stop a body in this process: the guard's SIGUSR1 becomes an exception in the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from ..outcomes import CANCELLED, TIMEOUT, RunCancelled, TimeLimitReached
from ..shared.owned_slot import OwnedSlot


class SoftTimeLimit(TimeLimitReached, SoftTimeLimitExceeded):
    """The run reached its time limit. A Celery task may already know how to catch it."""


class RunStopped(Exception):
    """The worker has to stop this run."""


class Interrupts:
    """Raise once per run, only while its body runs, and only if the guard means the claim at work."""

    def __init__(self, owned_slot: OwnedSlot) -> None:
        self._owned_slot = owned_slot
        self._armed = False
        self._previous: Any = None

    def __enter__(self) -> Interrupts:
        # The handler stands before the slot is held: the guard signals only a held slot, and without a handler the
        # signal would end this process.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGUSR1, self._interrupt)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGUSR1, self._previous)

    def during(self, body: Callable[..., Any], *args: Any) -> Any:
        # Armed inside of `try`: a signal between the two would leave it armed, and raise in what comes after the body.
        try:
            self._armed = True
            return body(*args)
        finally:
            self._armed = False

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        # The reason names the claim at work: a signal for the run before, which ended meanwhile, does nothing.
        reason = self._owned_slot.kill_reason
        if not self._armed or not reason:
            return
        self._armed = False
        if reason == TIMEOUT:
            raise SoftTimeLimit("time limit reached")
        if reason == CANCELLED:
            raise RunCancelled("cancelled")
        raise RunStopped(reason)
