"""Test /api/v1/runs and what the API does with runs."""

import base64
import json
import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.models import Job
from runs.models import LiveRun, Run
from runs.sql import change
from runs.states import FinalState, LiveState, Trigger
from tests.support import factories
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_finished_run, make_run, make_tenant, post_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller() -> Caller:
    return Caller(make_tenant(slug="acme"))


@pytest.fixture
def job(caller: Caller) -> Job:
    return post_job(caller.tenant, name="settle", schedule={"every": 3600})


def ids(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [run["id"] for run in response.json()["results"]]


def make_history(job: Job, number: int, step: timedelta = timedelta(minutes=1)) -> list[str]:
    """Newest first, as the API lists them."""
    now = database_now()
    return [str(make_finished_run(job, planned_at=now - step * n).pk) for n in range(1, number + 1)]


def test_a_run_is_asked_for_and_read(caller: Caller, job: Job) -> None:
    response = caller.post(f"jobs/{job.pk}/run", {"input": {"args": ["today"]}, "reason": "by hand"})
    assert response.status_code == 201
    run = response.json()
    assert response["Location"] == run["links"]["self"] == f"/api/v1/runs/{run['id']}"
    assert (run["state"], run["trigger"], run["input"]) == ("ready", "manual", {"args": ["today"]})
    assert (run["job"], run["job_name"], run["version"]) == (str(job.pk), "settle", 1)
    assert run["requested_by"] == str(caller.key)
    assert caller.get(run["links"]["self"]).json() == run
    entry = AuditEntry.objects.get(action="run.requested")
    assert (entry.reason, entry.actor_kind, entry.object_id) == ("by hand", "key", run["id"])


def test_a_run_is_asked_for_a_later_instant(
    caller: Caller, job: Job, session: psycopg.Connection[Any]
) -> None:
    at = database_now().replace(microsecond=0) + timedelta(hours=2)
    run = caller.post(f"jobs/{job.pk}/run", {"at": text(at), "input": {"kwargs": {"day": "x"}}}).json()
    assert (run["state"], run["reason"]) == ("delayed", "requested_later")
    assert run["planned_at"] == run["next_attempt_at"] == text(at)
    promote = {"now": at - timedelta(seconds=1), "most": 10}
    assert change(session, "promote_delayed", promote) == 0
    assert change(session, "promote_delayed", {**promote, "now": at}) == 1
    run = caller.get(run["links"]["self"]).json()
    assert run["state"] == "ready" and run["reason"] != "requested_later"
    live = LiveRun.objects.get(pk=run["id"])
    assert live.available_at == at and live.rank == int(at.timestamp() * 1000) - job.priority * 300


def test_a_later_run_can_be_cancelled_or_go_at_once(caller: Caller, job: Job) -> None:
    body = {"at": text(database_now() + timedelta(days=1)), "reason": "after the release"}
    first, second = (caller.post(f"jobs/{job.pk}/run", body).json()["id"] for _ in range(2))
    assert caller.post(f"runs/{first}/cancel").json()["state"] == "cancelled"
    assert caller.post(f"runs/{second}/retry").json()["state"] == "ready"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"at": "2020-01-01T00:00:00Z"}, "at"),
        ({"at": "2100-01-01T00:00:00Z"}, "at"),
        ({"at": "2026-12-24T18:00"}, "at"),
        ({"at": 5}, "at"),
        ({"input": 5}, "input"),
        ({"input": {"a": "x" * 65536}}, "input"),
        ({"inputs": {}}, "inputs"),
        ("[", None),
    ],
)
def test_a_bad_request_for_a_run_makes_none(caller: Caller, job: Job, body: Any, field: str | None) -> None:
    refusal(caller.post(f"jobs/{job.pk}/run", body), 400, field)
    assert not Run.objects.exists() and not AuditEntry.objects.filter(object_type="run").exists()


def test_the_same_idempotency_key_asks_for_one_run(caller: Caller, job: Job) -> None:
    first = caller.post(f"jobs/{job.pk}/run", {}, Idempotency_Key="a")
    again = caller.post(f"jobs/{job.pk}/run", {}, Idempotency_Key="a")
    other = caller.post(f"jobs/{job.pk}/run", {}, Idempotency_Key="b")
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    assert again["Idempotency-Replayed"] == "true" and other.json()["id"] != first.json()["id"]
    refusal(caller.post(f"jobs/{job.pk}/run", {"input": {}}, Idempotency_Key="a"), 422)
    assert Run.objects.count() == 2


def test_one_state_is_shown_whether_under_way_or_over(caller: Caller, job: Job) -> None:
    for live in LiveState:
        run = make_run(job, live)
        assert caller.get(f"runs/{run.pk}").json()["state"] == live
    for final in FinalState:
        assert caller.get(f"runs/{make_finished_run(job, final).pk}").json()["state"] == final


def test_a_finished_run_tells_how_it_ended(caller: Caller, job: Job) -> None:
    failed = make_finished_run(
        job,
        FinalState.DEAD,
        error_class="permanent",
        error_type="ValueError",
        error_line="no such account",
        fingerprint="ab12",
        exit_code=3,
        attempts=4,
        reason="gave up",
    )
    body = caller.get(f"runs/{failed.pk}").json()
    assert body["error"] == {
        "class": "permanent",
        "type": "ValueError",
        "line": "no such account",
        "fingerprint": "ab12",
    }
    assert (body["exit_code"], body["attempt"], body["reason"]) == (3, 4, "gave up")
    assert body["finished_at"] > body["started_at"] and body["planned_at"].endswith("Z")


def test_a_finished_run_tells_when_it_was_queued_and_cancelled_and_why(caller: Caller, job: Job) -> None:
    asked = caller.post(f"jobs/{job.pk}/run", {"reason": "because"}).json()
    assert asked["requested_reason"] == "because"
    at = database_now()
    kept: dict[str, Any] = {"queued_at": at, "cancel_requested_at": at, "cancel_acknowledged_at": at}
    LiveRun.objects.filter(pk=asked["id"]).update(state=LiveState.QUEUED, queued_at=at)
    before = caller.get(f"runs/{asked['id']}").json()
    body = caller.post(f"runs/{asked['id']}/cancel").json()
    assert body["state"] == "cancelled" and body["requested_reason"] == "because"
    assert body["queued_at"] == before["queued_at"] is not None
    assert body["cancel_requested_at"] is not None and body["error"] is None
    body = caller.get(f"runs/{make_finished_run(job, **kept).pk}").json()
    assert {body[name] for name in kept} == {text(at)}


def test_the_reason_of_a_retry_is_kept_with_the_new_run(caller: Caller, job: Job) -> None:
    dead = make_finished_run(job, FinalState.DEAD)
    retry = caller.post(f"runs/{dead.pk}/retry", {"reason": "fixed"}).json()
    assert retry["requested_reason"] == "fixed"


def test_a_cancelled_run_has_an_error_only_if_its_body_had_one(caller: Caller, job: Job) -> None:
    before = make_finished_run(job, FinalState.CANCELLED, error_class="cancelled")
    during = make_finished_run(
        job, FinalState.CANCELLED, error_class="cancelled", error_type="ValueError", error_line="no luck"
    )
    assert caller.get(f"runs/{before.pk}").json()["error"] is None
    assert caller.get(f"runs/{during.pk}").json()["error"]["type"] == "ValueError"


def test_a_run_in_back_off_tells_when_it_goes_on(caller: Caller, job: Job) -> None:
    run = make_run(job, LiveState.DELAYED)
    body = caller.get(f"runs/{run.pk}").json()
    assert body["next_attempt_at"] is not None and body["finished_at"] is None


def test_newest_runs_come_first_in_pages(caller: Caller, job: Job) -> None:
    made = make_history(job, 7)
    pages: list[list[str]] = []
    url: str | None = "runs?limit=3"
    while url:
        response = caller.get(url)
        pages.append(ids(response))
        url, back = response.json()["next"], response.json()["previous"]
    assert pages == [made[:3], made[3:6], made[6:]]
    assert ids(caller.get(back)) == made[3:6]


def test_the_runs_of_a_job(caller: Caller, job: Job) -> None:
    made = make_history(job, 2)
    make_run(post_job(caller.tenant))
    assert ids(caller.get(f"jobs/{job.pk}/runs")) == made == ids(caller.get("runs", job=job.pk))


def test_runs_by_state_trigger_and_time(caller: Caller, job: Job) -> None:
    now = database_now()
    old = make_finished_run(job, planned_at=now - timedelta(days=2))
    dead = make_finished_run(job, FinalState.DEAD, planned_at=now - timedelta(hours=2))
    asked = make_finished_run(job, planned_at=now - timedelta(hours=1), trigger=Trigger.MANUAL)
    ready = make_run(job, planned_at=now)
    assert ids(caller.get("runs", state="dead")) == [str(dead.pk)]
    assert ids(caller.get("runs", state="ready")) == [str(ready.pk)]
    assert ids(caller.get("runs?state=ready&state=dead")) == [str(ready.pk), str(dead.pk)]
    assert ids(caller.get("runs", trigger="manual")) == [str(asked.pk)]
    assert ids(caller.get("runs", planned_before=text(now - timedelta(days=1)))) == [str(old.pk)]
    after = caller.get("runs", planned_after=text(dead.planned_at), planned_before=text(now))
    assert ids(after) == [str(asked.pk), str(dead.pk)]
    with_offset = (now - timedelta(days=1)).isoformat(timespec="milliseconds")
    assert ids(caller.get(f"runs?planned_before={with_offset}")) == [str(old.pk)]


def test_runs_by_when_they_finished(caller: Caller, job: Job) -> None:
    now = database_now()
    hours = [
        make_finished_run(job, planned_at=now - timedelta(hours=n), finished_at=now - timedelta(hours=n - 1))
        for n in (2, 4, 6)
    ]
    make_run(job)
    assert ids(caller.get("runs", finished_after=text(now - timedelta(hours=4)))) == [
        str(run.pk) for run in hours[:2]
    ]
    assert ids(caller.get("runs", finished_before=text(now - timedelta(hours=2)))) == [
        str(run.pk) for run in hours[1:]
    ]
    between = {
        "finished_after": text(now - timedelta(hours=4)),
        "finished_before": text(now - timedelta(hours=2)),
    }
    assert ids(caller.get(f"jobs/{job.pk}/runs", **between)) == [str(hours[1].pk)]


def test_a_run_that_took_days_is_found_from_when_it_was_planned(caller: Caller, job: Job) -> None:
    now = database_now()
    planned_at = now - timedelta(days=5)
    long = make_finished_run(job, planned_at=planned_at, finished_at=now)
    after = text(now - timedelta(hours=1))
    assert ids(caller.get("runs", finished_after=after)) == []
    assert ids(caller.get("runs", finished_after=after, planned_after=text(planned_at))) == [str(long.pk)]


def test_runs_by_the_name_of_their_job_and_by_their_error(caller: Caller, job: Job) -> None:
    now = database_now()
    dead = make_finished_run(job, FinalState.DEAD, error_line="Timeout of the bank: 50% done")
    make_finished_run(job)
    other = make_finished_run(post_job(caller.tenant, name="mail"), FinalState.DEAD, error_line="no answer")
    assert (
        ids(caller.get("runs", error="TIMEOUT of")) == [str(dead.pk)] == ids(caller.get("runs", error="50%"))
    )
    assert ids(caller.get("runs", error="50_")) == []
    assert ids(caller.get("runs", job_name="MAI")) == [str(other.pk)]
    assert ids(caller.get(f"jobs/{job.pk}/runs", error="answer")) == []
    old = make_finished_run(job, FinalState.DEAD, planned_at=now - timedelta(days=9), error_line="long ago")
    assert ids(caller.get("runs", error="long ago")) == []
    assert ids(caller.get("runs", error="long ago", planned_after=text(old.planned_at))) == [str(old.pk)]
    before = text(now - timedelta(days=8))
    assert ids(caller.get("runs", error="long ago", planned_before=before)) == [str(old.pk)]


def test_runs_are_not_found_by_the_names_of_jobs_of_others(caller: Caller) -> None:
    make_finished_run(post_job(make_tenant(), name="settle"), FinalState.DEAD, error_line="no answer")
    assert ids(caller.get("runs", job_name="settle")) == [] == ids(caller.get("runs", error="answer"))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"finished_after": "yesterday"}, "finished_after"),
        ({"finished_before": "2026-11-18"}, "finished_before"),
        ({"state": "asleep"}, "state"),
        ({"trigger": "luck"}, "trigger"),
        ({"planned_after": "yesterday"}, "planned_after"),
        ({"planned_before": "2026-11-18"}, "planned_before"),
        ({"job": "settle"}, "job"),
        ({"cursor": "zzz"}, "cursor"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_filter_is_refused_by_its_name(caller: Caller, query: dict[str, str], field: str) -> None:
    refusal(caller.get("runs", **query), 400, field)


NOW = factories.now()


@pytest.mark.parametrize(
    ("query", "partitions"),
    [
        ({"planned_after": NOW - timedelta(hours=30), "planned_before": NOW - timedelta(hours=26)}, 2),
        ({"finished_after": NOW - timedelta(hours=1), "planned_before": NOW}, 4),
        ({"error": "answer", "planned_before": NOW}, 9),
        ({"job_name": "settle", "planned_before": NOW - timedelta(days=2)}, 9),
    ],
)
def test_a_filter_reads_only_the_partitions_of_its_time(
    caller: Caller, job: Job, query: dict[str, Any], partitions: int
) -> None:
    query = {name: given if isinstance(given, str) else text(given) for name, given in query.items()}
    caller.get("runs", **query)
    with CaptureQueriesContext(connection) as queries:
        caller.get("runs", **query)
    statements = [q["sql"] for q in queries.captured_queries if '"beatkeeper_run"."id"' in q["sql"]]
    plans = ""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute("EXPLAIN " + statement)
            plans += "\n".join(row[0] for row in cursor.fetchall())
    assert 1 <= len(set(re.findall(r"beatkeeper_run_\d{8}", plans))) <= partitions, plans
    assert not any("count(" in statement.lower() for statement in statements)


def test_a_page_costs_the_same_queries_whatever_its_size(caller: Caller, job: Job) -> None:
    make_history(job, 2)
    caller.get("runs")
    with CaptureQueriesContext(connection) as short:
        caller.get("runs")
    for run in make_history(post_job(caller.tenant), 20):
        assert run
    with CaptureQueriesContext(connection) as long:
        caller.get("runs")
    assert len(long) == len(short)


def test_cancelling_through_the_api(caller: Caller, job: Job) -> None:
    ready, running = make_run(job), make_run(job, LiveState.RUNNING)
    body = caller.post(f"runs/{ready.pk}/cancel", {"reason": "not needed"}).json()
    assert (body["state"], body["reason"]) == ("cancelled", "cancelled")
    assert body["reason_text"] == "cancelled on request: not needed"
    assert refusal(caller.post(f"runs/{ready.pk}/cancel"), 409)["code"] == "run_is_final"
    body = caller.post(f"runs/{running.pk}/cancel").json()
    assert body["state"] == "running" and body["cancel_requested_at"] is not None
    assert body["cancel_acknowledged_at"] is None and "has not confirmed" in body["reason_text"]
    assert caller.post(f"runs/{running.pk}/cancel").json() == body
    LiveRun.objects.filter(pk=running.pk).update(cancel_acknowledged_at=database_now())
    body = caller.get(f"runs/{running.pk}").json()
    assert body["cancel_acknowledged_at"] is not None and body["reason_text"].startswith("asked to stop")


def test_retrying_through_the_api(caller: Caller, job: Job) -> None:
    dead, delayed, ready = (
        make_finished_run(job, FinalState.DEAD),
        make_run(job, LiveState.DELAYED),
        make_run(job),
    )
    response = caller.post(f"runs/{dead.pk}/retry", Idempotency_Key="a")
    retry = response.json()
    assert response.status_code == 201 and retry["retry_of"] == str(dead.pk)
    assert retry["links"]["retry_of"] == f"/api/v1/runs/{dead.pk}" and retry["trigger"] == "retry"
    assert caller.post(f"runs/{dead.pk}/retry", Idempotency_Key="a").json() == retry
    retried = caller.post(f"runs/{delayed.pk}/retry")
    assert retried.status_code == 200 and retried.json()["state"] == "ready"
    assert refusal(caller.post(f"runs/{ready.pk}/retry"), 409)["code"] == "run_is_unfinished"


def test_runs_of_another_tenant_look_like_none(caller: Caller) -> None:
    """Promise 9."""
    other = make_run(post_job(make_tenant()))
    for run_id in (other.pk, uuid4(), "nonsense"):
        for part in ("", "/attempts", "/log"):
            refusal(caller.get(f"runs/{run_id}{part}"), 404)
        for verb in ("cancel", "retry"):
            refusal(caller.post(f"runs/{run_id}/{verb}"), 404)
    assert ids(caller.get("runs")) == [] == ids(caller.get("runs", job=other.job_id))
    live = LiveRun.objects.get(pk=other.pk)
    assert live.state == "ready" and live.cancel_requested_at is None


def text(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_a_page_that_is_full_opens_the_partitions_near_its_start_alone(caller: Caller, job: Job) -> None:
    """The planner would open all of a year's otherwise, which takes longer than reading the page."""
    made = make_history(job, 6)
    with CaptureQueriesContext(connection) as seen:
        page = caller.get("runs", limit=5).json()
    assert [run["id"] for run in page["results"]] == made[:5]
    [statement] = [query["sql"] for query in seen.captured_queries if "beatkeeper_run" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'beatkeeper_run'::regclass")
        partitions = cursor.fetchone()[0]
    oldest = f"beatkeeper_run_{database_now() - timedelta(days=4):%Y%m%d}"
    assert oldest not in plan and partitions > 20


def test_a_page_that_is_not_full_goes_on_with_older_runs(caller: Caller, job: Job) -> None:
    made = make_history(job, 6, timedelta(days=1))
    first = caller.get("runs", limit=5).json()
    assert [run["id"] for run in first["results"]] == made[:5]
    second = caller.get(first["next"]).json()
    assert [run["id"] for run in second["results"]] == made[5:]
    assert ids(caller.get(second["previous"])) == made[:5]


@pytest.mark.parametrize("direction", ["older", "newer"])
@pytest.mark.parametrize("edge", [0, 2**128 - 1])
def test_a_cursor_at_the_edge_of_all_ids_is_read(caller: Caller, job: Job, direction: str, edge: int) -> None:
    place = json.dumps([direction, str(UUID(int=edge))]).encode()
    make_history(job, 1)
    assert caller.get("runs", cursor=base64.urlsafe_b64encode(place).decode()).status_code == 200
