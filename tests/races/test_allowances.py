"""Processes that take requests of one limit at once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from django.db import connections

from auditlog.models import ActorKind
from jobs.access import limiter as limiter_module
from jobs.access.limiter import Limit, Limiter, LimitExceeded
from jobs.access.principal import Principal
from jobs.access.request_limits import count_request
from jobs.models import Allowance, Role
from tests.races.staging import Session, meanwhile, result_after, waiting_for
from tests.support.factories import make_key

pytestmark = pytest.mark.django_db(transaction=True)
TENANT = Limit("tenant", "tenant:1", 100, "used up")
# No minute ends between two lines of a test.
MINUTE = datetime(2030, 1, 1, 12, 0, tzinfo=timezone.utc)
TAKE = limiter_module.TAKE.replace("clock_timestamp()", f"timestamptz '{MINUTE.isoformat()}'")


@pytest.fixture(autouse=True)
def _one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_module, "TAKE", TAKE)


def take(session: Session, subject: str, size: int) -> int:
    return int(session.execute(TAKE, [[subject], [size]]).fetchall()[0][2])


def hammer(limiter: Limiter) -> int:
    """Return how many of many requests were let through."""
    passed = 0
    for _ in range(2 * TENANT.per_minute):
        with suppress(LimitExceeded):
            limiter.spend([TENANT])
            passed += 1
    connections.close_all()
    return passed


@pytest.mark.parametrize("first_of_the_minute", [True, False])
def test_two_that_take_at_once_get_different_requests(
    first: Session, second: Session, first_of_the_minute: bool
) -> None:
    """Whether one waits for the other's new row or for its change of it."""
    before = 0 if first_of_the_minute else take(first, "key:1", 10)
    first.execute("BEGIN")
    own = take(first, "key:1", 7)
    assert own == before + 7
    assert result_after(first, lambda: take(second, "key:1", 5)) == own + 5


def test_what_is_taken_back_by_a_rollback_was_given_to_nobody(first: Session, second: Session) -> None:
    first.execute("BEGIN")
    take(first, "key:1", 7)
    assert result_after(first, lambda: take(second, "key:1", 5), "ROLLBACK") == 5


def test_all_lock_the_tenant_before_the_key(first: Session) -> None:
    """Of two processes that took the two rows in different orders each would wait for the other."""
    key, _ = make_key()
    principal = Principal(ActorKind.KEY, str(key.pk), str(key), key.tenant, Role(key.role))
    first.execute("BEGIN")
    take(first, f"tenant:{key.tenant_id}", 1)
    with waiting_for(first, lambda: count_request(principal)) as spending:
        take(first, f"key:{key.pk}", 1)
        first.execute("COMMIT")
        assert len(spending.result(timeout=60)) == 2


def test_a_request_that_waits_for_its_row_holds_up_no_other_tenant(first: Session) -> None:
    limiter = Limiter()
    first.execute("BEGIN")
    take(first, "tenant:1", 1)
    with waiting_for(first, lambda: limiter.spend([TENANT])) as spending:
        other = Limit("tenant", "tenant:2", 100, "used up")
        with meanwhile(lambda: limiter.spend([other])) as others:
            assert others.result(timeout=30)[0].left == 99
        assert not spending.done()
        first.execute("COMMIT")
        assert spending.result(timeout=60)


def test_a_request_waits_for_no_other_that_asks_for_the_same_limit(first: Session) -> None:
    """A thread that asks holds no lock in memory: what is held already is spent meanwhile."""
    limiter = Limiter()
    limiter.spend([TENANT])
    limiter._held[TENANT.subject].left = 0
    first.execute("BEGIN")
    take(first, TENANT.subject, 1)
    with waiting_for(first, lambda: limiter.spend([TENANT])) as spending:
        limiter._held[TENANT.subject].left = 1
        assert limiter.spend([TENANT])
        first.execute("COMMIT")
        assert spending.result(timeout=60)


def test_a_batch_of_the_minute_that_just_ended_changes_nothing_in_the_new_one() -> None:
    """A statement that began in one minute may be done in the next, after others have taken there."""
    Allowance.objects.create(minute=MINUTE + timedelta(minutes=1), subject=TENANT.subject, taken=42)
    Limiter().spend([TENANT])
    assert list(Allowance.objects.order_by("minute").values_list("taken", flat=True)) == [1, 42]


def test_many_threads_of_several_processes_let_through_exactly_the_limit() -> None:
    processes = [Limiter() for _ in range(3)]
    with ThreadPoolExecutor(12) as threads:
        assert sum(threads.map(hammer, processes * 4)) == TENANT.per_minute
