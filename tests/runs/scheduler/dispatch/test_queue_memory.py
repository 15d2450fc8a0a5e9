"""What dispatch remembers of queues that are idle between two runs: how long these took, and nothing of shares."""

import pytest

from runs.scheduler.dispatch import queue_memory
from runs.scheduler.dispatch.fair_share import QueueLoad
from runs.scheduler.dispatch.queue_memory import QueueMemories
from scheduler_project.sdk.execution.batching import MAX_BATCH

TENANT = 7
EVERY = 0.2


def per_place(memories: QueueMemories, at: float, tenant: int = TENANT) -> int:
    """Return how many runs of a queue that comes back are expected to be claimed at once."""
    load = QueueLoad(tenant)
    memories.look({tenant: load}, at)
    return load.per_place


def run_one_by_one(
    memories: QueueMemories, count: int, at: float, takes: float = 0.0, tenant: int = TENANT
) -> float:
    """Let a queue have one run at a time, and be idle before the next; return the instant after the last."""
    for _ in range(count):
        memories.look({tenant: QueueLoad(tenant, queued=1)}, at)
        if takes:
            memories.look({tenant: QueueLoad(tenant, running=1)}, at + 0.01)
            memories.look({tenant: QueueLoad(tenant, running=1)}, at + takes)
        memories.look({}, at + takes + 0.1)
        at += takes + EVERY
    return at


def test_short_runs_of_a_queue_that_is_idle_between_them_fill_a_place_together() -> None:
    memories = QueueMemories()
    assert per_place(memories, 1.0) == 1
    at = run_one_by_one(memories, 20, 2.0)
    assert 10 < per_place(memories, at) <= 20


def test_no_more_are_expected_than_a_claim_takes() -> None:
    memories = QueueMemories()
    at = run_one_by_one(memories, 500, 1.0)
    assert per_place(memories, at) == MAX_BATCH


def test_long_runs_of_such_a_queue_have_a_place_each() -> None:
    memories = QueueMemories()
    assert per_place(memories, run_one_by_one(memories, 20, 1.0, takes=1.0)) == 1


def test_a_long_run_counts_at_once_whatever_is_remembered_of_short_ones() -> None:
    memories = QueueMemories()
    at = run_one_by_one(memories, 20, 1.0)
    load = QueueLoad(TENANT, running=1)
    for later in (0.0, 0.3):
        memories.look({TENANT: load}, at + later)
    assert load.per_place == 1


def test_after_a_minute_it_is_forgotten() -> None:
    memories = QueueMemories()
    at = run_one_by_one(memories, 20, 1.0)
    assert per_place(memories, at + 60) == 1


def test_of_too_many_idle_queues_the_one_that_ran_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_memory, "MAX_LENGTHS", 2)
    memories, at = QueueMemories(), 1.0
    for tenant in (TENANT, TENANT + 1, TENANT + 2):
        at = run_one_by_one(memories, 10, at, tenant=tenant)
    assert [per_place(memories, at, TENANT + number) > 1 for number in (0, 2)] == [False, True]


def test_a_queue_that_was_idle_has_no_share_saved_up() -> None:
    """It starts where the least served of the others is."""
    memories, busy = QueueMemories(), QueueLoad(1, running=4)
    memories.look({1: busy, TENANT: QueueLoad(TENANT, running=1)}, 1.0)
    for at in (10.0, 20.0):
        memories.look({1: busy}, at)
    others, back = memories[1].served, QueueLoad(TENANT)
    memories.look({1: busy, TENANT: back}, 30.0)
    assert back.served == others > 0
