"""Asks a body in this process to stop: the guard's SIGUSR1 becomes an exception in the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from .hand import Hand
from .outcomes import CANCELLED, TIMEOUT, RunCancelled, TimeLimitReached


class SoftTimeLimit(TimeLimitReached, SoftTimeLimitExceeded):
    """The run reached its time limit; what a Celery task may already know how to catch."""


class RunStopped(Exception):
    """The worker has to stop this run."""


class Interrupts:
    """Raises once per run, only while its body runs, and only if the guard means the claim in hand."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._armed = False
        self._previous: Any = None

    def __enter__(self) -> Interrupts:
        # The guard signals only a held slot, so the handler stands before the slot says so.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGUSR1, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGUSR1, self._previous)

    def during(self, body: Callable[..., Any], *args: Any) -> Any:
        try:
            self._armed = True
            return body(*args)
        finally:
            self._armed = False

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        reason = self._hand.kill_reason
        if not self._armed or not reason:
            return
        self._armed = False
        if reason == TIMEOUT:
            raise SoftTimeLimit("time limit reached")
        if reason == CANCELLED:
            raise RunCancelled("cancelled")
        raise RunStopped(reason)
