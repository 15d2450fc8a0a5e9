"""What the scheduler that recovers does beside recovery."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from jobs.clock import database_now
from jobs.models import Allowance
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.recovery.recover import RecoveryMemory
from runs.scheduler.recovery_loop import RecoveryLoop
from tests.races.staging import dsn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def recovery() -> Iterator[RecoveryLoop]:
    with LockSession(dsn(), "recovery") as session:
        yield RecoveryLoop(session, RecoveryMemory(), lambda: None)


def test_counts_of_past_minutes_are_deleted(recovery: RecoveryLoop) -> None:
    now = database_now()
    for minutes in (0, 1, 10, 100):
        minute = now - timedelta(minutes=minutes)
        Allowance.objects.create(minute=minute, subject=f"key:{minutes}", taken=1)

    def kept() -> set[str]:
        recovery.step()
        return set(Allowance.objects.values_list("subject", flat=True))

    wait_until(lambda: kept() == {"key:0", "key:1"}, 10, "the end of old counts")
