"""A worker that stands still for longer than its lease has lost its runs, and knows it when it wakes (promise 4)."""

import signal
from pathlib import Path
from typing import Any

from jobs.models import Job
from tests.system.platform import RECOVERY, Platform, Row, Worker, is_dead, send


def test_a_stopped_parent_has_its_body_killed_before_the_next_attempt(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    frozen = platform.worker(slots=1)
    assert_frozen_worker_loses_its_run(platform, gate, frozen, lambda: [frozen.pid])


def test_a_body_ends_itself_when_its_parent_and_its_guard_stand_still(platform: Platform, gate: Path) -> None:
    platform.scheduler()
    frozen = platform.worker(slots=1)
    assert_frozen_worker_loses_its_run(platform, gate, frozen, lambda: [frozen.pid, frozen.guard])


def test_a_guard_that_stands_still_alone_leaves_no_body_beside_the_next_attempt(
    platform: Platform, gate: Path
) -> None:
    """Nobody beats for its worker, so its run goes elsewhere, or to itself once it has another guard."""
    platform.scheduler()
    worker = platform.worker(slots=1)
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    before, hung = worker.table.header.incarnation, worker.guard
    platform.worker(slots=1).wait_until_known()
    send(signal.SIGSTOP, hung)
    platform.wait_for_attempt(2, RECOVERY)
    assert is_dead(seen.pid)
    worker.wait_until_known(incarnation_not=before)
    assert is_dead(hung)
    gate.touch()
    assert platform.outcomes(platform.run_of(job, "succeeded")) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()


def assert_frozen_worker_loses_its_run(platform: Platform, gate: Path, frozen: Worker, part: Any) -> None:
    job = platform.run_once(until=str(gate))
    seen = platform.wait_for_attempt(1)
    before = frozen.table.header.incarnation
    other = platform.worker(slots=1)
    other.wait_until_known()
    stopped = part()
    send(signal.SIGSTOP, *stopped)
    platform.wait_for_attempt(2, RECOVERY)
    assert is_dead(seen.pid)
    platform.assert_one_attempt_at_a_time()

    history = what_is_recorded(platform, job)
    send(signal.SIGCONT, *stopped)
    frozen.wait_until_known(incarnation_not=before)
    assert what_is_recorded(platform, job) == history
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert platform.outcomes(run) == ["lost", "succeeded"]
    assert [attempt["worker_name"] for attempt in platform.attempts(run)] == [frozen.name, other.name]
    assert_it_works_again(platform, frozen, other)
    platform.assert_one_attempt_at_a_time()


def what_is_recorded(platform: Platform, job: Job) -> list[Any]:
    (live,) = platform.live(job)
    (run,) = platform.runs(job)
    return [live, run, *platform.attempts(run)]


def assert_it_works_again(platform: Platform, woken: Worker, other: Worker) -> None:
    other.process.terminate()
    platform.wait(lambda: not platform.rows(LIVING, other.name), 20, "the other worker to leave")
    run: Row = platform.run_of(platform.run_once(), "succeeded")
    (attempt,) = platform.attempts(run)
    assert attempt["worker_name"] == woken.name
    assert attempt["worker"] == woken.table.header.incarnation


LIVING = "SELECT FROM beatkeeper_worker_node WHERE name = %s AND state IN ('active', 'draining')"
