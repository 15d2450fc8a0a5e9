"""Test GET /api/v1/jobs/{id}/explain."""

from datetime import timedelta
from typing import Any

import pytest

from jobs.models import Effect, Job, Role
from jobs.services.status import pause_job
from jobs.validation.instants import as_text
from runs.models import LiveRun, MissedSpan, Queue
from runs.reasons import NOT_HELD
from runs.states import LiveState
from tests.support.api_client import Caller, refusal
from tests.support.factories import (
    make_pool,
    make_queue,
    make_run,
    make_suspension,
    make_tenant,
    make_worker,
    now,
    post_job,
)

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def caller() -> Caller:
    make_pool(slug="default")
    return Caller(make_tenant(slug="acme"), Role.VIEWER)


@pytest.fixture
def job(caller: Caller) -> Job:
    job = post_job(caller.tenant, schedule={"every": 3600})
    make_worker(job.pool)
    return job


def explain(caller: Caller, job: Job) -> dict[str, Any]:
    answer = caller.get(f"jobs/{job.pk}/explain")
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def test_nothing_stands_in_the_way(caller: Caller, job: Job) -> None:
    said = explain(caller, job)
    assert (said["status"], said["obstacles"], said["suspended"]) == ("active", [], [])
    assert said["next_run_at"] and said["missed_so_far"] is None


def test_all_that_stands_in_the_way_is_named(caller: Caller, job: Job) -> None:
    ends = now() + HOUR
    suspension = make_suspension(effect=Effect.HOLD, pool=job.pool, note="upgrade", ends_at=ends)
    make_suspension(tenant=make_tenant(), note="of others")
    queue = make_queue(job)
    queue.reason = "no_live_worker"
    queue.save()
    for _ in range(2):
        run = make_run(job, LiveState.BLOCKED)
        LiveRun.objects.filter(pk=run.pk).update(reason="overlap")
    make_run(job, LiveState.DELAYED)
    pause_job(job, "deploy", ends)
    said = explain(caller, job)["obstacles"]
    assert [one["code"] for one in said] == ["suspension", "queue", "status", "blocked", "delayed"]
    assert said[0]["detail"] == f"paused until {as_text(ends)}: upgrade"
    assert caller.get(said[0]["link"]).json()["id"] == suspension.pk
    assert "no live worker" in said[1]["detail"] and "deploy" in said[2]["detail"]
    assert said[3]["detail"] == "2 runs wait: waits until the earlier planned run of its job has ended"
    assert len(caller.get(said[3]["link"]).json()["results"]) == 2


@pytest.mark.parametrize("notice", [one for one in NOT_HELD if one])
def test_a_broker_that_is_away_stands_in_nobodys_way(caller: Caller, job: Job, notice: str) -> None:
    Queue.objects.filter(pk=make_queue(job).pk).update(reason=notice)
    assert explain(caller, job)["obstacles"] == []


def test_suspended_times_are_shown(caller: Caller, job: Job) -> None:
    suspension = make_suspension(tenant=caller.tenant)
    since = now() - HOUR
    span = {"tenant": caller.tenant, "job": job, "version": 1, "from_at": since, "to_at": now()}
    MissedSpan.objects.create(**span, reason="paused", policy="last", state="open", suspension=suspension)
    MissedSpan.objects.create(**span, reason="downtime", policy="last")
    [shown] = explain(caller, job)["suspended"]
    assert (shown["reason"], shown["from"], shown["count"]) == ("paused", as_text(since), None)


def test_a_job_on_demand_says_so(caller: Caller) -> None:
    job = post_job(caller.tenant)
    make_worker(job.pool)
    assert [one["code"] for one in explain(caller, job)["obstacles"]] == ["schedule"]


def test_a_job_of_others_is_missing(caller: Caller) -> None:
    refusal(caller.get(f"jobs/{post_job(make_tenant()).pk}/explain"), 404)
    job = post_job(caller.tenant)
    refusal(caller.get(f"jobs/{job.pk}/explain", why="x"), 400, "why")
