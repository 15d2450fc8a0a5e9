"""Health reports: the process answers, it reaches its database, jobs are triggered and runs dispatched."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client

from jobs.models import JOB_SLICES, JobClock, Membership
from runs.models import SchedulerNode
from scheduler_project import health
from tests.project.test_doctor import hold
from tests.support.factories import make_job, make_pool, make_run, make_tenant, now

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CACHED_SECONDS", -1.0)
    monkeypatch.setattr("scheduler_project.doctor.schedulers.REBALANCE_SECONDS", 0.0)


@pytest.fixture(params=[DatabaseError, InterfaceError])
def broken(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise request.param("connection to 10.1.2.3 refused for beatkeeper")

    with monkeypatch.context() as patched:
        patched.setattr(BaseDatabaseWrapper, "cursor", refuse)
        yield


def ask(path: str, client: Client | None = None) -> tuple[int, dict[str, Any]]:
    answer = (client or Client()).get(path)
    return answer.status_code, answer.json()


def test_a_process_lives_though_its_database_is_gone(broken: None) -> None:
    assert ask("/health/live") == (200, {"status": "ok"})
    signed_in = Client()
    signed_in.cookies["sessionid"] = "a" * 32
    for client in (Client(), signed_in):
        for path in ("/health/ready", "/healthz", "/health"):
            assert ask(path, client) == (503, {"status": "unavailable", "database": "not available"})


def test_ready_is_not_whether_anything_is_fired() -> None:
    assert ask("/health/ready") == (200, {"status": "ok", "database": "ok"})
    status, report = ask("/health")
    assert status == 503 and report["status"] == "degraded"
    assert report["schedulers"] == 0 and report["unheld_slices"] == JOB_SLICES


def test_all_is_well_while_every_slice_is_held_and_nothing_is_late() -> None:
    make_job(next_run_at=now() - timedelta(seconds=2))
    make_run(make_job(), planned_at=now() - timedelta(seconds=4))
    with hold(range(JOB_SLICES)):
        status, report = ask("/health")
    assert status == 200, report
    assert 2 <= report.pop("oldest_due_seconds") < 10 and 4 <= report.pop("oldest_waiting_seconds") < 12
    assert report == {
        "status": "ok",
        "database": "ok",
        "schedulers": 1,
        "slices": JOB_SLICES,
        "unheld_slices": 0,
        "slices_behind": 0,
        "unheld_pools": 0,
        "recovery_is_held": True,
    }


def test_slices_that_nobody_holds_and_slices_that_are_behind_are_counted() -> None:
    make_job(next_run_at=now() - timedelta(seconds=60))
    with hold(range(3, JOB_SLICES)):
        status, report = ask("/health")
    assert status == 503 and report["unheld_slices"] == 3 and report["slices_behind"] == 1
    assert 60 <= report["oldest_due_seconds"] < 70
    JobClock.objects.all().delete()
    with hold(range(JOB_SLICES), recovery=False):
        status, report = ask("/health")
    assert status == 503 and not report["recovery_is_held"] and report["slices_behind"] == 0


def test_what_changes_hands_is_no_reason_to_wake_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler_project.doctor import schedulers

    looks = iter([[*range(1, JOB_SLICES)], [*range(JOB_SLICES)]])
    monkeypatch.setattr(schedulers, "held", lambda kind: next(looks))
    assert schedulers.uncovered(1, range(JOB_SLICES)) == set()


def test_names_are_for_superusers_who_are_signed_in() -> None:
    pool = make_pool(slug="gpu")
    make_run(make_job(make_tenant(slug="acme"), pool))
    SchedulerNode.objects.create(host="machine-7", pid=7, job_slices=64)
    member = User.objects.create_user("mona", is_staff=True)
    Membership.objects.create(user=member, tenant=make_tenant())
    signed_in = Client()
    signed_in.force_login(member)
    for client in (Client(), signed_in):
        text = str(ask("/health", client))
        assert "gpu" not in text and "acme" not in text and "machine-7" not in text
    signed_in.force_login(User.objects.create_superuser("olga"))
    _, report = ask("/health", signed_in)
    assert "gpu" in report["details"]["oldest_waiting_seconds_by_pool"]
    assert report["details"]["schedulers"][0]["host"] == "machine-7"
    assert "acme" not in str(report)


def test_many_who_ask_are_one_question_to_the_database(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    monkeypatch.setattr(health, "CACHED_SECONDS", 60.0)
    first = ask("/health")
    with django_assert_num_queries(0):
        assert ask("/health") == first
    health._cached.clear()


def test_those_who_ask_at_the_same_moment_are_one_question_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries are slow when something is wrong, and the page needs no key."""
    monkeypatch.setattr(health, "CACHED_SECONDS", 60.0)
    health._cached.clear()
    asked = []

    def look(in_full: bool) -> dict[str, Any]:
        asked.append(in_full)
        time.sleep(0.2)
        raise DatabaseError("in trouble")

    monkeypatch.setattr(health, "figures", look)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: ask("/health")[0], range(8)))
    health._cached.clear()
    assert answers == [503] * 8 and asked == [False]
