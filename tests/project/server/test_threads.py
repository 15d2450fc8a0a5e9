"""Let no more wait for a thread than may, and refuse nothing that was let in."""

import asyncio
import threading
import time
from typing import Any

import pytest

from scheduler_project.server import threads
from scheduler_project.server.threads import QueueFull, Threads


def test_no_more_requests_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THREADS", 1)
    monkeypatch.setattr(threads, "MAX_WAITING", 1)
    go_on = threading.Event()

    async def three() -> list[Any]:
        few = Threads("few")
        running = [asyncio.create_task(few.run(go_on.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await few.run(go_on.wait)
        go_on.set()
        answers = await asyncio.gather(*running)
        return [*answers, await few.run(int)]

    assert asyncio.run(three()) == [True, True, 0]


def test_an_answer_that_has_begun_is_not_cut_when_too_many_requests_wait() -> None:
    async def read() -> list[int]:
        threads = Threads("few")
        threads._free = 0
        return [part async for part in threads.iterate(iter([1, 2]))]

    assert asyncio.run(read()) == [1, 2]


def test_a_request_has_the_process_for_itself() -> None:
    running: list[int] = []

    def note() -> int:
        running.append(1)
        together = len(running)
        time.sleep(0.01)
        running.pop()
        return together

    async def four() -> list[int]:
        few = Threads("few")
        return await asyncio.gather(*(few.run(note) for _ in range(4)))

    assert asyncio.run(four()) == [1, 1, 1, 1]


def test_a_request_that_takes_long_is_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "TURN_SECONDS", 0.01)
    answered = threading.Event()

    async def both() -> list[Any]:
        few = Threads("few")
        return list(await asyncio.gather(few.run(answered.wait, 10), few.run(answered.set)))

    assert asyncio.run(both()) == [True, None]
