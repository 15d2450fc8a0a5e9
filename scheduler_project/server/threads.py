"""Run what blocks in a few threads, with a bounded queue before them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    """Count what was let in, in the event loop alone: no lock is needed."""

    def __init__(self, name: str, *, in_turn: bool = True) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._free = THREADS + MAX_WAITING
        self._turn = asyncio.Semaphore(1 if in_turn else THREADS)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._free <= 0:
            raise QueueFull
        return await self.go_on(function, *args, **kwargs)

    async def go_on(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the rest of what was let in: it waits, however many wait, and is not refused halfway."""
        self._free -= 1
        try:
            async with self._turn:
                answer = asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))
                await asyncio.wait([answer], timeout=TURN_SECONDS)
            return await answer
        finally:
            self._free += 1

    async def iterate(self, parts: Iterator[Any]) -> AsyncIterator[Any]:
        """Take a thread for each part only, not for the time in which the client reads it."""
        end = object()
        while (part := await self.go_on(next, parts, end)) is not end:
            yield part
