"""Test GET /api/v1/jobs/{id}/explain and GET /api/v1/runs/{id}/explain."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Effect, Job, Role
from jobs.services.status import pause_job
from jobs.validation.instants import as_text
from runs.models import LiveRun, MissedSpan, Queue
from runs.reasons import NOT_HELD
from runs.states import LiveState, Trigger
from tests.support.api_client import Caller, refusal
from tests.support.factories import (
    make_finished_run,
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
    suspension = make_suspension(effect=Effect.HOLD, pool=job.pool, reason="upgrade", ends_at=ends)
    make_suspension(tenant=make_tenant(), reason="of others")
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
    assert caller.get(said[0]["link"]).json()["id"] == str(suspension.public_id)
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
    span = {"tenant": caller.tenant, "job": job, "version": 1, "begins_at": since, "ends_at": now()}
    MissedSpan.objects.create(**span, reason="paused", policy="last", state="open", suspension=suspension)
    MissedSpan.objects.create(**span, reason="downtime", policy="last")
    [shown] = explain(caller, job)["suspended"]
    assert (shown["reason"], shown["begins_at"], shown["count"]) == ("paused", as_text(since), None)


def test_a_job_on_demand_says_so(caller: Caller) -> None:
    job = post_job(caller.tenant)
    make_worker(job.pool)
    assert [one["code"] for one in explain(caller, job)["obstacles"]] == ["schedule"]


def test_a_job_of_others_is_missing(caller: Caller) -> None:
    refusal(caller.get(f"jobs/{post_job(make_tenant()).pk}/explain"), 404)
    job = post_job(caller.tenant)
    refusal(caller.get(f"jobs/{job.pk}/explain", why="x"), 400, "why")


def explain_run(caller: Caller, live: LiveRun) -> dict[str, Any]:
    answer = caller.get(f"runs/{live.pk}/explain")
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def test_a_run_names_its_own_reason_and_what_stands_in_the_way_of_its_job(caller: Caller, job: Job) -> None:
    make_suspension(tenant=caller.tenant, reason="audit")
    live = make_run(job, LiveState.BLOCKED)
    LiveRun.objects.filter(pk=live.pk).update(reason="overlap")
    said = explain_run(caller, live)
    assert (said["id"], said["state"], said["reason"]) == (str(live.pk), "blocked", "overlap")
    assert [one["code"] for one in said["obstacles"]] == ["blocked", "suspension"]
    assert "audit" in said["obstacles"][1]["detail"]


def test_a_run_of_a_paused_job_names_the_pause(caller: Caller, job: Job) -> None:
    live = make_run(job)
    pause_job(job, "deploy")
    said = explain_run(caller, live)
    assert (said["reason"], [one["code"] for one in said["obstacles"]]) == ("paused", ["status"])
    assert "deploy" in said["obstacles"][0]["detail"]


def test_a_ready_run_that_nothing_holds_tells_its_turn(caller: Caller, job: Job) -> None:
    for minutes in (3, 2):
        make_run(job, planned_at=now() - timedelta(minutes=minutes))
    said = explain_run(caller, make_run(job, planned_at=now() - timedelta(minutes=1)))
    assert said["reason"] == "no_free_slot"
    [only] = said["obstacles"]
    assert only["code"] == "ready" and only["detail"].endswith("ready runs of its queue that go before it: 2")


@pytest.mark.parametrize("state", [LiveState.READY, LiveState.QUEUED])
def test_a_run_without_a_live_worker_says_so(caller: Caller, state: LiveState) -> None:
    live = make_run(post_job(caller.tenant), state)
    said = explain_run(caller, live)
    assert (said["reason"], said["reason_text"]) == ("no_live_worker", "no live worker")
    assert [one["code"] for one in said["obstacles"]] == ["target"]
    assert "none is alive" in said["obstacles"][0]["detail"]


def test_a_run_that_has_begun_or_ended_has_no_obstacles(caller: Caller, job: Job) -> None:
    make_suspension(tenant=caller.tenant)
    assert explain_run(caller, make_run(job, LiveState.RUNNING))["obstacles"] == []
    finished = caller.get(f"runs/{make_finished_run(job).pk}").json()
    said = caller.get(finished["links"]["explain"]).json()
    assert (said["state"], said["obstacles"]) == ("succeeded", [])


def test_a_run_of_others_is_missing(caller: Caller, job: Job) -> None:
    refusal(caller.get(f"runs/{make_run(post_job(make_tenant())).pk}/explain"), 404)
    refusal(caller.get(f"runs/{make_run(job).pk}/explain", why="x"), 400, "why")


def reasons(caller: Caller) -> dict[str, tuple[str, str]]:
    found = caller.get("runs").json()["results"]
    return {run["id"]: (run["reason"], run["reason_text"]) for run in found}


def test_each_waiting_run_of_a_list_says_why(caller: Caller, job: Job) -> None:
    make_suspension(tenant=caller.tenant, tag_name="team", tag_value="shop", reason="audit")
    tagged = make_run(post_job(caller.tenant, tags={"team": "shop"}))
    free, queued = make_run(job), make_run(job, LiveState.QUEUED)
    paused = post_job(caller.tenant, schedule={"every": 3600})
    pause_job(paused, "deploy")
    held = make_run(paused)
    manual = make_run(paused, trigger=Trigger.MANUAL)
    limited = post_job(caller.tenant, pool="limited")
    make_worker(limited.pool)
    Queue.objects.filter(pk=make_queue(limited).pk).update(reason="rate_limit")
    slow = make_run(limited)
    unserved = make_run(post_job(caller.tenant, pool="unserved"))
    found = reasons(caller)
    assert found[str(tagged.pk)] == ("paused", "held by a pause: audit")
    assert found[str(held.pk)] == ("paused", "held by a pause: deploy")
    assert found[str(slow.pk)][0] == "rate_limit" and found[str(unserved.pk)][0] == "no_live_worker"
    for run in (free, queued, manual):
        assert found[str(run.pk)] == ("no_free_slot", "waits for a free slot of a worker")


def test_a_run_that_dispatch_has_blocked_keeps_the_words_of_its_pause(caller: Caller, job: Job) -> None:
    make_suspension(tenant=caller.tenant, tag_name="team", tag_value="shop", reason="audit")
    tagged = make_run(post_job(caller.tenant, tags={"team": "shop"}), LiveState.BLOCKED, reason="paused")
    paused = post_job(caller.tenant, schedule={"every": 3600})
    pause_job(paused, "deploy")
    held = make_run(paused, LiveState.BLOCKED, reason="paused")
    # Its blackout is over, and the sweep has not come yet.
    released = make_run(job, LiveState.BLOCKED, reason="blackout")
    found = reasons(caller)
    assert found[str(tagged.pk)] == ("paused", "held by a pause: audit")
    assert found[str(held.pk)] == ("paused", "held by a pause: deploy")
    assert found[str(released.pk)] == ("blackout", "held by a blackout")
    assert explain_run(caller, tagged)["reason_text"] == "held by a pause: audit"


def test_the_reasons_of_a_page_cost_one_statement(caller: Caller, job: Job) -> None:
    make_run(job)
    reasons(caller)
    with CaptureQueriesContext(connection) as one:
        reasons(caller)
    for pool in ("second", "third"):
        make_run(post_job(caller.tenant, pool=pool))
    with CaptureQueriesContext(connection) as several:
        assert len(reasons(caller)) == 3
    assert len(several) == len(one)
