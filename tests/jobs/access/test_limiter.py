"""A limit of requests is shared by all processes in batches: exact in sum, with few statements."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.access.limiter import TAKE, Limit, Limiter, LimitExceeded
from jobs.models import Allowance
from tests.support.minute import Minute

pytestmark = pytest.mark.django_db


def limit(per_minute: int, subject: str = "key:1", name: str = "key") -> Limit:
    return Limit(name, subject, per_minute, f"the {name} has sent its {per_minute} requests")


def spend(limiter: Limiter, *limits: Limit, times: int = 1) -> int:
    """Return how many of the requests were let through."""
    passed = 0
    for _ in range(times):
        with suppress(LimitExceeded):
            limiter.spend(limits)
            passed += 1
    return passed


def batches(queries: CaptureQueriesContext) -> Sequence[dict[str, str]]:
    return [query for query in queries.captured_queries if "beatkeeper_allowance" in query["sql"]]


def test_as_many_as_the_limit_are_let_through_and_few_take_a_statement(minute: Minute) -> None:
    limiter = Limiter()
    with CaptureQueriesContext(connection) as queries:
        assert spend(limiter, limit(6000), times=6100) == 6000
    assert len(batches(queries)) < 100
    with CaptureQueriesContext(connection) as queries:
        assert spend(limiter, limit(6000), times=100) == 0
    assert len(queries) == 0, "what is used up is known without asking"


def test_a_request_now_and_then_takes_one_statement_a_minute(minute: Minute) -> None:
    limiter = Limiter()
    with CaptureQueriesContext(connection) as queries:
        for seconds in range(0, 180, 10):
            minute.pass_to(seconds)
            limiter.spend([limit(6000)])
    assert len(batches(queries)) == 3


@pytest.mark.parametrize("per_minute", [1, 2, 9, 100, 1000])
def test_several_processes_let_through_no_more_together(minute: Minute, per_minute: int) -> None:
    processes = [Limiter() for _ in range(5)]
    passed = [spend(process, limit(per_minute), times=per_minute // 7 + 1) for process in processes]
    assert sum(passed) <= per_minute
    passed += [spend(process, limit(per_minute), times=per_minute) for process in processes]
    assert sum(passed) == per_minute, "and what each has is spent in the end"


def test_a_process_holds_no_more_than_it_has_spent_and_a_tenth_of_what_is_left(minute: Minute) -> None:
    limiter, first = Limiter(), 10
    for spent in range(1, 1000):
        untaken = 1000 - (taken := sum(Allowance.objects.values_list("taken", flat=True)))
        limiter.spend([limit(1000)])
        batch = Allowance.objects.get().taken - taken
        assert batch <= max(first, untaken // 10)
        assert Allowance.objects.get().taken - spent <= max(first, spent + first)


def test_the_next_minute_begins_anew_and_nothing_is_kept(minute: Minute) -> None:
    limiter = Limiter()
    assert spend(limiter, limit(100), times=30) == 30
    minute.pass_to(59.9)
    assert spend(limiter, limit(100), times=200) == 70
    minute.pass_to(60)
    assert spend(limiter, limit(100), times=200) == 100
    assert [row.taken >= 100 for row in Allowance.objects.order_by("minute")] == [True, True]


def test_what_is_held_ends_with_the_minute_of_the_database(minute: Minute) -> None:
    """The host's clock says how much time has passed, and the database's how much of the minute was left."""
    limiter = Limiter()
    minute.pass_in_database_to(59.5)
    limiter.spend([limit(1000)])
    minute.seconds = 0.4
    with CaptureQueriesContext(connection) as queries:
        limiter.spend([limit(1000)])
        assert len(queries) == 0
        minute.seconds = 0.5
        limiter.spend([limit(1000)])
    assert len(batches(queries)) == 1, "not spent from the minute that is over"


def test_a_clock_of_the_database_that_goes_back_gives_no_minute_twice(minute: Minute) -> None:
    limiter = Limiter()
    assert spend(limiter, limit(100), times=60) == 60
    minute.pass_to(61)
    assert spend(limiter, limit(100), times=20) == 20
    limiter.forget()
    minute.pass_in_database_to(1)
    assert spend(limiter, limit(100), times=200) <= 40


def test_a_refusal_says_how_long_to_wait(minute: Minute) -> None:
    limiter = Limiter()
    minute.pass_to(18.2)
    spend(limiter, limit(2), times=2)
    with pytest.raises(LimitExceeded) as refused:
        limiter.spend([limit(2)])
    assert refused.value.hint == "try again in 42 s"
    assert refused.value.standing[1:] == (0, 42)


def test_what_is_left_is_said_with_each_request(minute: Minute) -> None:
    limiter, other = Limiter(), Limiter()
    assert [standing.left for standing in limiter.spend([limit(1000), limit(5, "key:2")])] == [999, 4]
    assert [standing.left for standing in limiter.spend([limit(1000)])] == [998]
    assert other.spend([limit(1000)])[0].left == 989, "what others have taken is not left"


def test_requests_that_one_limit_refuses_use_up_nothing_of_another(minute: Minute) -> None:
    limiter, tenant, key = Limiter(), limit(1000, "tenant:1", "tenant"), limit(10)
    assert spend(limiter, tenant, key, times=500) == 10
    assert spend(limiter, tenant, limit(1000, "key:2"), times=1000) >= 989


def test_subjects_do_not_touch_each_other(minute: Minute) -> None:
    limiter = Limiter()
    assert spend(limiter, limit(3, "tenant:1"), times=9) == 3
    assert spend(limiter, limit(3, "tenant:11"), times=9) == 3


def test_another_limit_holds_from_the_next_minute_on(minute: Minute) -> None:
    limiter = Limiter()
    assert spend(limiter, limit(10), times=20) == 10
    assert spend(limiter, limit(50), times=20) == 0
    minute.pass_to(60)
    assert spend(limiter, limit(50), times=100) == 50


def test_memory_is_bounded_however_many_there_are(minute: Minute) -> None:
    limiter = Limiter(max_held=50)
    for number in range(500):
        limiter.spend([limit(3, f"address:{number}")])
    assert len(limiter._held) == 50
    assert spend(limiter, limit(3, "address:0"), times=9) == 2, "what was dropped is counted in the database"


def test_a_limit_that_cannot_be_counted_refuses_nobody(
    minute: Minute, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter()
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT before")
        cursor.execute("SET LOCAL transaction_read_only = on")
        assert limiter.spend([limit(1)]) == []
        cursor.execute("ROLLBACK TO SAVEPOINT before")
    assert "uncounted" in caplog.text and limiter.spend([limit(1)])[0].left == 0


def test_counting_writes_nothing_that_must_reach_the_disk() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relpersistence FROM pg_class WHERE relname = 'beatkeeper_allowance'")
        assert cursor.fetchone() == ("u",)
        cursor.execute(f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) {TAKE}", [["key:1"], [5]])
        [plan] = cursor.fetchone()[0]
    assert plan["Plan"]["WAL Records"] == 0
