"""The trigger loop as a scheduler runs it: what was missed comes soon, and never before what is due."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from jobs.models import Effect, Job, Suspension, SuspensionKind
from runs.models import MissedSpan, Run
from runs.scheduler.partitions.batch_size import BatchSize
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.scan_pace import RECENT_SCANS
from runs.scheduler.trigger_loop import TriggerLoop
from runs.sql import Connection, Row, rows
from tests.races.staging import dsn
from tests.support.factories import make_due, make_job, now
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def session() -> Iterator[LockSession]:
    with LockSession(dsn(), "loop", 30) as session:
        yield session


def make_behind(**fields: object) -> Job:
    """Make a daily job that missed its last time."""
    anchor = now() - 1.5 * DAY
    spec = {
        "schedule": {"every": 86_400},
        "anchor_at": anchor,
        "catch_up": {"policy": "all", "window": 86_400},
    }
    return make_job(next_run_at=anchor + DAY, spec={**spec, **fields})


def repeat(work: TriggerLoop, until: Callable[[], bool]) -> None:
    def step() -> bool:
        time.sleep(min(work.step(), 0.05))
        return until()

    wait_until(step, what="the loop to get there", interval=0)


@pytest.mark.parametrize("ends_by_itself", [False, True], ids=["lifted", "its end has come"])
@pytest.mark.parametrize("effect", [Effect.CATCH_UP, Effect.RUN_AFTER])
def test_a_daily_job_runs_as_soon_as_its_stop_is_over(
    session: LockSession, effect: Effect, ends_by_itself: bool
) -> None:
    job, suspension = (
        make_behind(),
        Suspension(kind=SuspensionKind.PAUSE, effect=effect, begins_at=now() - 2 * DAY),
    )
    suspension.tenant = job.tenant
    suspension.ends_at = now() + SECOND if ends_by_itself else None
    suspension.save()
    work = TriggerLoop(session, BatchSize("trigger", 2000), lambda: None)
    repeat(work, lambda: MissedSpan.objects.filter(job=job, state="open").exists())
    if not ends_by_itself:
        suspension.lifted_at = now()
        suspension.save(update_fields=["lifted_at"])
    repeat(work, lambda: Suspension.objects.filter(pk=suspension.pk, settled_at__isnull=False).exists())
    repeat(work, lambda: Run.objects.filter(job=job).exists())
    over_at = suspension.lifted_at or suspension.ends_at
    assert over_at is not None
    run = Run.objects.get(job=job)
    assert (run.trigger, run.planned_at) == ("catch_up", job.spec.anchor_at + DAY)
    # A second is meant; what the machine does besides is not ours.
    assert timedelta(0) <= run.created_at - over_at < 10 * SECOND


def test_no_step_is_made_while_anything_more_is_due(session: LockSession) -> None:
    ready: list[int] = []
    behind = make_behind()
    work = TriggerLoop(session, BatchSize("trigger", 64), lambda: ready.append(1))
    repeat(work, lambda: MissedSpan.objects.filter(job=behind, state="working", made=0).exists())
    MissedSpan.objects.update(next_at=now())
    # Of one slice, which gives one job in a pass of this size.
    current = [make_job(id=UUID(int=(number << 64) + 5)) for number in range(1, 6)]
    for job in current:
        make_due(job)
    for done in range(1, 6):
        work.step()
        assert Run.objects.filter(job__in=current).count() == done
        assert not Run.objects.filter(job=behind).exists()
    repeat(work, lambda: Run.objects.filter(job=behind).exists())
    assert len(ready) >= 6


def test_amid_a_spike_nothing_is_probed_for(session: LockSession, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(connection: Connection, name: str, *values: Any) -> list[Row]:
        asked.append(name)
        return rows(connection, name, *values)

    monkeypatch.setattr("runs.scheduler.trigger_loop.rows", noted)
    current = [make_job(id=UUID(int=(number << 64) + 5)) for number in range(1, 6)]
    for job in current:
        make_due(job)
    work = TriggerLoop(session, BatchSize("trigger", 64), lambda: None)
    for _ in current:
        work.step()
    assert Run.objects.filter(job__in=current).count() == len(current)
    assert asked.count("next_due") == 1
    work.step()
    work.step()
    assert asked.count("next_due") == 2


class TestClocksBeforeWhatWasSeen:
    """While scans from the beginning take long, passes begin where the last one found the first clock."""

    def loop(self, session: LockSession) -> TriggerLoop:
        work = TriggerLoop(session, BatchSize("trigger", 64), lambda: None)
        work.step()
        work._pace.recent.extend([60.0] * RECENT_SCANS)
        return work

    def test_a_clock_that_is_moved_forward_is_found_by_the_next_scan(self, session: LockSession) -> None:
        work, job = self.loop(session), make_job()
        make_due(job, now() - timedelta(seconds=5))
        work.step()
        assert not Run.objects.filter(job=job).exists()
        work._pace.scanned_at -= 60.0
        work.step()
        assert Run.objects.filter(job=job).exists()

    def test_what_is_due_now_is_triggered_without_a_scan(self, session: LockSession) -> None:
        work, job = self.loop(session), make_job()
        make_due(job, now() + timedelta(milliseconds=300))
        repeat(work, lambda: Run.objects.filter(job=job).exists())

    def test_amid_a_spike_the_next_scan_finds_it_too(self, session: LockSession) -> None:
        work, job = self.loop(session), make_job()
        make_due(job, now() - timedelta(seconds=5))
        work._more = True
        work._pace.scanned_at -= 60.0
        work.step()
        assert Run.objects.filter(job=job).exists()

    def test_clocks_of_slices_taken_over_are_read_from_the_beginning(
        self, session: LockSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        work, job = self.loop(session), make_job()
        make_due(job, now() - timedelta(seconds=5))
        monkeypatch.setattr(work, "balance", lambda: True)
        work.step()
        assert Run.objects.filter(job=job).exists()
