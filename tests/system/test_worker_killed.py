"""Whatever of a worker dies in mid-run, the run is tried again and its history says so (promises 1 and 4)."""

import signal
from pathlib import Path

from tests.system.platform import LEASE, RECOVERY, Platform, is_dead, send


def test_a_run_whose_whole_worker_dies_is_claimed_again_after_the_lease(
    platform: Platform, gate: Path
) -> None:
    platform.scheduler()
    first = platform.worker(slots=1)
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    first.kill_whole()
    second = platform.worker(slots=1)
    again = platform.wait_for_attempt(2, RECOVERY)
    assert again.started_at - seen.last_seen_at > LEASE - 2  # nobody took it from a worker that might live
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert platform.outcomes(run) == ["lost", "succeeded"]
    names = [attempt["worker_name"] for attempt in platform.attempts(run)]
    assert names == [first.name, second.name]
    platform.assert_one_attempt_at_a_time()


def test_the_death_of_a_pool_child_is_seen_at_once(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    worker = platform.worker(slots=1)
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    assert seen.pid in worker.children()
    send(signal.SIGKILL, seen.pid)
    again = platform.wait_for_attempt(2)
    assert again.started_at - seen.last_seen_at < LEASE / 2
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert platform.outcomes(run) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()


def test_the_guard_tells_at_once_that_the_worker_was_killed_beside_it(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    first = platform.worker(slots=1)
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    guard = first.guard
    platform.worker(slots=1).wait_until_known()
    send(signal.SIGKILL, first.pid)
    again = platform.wait_for_attempt(2)
    assert is_dead(seen.pid)
    assert again.started_at - seen.last_seen_at < LEASE / 2
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert platform.outcomes(run) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()
    platform.wait(lambda: is_dead(guard), 10, "the guard to leave")


def test_a_pool_of_one_worker_recovers_when_it_is_started_again(platform: Platform, gate: Path) -> None:
    """A fifth of a pool of one is gone with its one worker; the brake for mass losses must not hold it."""
    platform.scheduler()
    worker = platform.worker(slots=2)
    jobs = [platform.run_once(until=str(gate)) for _ in range(2)]
    platform.wait(lambda: len(platform.witnessed()) == 2, 30, "both runs to start")
    worker.kill_whole()
    platform.worker(slots=2)
    platform.wait(lambda: len(platform.witnessed()) == 4, RECOVERY, "both runs to start again")
    gate.touch()
    for job in jobs:
        assert platform.outcomes(platform.run_of(job, "succeeded")) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()
