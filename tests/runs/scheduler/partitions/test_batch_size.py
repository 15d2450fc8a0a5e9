"""No pass without a bound on its time: what takes too long is halved, and grows again slowly."""

from datetime import timedelta

import psycopg
import pytest
from psycopg import errors

from runs.models import LiveRun
from runs.scheduler.partitions import batch_size as pace
from runs.scheduler.partitions.batch_size import BatchSize
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.recovery.recover import RecoveryMemory
from runs.scheduler.trigger_loop import TriggerLoop
from tests.races.staging import dsn, second_connection
from tests.support.factories import make_job, now


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MAX_PASS_SECONDS", 3600.0)


def passes(paced: BatchSize, count: int, error: type[psycopg.Error] | None = None) -> None:
    for _ in range(count):
        with paced.one_pass():
            if error is not None:
                raise error("staged")


@pytest.mark.parametrize("error", [errors.QueryCanceled, errors.LockNotAvailable, errors.DeadlockDetected])
def test_a_time_out_halves_and_is_no_failure(error: type[psycopg.Error]) -> None:
    paced = BatchSize("test", 1000)
    passes(paced, 3, error)
    assert paced.size == 125


def test_a_pass_that_took_too_long_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MAX_PASS_SECONDS", -1.0)
    paced = BatchSize("test", 1000)
    passes(paced, 2)
    assert paced.size == 250


def test_it_grows_again_slowly_and_never_beyond_the_most() -> None:
    paced = BatchSize("test", 1000)
    passes(paced, 1, errors.QueryCanceled)
    passes(paced, 1)
    assert 500 < paced.size < 600
    passes(paced, 100)
    assert paced.size == 1000


def test_a_single_row_that_times_out_is_the_end_of_the_session() -> None:
    paced = BatchSize("test", 4)
    passes(paced, 2, errors.QueryCanceled)
    assert paced.size == 1
    with pytest.raises(errors.QueryCanceled):
        passes(paced, 1, errors.QueryCanceled)


def test_a_database_clock_that_is_set_back_stops_nothing_in_recovery() -> None:
    memory = RecoveryMemory()
    assert memory.is_due("claims", 1.0, now())
    assert not memory.is_due("claims", 1.0, now())
    assert memory.is_due("claims", 1.0, now() - timedelta(hours=1))
    assert not memory.is_due("claims", 1.0, now() - timedelta(hours=1))


def test_other_errors_are_not_its_business() -> None:
    paced = BatchSize("test", 4)
    with pytest.raises(errors.UndefinedTable):
        passes(paced, 1, errors.UndefinedTable)
    assert paced.size == 4


def test_a_trigger_that_waits_too_long_keeps_its_slices_and_takes_on_less(transactional_db: None) -> None:
    for _ in range(8):
        make_job(next_run_at=now() - timedelta(seconds=1))
    with LockSession(dsn(), "test", 0.6) as session:
        paced = BatchSize("trigger", 100)
        triggering = TriggerLoop(session, paced, lambda: None)
        with second_connection() as other:
            other.execute("LOCK TABLE beatkeeper_live_run IN ACCESS EXCLUSIVE MODE")
            assert triggering.step() == 0.0
            assert triggering.step() == 0.0
        assert paced.size == 25
        assert triggering.holds() == 64 and session.pid == session.connection.info.backend_pid
        # Fewer than slices: some slices at a time, until all had their turn.
        for _ in range(60):
            triggering.step()
        assert LiveRun.objects.count() == 8


@pytest.mark.parametrize("error", [errors.IdleInTransactionSessionTimeout, psycopg.OperationalError])
def test_a_pass_that_cost_its_session_takes_on_less_in_the_next_one(error: type[psycopg.Error]) -> None:
    paced = BatchSize("test", 1000)
    with pytest.raises(error):
        passes(paced, 1, error)
    assert paced.size == 500
