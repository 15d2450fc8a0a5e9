"""A scheduler that was stopped and resumes, or was cut off, has lost its slices and acts on none of them."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from jobs.models import JOB_SLICES
from runs.models import LiveRun, Run
from runs.scheduler.broker.publisher import Publishers
from runs.scheduler.dispatch_loop import DispatchLoop
from runs.scheduler.partitions.batch_size import BatchSize
from runs.scheduler.partitions.lock_session import JOBS, POOLS, RECOVERY, LockSession, LostLocks
from runs.scheduler.partitions.slices import SliceSet
from runs.scheduler.recovery.recover import RecoveryMemory
from runs.scheduler.recovery_loop import RecoveryLoop
from runs.scheduler.trigger_loop import TriggerLoop
from runs.states import LiveState
from tests.races.staging import dsn
from tests.support.factories import make_job, make_run, make_worker, now
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
Loop = TriggerLoop | DispatchLoop | RecoveryLoop
Begin = Callable[[LockSession], Loop]
LOOPS: dict[str, tuple[Begin, int]] = {
    "trigger": (lambda session: TriggerLoop(session, BatchSize("trigger", 100), lambda: None), JOBS),
    "dispatch": (lambda session: DispatchLoop(session, Publishers({})), POOLS),
    "recovery": (lambda session: RecoveryLoop(session, RecoveryMemory(), lambda: None), RECOVERY),
}


@pytest.fixture
def other() -> Iterator[LockSession]:
    with LockSession(dsn(), "other", 30.0) as session:
        yield session


def ended(watcher: LockSession, pid: int) -> bool:
    found = watcher.connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid])
    return not found.fetchall()


def make_work_for_all() -> None:
    job = make_job(next_run_at=now() - timedelta(seconds=1))
    make_worker(job.pool)
    make_run(job)
    make_run(job, LiveState.DELAYED, wake_at=now() - timedelta(seconds=1))


def what_is() -> list[Any]:
    return [*Run.objects.order_by("id").values(), *LiveRun.objects.order_by("run_id").values()]


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_resumes_after_its_session_ended_changes_nothing(name: str, other: LockSession) -> None:
    begin, kind = LOOPS[name]
    with LockSession(dsn(), name, 0.6) as session:
        resumed = begin(session)
        make_work_for_all()
        resumed.balance()
        held = set(resumed.slices.held)
        assert held
        before = what_is()
        # It stands still, as SIGSTOP makes it; PostgreSQL ends the session, and another takes the slices.
        wait_until(lambda: ended(other, session.pid), 10, "the end of the idle session")
        taken = SliceSet(other, kind, held)
        taken.balance()
        assert taken.held == held
        with pytest.raises(psycopg.OperationalError):
            resumed.step()
        assert what_is() == before
        with pytest.raises(psycopg.OperationalError):
            resumed.step()


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_whose_statements_reach_another_session_changes_nothing(name: str, other: LockSession) -> None:
    """As behind a pooler that came to stand in between: the session answers, and it is not ours."""
    begin, _ = LOOPS[name]
    work = begin(other)
    make_work_for_all()
    work.balance()
    before = what_is()
    other.pid += 1
    with pytest.raises(LostLocks):
        for _ in range(3):
            work.step()
    assert what_is() == before


def test_a_session_that_ends_in_the_middle_of_a_pass_leaves_nothing_half_done(other: LockSession) -> None:
    make_work_for_all()
    before = what_is()
    with LockSession(dsn(), "trigger", 30.0) as session:
        triggering = TriggerLoop(session, BatchSize("trigger", 100), lambda: None)
        assert triggering.balance() and triggering.holds() == JOB_SLICES
        execute = psycopg.Cursor.execute

        def cut_off(self: Any, query: Any, *values: Any, **options: Any) -> Any:
            if "UPDATE beatkeeper_job_clock" in str(query):
                other.connection.execute("SELECT pg_terminate_backend(%s)", [session.pid])
            return execute(self, query, *values, **options)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(psycopg.Cursor, "execute", cut_off)
            with pytest.raises(psycopg.OperationalError):
                triggering.step()
    assert what_is() == before
