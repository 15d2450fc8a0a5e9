"""Run what blocks in a few threads, with a bounded queue before them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 4
MAX_WAITING = 100
# Python runs one thread at a time, and requests that share it all end late. So each has the process for itself, until
# it has taken so long that it may be waiting for something else.
TURN_SECONDS = 0.1


class QueueFull(Exception):
    """As many requests wait for a thread as may wait."""


class Threads:
    """Count free places in the event loop alone, so that no lock is needed."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._free = THREADS + MAX_WAITING
        self._turn = asyncio.Semaphore()

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._free <= 0:
            raise QueueFull
        return await self.go_on(function, *args, **kwargs)

    async def go_on(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the rest of what was let in: it waits, however many wait, and is not refused halfway."""
        self._free -= 1
        try:
            with ExitStack() as turn:
                await self._turn.acquire()
                turn.callback(self._turn.release)
                # Whichever comes first, the end of the request or of its time, gives the turn to the next.
                late = asyncio.get_running_loop().call_later(TURN_SECONDS, turn.close)
                turn.callback(late.cancel)
                work = self._executor.submit(function, *args, **kwargs)
                return await asyncio.wrap_future(work)
        finally:
            self._free += 1

    async def iterate(self, parts: Iterator[Any]) -> AsyncIterator[Any]:
        """Take a thread for each part only, not for the time in which the client reads it."""
        end = object()
        while (part := await self.go_on(next, parts, end)) is not end:
            yield part
