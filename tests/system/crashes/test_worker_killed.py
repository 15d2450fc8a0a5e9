"""Whatever of a worker dies in mid-run, the run is tried again and its history says so (promises 1 and 4)."""

import signal
import time
from pathlib import Path

from tests.system.platform import BEAT, DRAIN, LEASE, RECOVERY, Platform, Row, is_dead, send

# Where the lease must not be what helps. How fast a loaded machine starts a process is not the subject either.
LONG_LEASE = {"BEATKEEPER_LEASE_SECONDS": str(10 * LEASE)}
AT_ONCE = 3 * LEASE


def test_a_run_whose_whole_worker_dies_is_claimed_again_after_the_lease(
    platform: Platform, gate: Path
) -> None:
    platform.scheduler()
    first = platform.worker(slots=1)
    job = platform.run_once(until=str(gate))
    platform.wait_for_attempt(1)
    killed_at = time.time()
    first.kill_whole()
    second = platform.worker(slots=1)
    again = platform.wait_for_attempt(2, RECOVERY)
    # Nobody took it from a worker that might live.
    assert again.started_at - killed_at > LEASE - 1.5 * BEAT
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert platform.outcomes(run) == ["lost", "succeeded"]
    names = [attempt["worker_name"] for attempt in platform.attempts(run)]
    assert names == [first.name, second.name]
    platform.assert_one_attempt_at_a_time()


def test_the_death_of_a_pool_child_is_seen_at_once(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    worker = platform.worker(slots=1, **LONG_LEASE)
    job = platform.run_once(until=str(gate))
    for number in (1, 2):
        seen = platform.wait_for_attempt(number)
        assert seen.pid in worker.children()
        killed_at = time.time()
        send(signal.SIGKILL, seen.pid)
        assert platform.wait_for_attempt(number + 1).started_at - killed_at < AT_ONCE
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert_the_guard_reported(platform, run, times=2)
    platform.assert_one_attempt_at_a_time()


def test_the_guard_tells_at_once_that_the_worker_was_killed_beside_it(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    first = platform.worker(slots=1, **LONG_LEASE)
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    guard = first.guard
    platform.worker(slots=1).wait_until_known()
    killed_at = time.time()
    send(signal.SIGKILL, first.pid)
    again = platform.wait_for_attempt(2)
    assert is_dead(seen.pid)
    assert again.started_at - killed_at < AT_ONCE
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert_the_guard_reported(platform, run)
    platform.assert_one_attempt_at_a_time()
    platform.wait(lambda: is_dead(guard), 10, "the guard to leave")


def test_no_body_outlives_its_killed_parent_and_guard(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    first = platform.worker(slots=1)
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    send(signal.SIGKILL, first.guard, first.pid)
    platform.worker(slots=1)
    platform.wait_for_attempt(2, RECOVERY)
    assert is_dead(seen.pid)
    gate.touch()
    assert platform.outcomes(platform.run_of(job, "succeeded")) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()


def test_a_killed_guard_is_replaced_and_the_run_goes_on(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    # Its replacement has to be heard before the fence: how fast a loaded machine starts one is not the subject.
    worker = platform.worker(slots=1, **LONG_LEASE)
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    before, beat = worker.guard, worker.table.header.beats
    send(signal.SIGKILL, before)
    platform.wait(
        lambda: worker.guard != before and worker.table.header.beats > beat, 30, "another guard's beat"
    )
    assert not is_dead(seen.pid)
    gate.touch()
    assert platform.outcomes(platform.run_of(job, "succeeded")) == ["succeeded"]


def test_a_worker_that_is_stopped_gives_its_run_back_uncounted(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    first = platform.worker(slots=1)
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    second = platform.worker(slots=1)
    second.wait_until_known()
    first.process.send(signal.SIGTERM)
    platform.wait(lambda: len(platform.witnessed()) == 2, DRAIN + 10, "the run to start elsewhere")
    assert is_dead(seen.pid)
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert platform.outcomes(run) == ["given_back", "succeeded"]
    assert [attempt["number"] for attempt in platform.attempts(run)] == [1, 1]
    assert run["attempts"] == 1
    platform.assert_one_attempt_at_a_time()
    first.process.wait(20)
    platform.wait(lambda: is_dead(seen.pid) and not first.spool_folders(), 10, "its guard to leave")


def test_a_pool_of_one_worker_recovers_when_it_is_started_again(platform: Platform, gate: Path) -> None:
    """Kill the one worker of a pool: the hold on mass losses must not keep it for longer.

    The new worker must not keep its namesake's claims alive either.
    """
    platform.scheduler()
    worker = platform.worker(slots=2)
    jobs = [platform.run_once(until=str(gate)) for _ in range(2)]
    platform.wait(lambda: len(platform.witnessed()) == 2, 30, "both runs to start")
    killed_at = time.time()
    worker.kill_whole()
    platform.worker(slots=2, name=worker.name).wait_until_known()
    may_start_at = max(killed_at + LEASE, time.time())
    platform.wait(lambda: len(platform.witnessed()) == 4, RECOVERY, "both runs to start again")
    assert max(seen.started_at for seen in platform.witnessed()) - may_start_at < LEASE
    gate.touch()
    for job in jobs:
        assert platform.outcomes(platform.run_of(job, "succeeded")) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()


def assert_the_guard_reported(platform: Platform, run: Row, times: int = 1) -> None:
    """Recovery would have come to the same, later."""
    outcomes = [(attempt["outcome"], attempt["error_type"]) for attempt in platform.attempts(run)]
    assert outcomes == [("lost", "WorkerLost")] * times + [("succeeded", "")]
