"""What passes return is kept: the loops hand it to observers, and the status writes the totals."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from runs.models import SchedulerNode
from runs.scheduler.loop import Loop
from runs.scheduler.observer import FinishedPass, PassKind, PassTotals
from runs.scheduler.partitions.batch_size import BatchSize
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.status import SchedulerStatus, StatusLoop
from runs.scheduler.trigger_loop import TriggerLoop
from tests.races.staging import dsn
from tests.runs.scheduler.test_beat import Passes
from tests.support.factories import make_due, make_job, now
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)


@pytest.fixture
def passes() -> Iterator[Passes]:
    yield Passes()


def test_totals_add_up_by_kind() -> None:
    totals = PassTotals()
    for seconds in (0.5, 0.25):
        totals(FinishedPass(PassKind.TRIGGER, {"runs": 2, "skipped": 1}, seconds))
    totals(FinishedPass(PassKind.DISPATCH, {"queued": 3}, 0.125))
    assert totals.as_json() == {
        "trigger": {
            "passes": 2,
            "seconds": 0.75,
            "longest_seconds": 0.5,
            "counts": {"runs": 4, "skipped": 2},
        },
        "dispatch": {"passes": 1, "seconds": 0.125, "longest_seconds": 0.125, "counts": {"queued": 3}},
    }


def test_the_loop_hands_over_each_pass_once_also_of_a_step_that_fails() -> None:
    class Failing(Passes):
        def step(self) -> float:
            self.finished.append(FinishedPass(PassKind.DISPATCH, {"queued": self.count}, 0.1))
            return super().step()

    work, seen = Failing(), list[FinishedPass]()

    def broken(finished: FinishedPass) -> None:
        raise RuntimeError("it cannot count")

    loop = Loop("test", dsn(), work.begin, [broken, seen.append])
    work.upset = RuntimeError("the second pool failed")
    loop.start()
    wait_until(lambda: work.count > 3, 10, "passes after the failure")
    loop.stopping = True
    loop.join(5)
    assert [one.counts["queued"] for one in seen][:3] == [0, 0, 1], "the failed step, and those after it"
    assert len(seen) == work.count + 1


def test_a_trigger_pass_reaches_the_status_of_its_scheduler() -> None:
    make_due(make_job(), now() - SECOND)
    totals = PassTotals()
    loop = Loop(
        "trigger", dsn(), lambda session: TriggerLoop(session, BatchSize("t", 100), lambda: None), [totals]
    )
    loop.start()
    wait_until(lambda: totals.as_json().get("trigger"), 10, "a pass")
    loop.stopping = True
    loop.join(5)
    with LockSession(dsn(), "status") as session:
        StatusLoop(session, SchedulerStatus([loop], totals)).step()
    passes = SchedulerNode.objects.get().passes
    assert passes["trigger"]["counts"]["runs"] == 1
    assert passes["trigger"]["passes"] >= 1 and passes["trigger"]["seconds"] > 0
    assert "catch_up" in passes
