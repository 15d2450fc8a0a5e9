"""A tenant's retries are budget_tenant: a storm of one is not everybody's, and nothing else waits."""

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db.models import F

from jobs.models import Job, Role, Tenant
from runs.models import LiveRun, RetryBudget
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.scheduler.recovery.retry_budget import Budget, let_retries_go, most_at_once
from runs.services import runs as services
from runs.states import LiveState
from tests.support.api_client import Caller
from tests.support.factories import make_job, make_pool, make_run, make_tenant, now

pytestmark = pytest.mark.django_db
Session = psycopg.Connection[Any]
SECOND = timedelta(seconds=1)


def due_retries(job: Job, count: int, reason: str = "retry") -> list[LiveRun]:
    at = now() - SECOND
    return [make_run(job, LiveState.DELAYED, reason=reason, wake_at=at) for _ in range(count)]


def recover(session: Session, at: datetime) -> int:
    return recover_once(session, RecoveryMemory(trusted_from=at - SECOND, last_pass=at), at).retried


def count(tenant: Tenant, state: str) -> int:
    return LiveRun.objects.filter(tenant=tenant, state=state).count()


def budgeted(per_minute: int | None) -> Job:
    return make_job(make_tenant(retry_budget=per_minute), make_pool())


def test_of_a_storm_so_many_go_a_minute_and_the_rest_says_why_not(session: Session) -> None:
    job, at = budgeted(60), now()
    due_retries(job, 100)
    assert recover(session, at) == 5, "the bucket was full: five seconds' worth"
    assert (count(job.tenant, "ready"), count(job.tenant, "blocked")) == (5, 95)
    assert set(LiveRun.objects.filter(state="blocked").values_list("reason", flat=True)) == {"retry_budget"}
    went = sum(recover(session, at + number * SECOND / 4) for number in range(1, 4 * 60 + 1))
    assert 59 <= went <= 60, "one a second, however often somebody looks"


def test_other_tenants_are_not_touched(session: Session) -> None:
    storm, calm, free = budgeted(1), budgeted(600), budgeted(None)
    due_retries(storm, 50)
    due_retries(calm, 3)
    due_retries(free, 40)
    recover(session, now())
    assert [count(job.tenant, "ready") for job in (storm, calm, free)] == [1, 3, 40]
    assert RetryBudget.objects.count() == 2


def test_what_is_no_retry_takes_nothing(session: Session) -> None:
    job = budgeted(1)
    due_retries(job, 10, reason="flexible_window")
    recover(session, now())
    assert (count(job.tenant, "ready"), RetryBudget.objects.count()) == (10, 0)


def test_a_run_that_lost_its_worker_is_a_retry_too(session: Session) -> None:
    job = budgeted(1)
    due_retries(job, 3, reason="worker_lost")
    recover(session, now())
    assert count(job.tenant, "ready") == 1


def test_the_most_urgent_goes_first(session: Session) -> None:
    job = budgeted(1)
    late, urgent = due_retries(job, 2)
    LiveRun.objects.filter(pk=urgent.pk).update(rank=late.rank - 1000)
    recover(session, now())
    urgent.refresh_from_db()
    assert urgent.state == LiveState.READY


def test_another_budget_holds_at_once(session: Session) -> None:
    job, at = budgeted(1), now()
    due_retries(job, 30)
    recover(session, at)
    Tenant.objects.filter(pk=job.tenant_id).update(retry_budget=600)
    assert recover(session, at + SECOND) == 10
    Tenant.objects.filter(pk=job.tenant_id).update(retry_budget=None)
    assert recover(session, at + SECOND) == 19
    assert count(job.tenant, "blocked") == 0


def test_a_pass_takes_on_no_more_than_it_should(session: Session) -> None:
    job, at = budgeted(6000), now()
    due_retries(job, 30)
    recover(session, at - 60 * SECOND)
    RetryBudget.objects.update(tokens=500)
    LiveRun.objects.update(state="blocked", reason="retry_budget", budget_tenant=job.tenant_id, wake_at=None)
    assert let_retries_go(session, at, 7) == 7


def test_a_clock_that_was_set_back_neither_holds_retries_nor_lets_more_go(session: Session) -> None:
    job, at = budgeted(60), now()
    due_retries(job, 100)
    assert let_go_at(session, at) == 5
    back = at - timedelta(hours=2)
    assert let_go_at(session, back) == 0, "the bucket was empty and is"
    went = [let_go_at(session, back + number * SECOND) for number in range(1, 11)]
    assert went == [1] * 10, "it fills from now on, and not in two hours"
    ahead = back + timedelta(hours=5)
    assert [let_go_at(session, ahead + n * SECOND) for n in range(3)] == [5, 1, 1], (
        "no more than the bucket holds"
    )


def test_a_look_that_is_a_little_older_than_the_last_gives_nothing_twice(session: Session) -> None:
    job, at = budgeted(600), now()
    due_retries(job, 100)
    assert let_go_at(session, at) == 50
    looks = [at + SECOND, at, at + SECOND, at, at + SECOND]
    assert [let_go_at(session, look) for look in looks] == [10, 0, 0, 0, 0]


def let_go_at(session: Session, at: datetime) -> int:
    LiveRun.objects.filter(state="delayed").update(
        state="blocked", reason="retry_budget", budget_tenant=F("tenant_id"), wake_at=None
    )
    return let_retries_go(session, at, 500)


@pytest.mark.parametrize(
    ("per_minute", "seconds", "tokens"),
    [(60, 2, 2.0), (60, 1000, 5.0), (60, -1000, 0.0), (1, 30, 0.5), (1, 600, 1.0), (600, 0.25, 2.5)],
)
def test_a_bucket_fills_by_the_time_up_to_its_rim(per_minute: int, seconds: float, tokens: float) -> None:
    at = now()
    assert Budget(1, per_minute, 0.0, at).at(at + timedelta(seconds=seconds)) == pytest.approx(tokens)
    assert most_at_once(per_minute) >= 1


def test_a_person_may_let_one_go_before_its_turn(session: Session) -> None:
    job = budgeted(1)
    due_retries(job, 2)
    recover(session, now())
    waiting = LiveRun.objects.get(state="blocked")
    services.retry_run(waiting.run)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.reason) == (LiveState.READY, "")


def test_it_is_reported_where_somebody_asks(session: Session) -> None:
    job = budgeted(1)
    due_retries(job, 3)
    recover(session, now())
    caller = Caller(job.tenant, Role.VIEWER)
    said = caller.get(f"jobs/{job.pk}/explain").json()["obstacles"]
    assert ("blocked", "2 runs wait: waits until the tenant may have its next retry") in [
        (one["code"], one["detail"]) for one in said
    ]
    run = caller.get("runs", state="blocked").json()["results"][0]
    assert "next retry" in run["reason_text"]
