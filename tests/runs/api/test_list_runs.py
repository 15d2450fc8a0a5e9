"""Test GET /api/v1/runs: pages of runs, and what they are filtered by."""

import base64
import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.clock import database_now
from jobs.models import Job
from jobs.validation.instants import as_text
from runs.states import FinalState, Trigger
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_finished_run, make_run, make_tenant, now, post_job

pytestmark = pytest.mark.django_db
NOW = now()
HOUR = timedelta(hours=1)


def ids(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [run["id"] for run in response.json()["results"]]


def make_history(job: Job, number: int, step: timedelta = timedelta(minutes=1)) -> list[str]:
    """Make finished runs, the newest first, as the API lists them."""
    now = database_now()
    return [str(make_finished_run(job, planned_at=now - step * n).pk) for n in range(1, number + 1)]


def reading_runs(seen: CaptureQueriesContext) -> list[str]:
    return [query["sql"] for query in seen.captured_queries if '"beatkeeper_run"."id"' in query["sql"]]


def plan_of(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}")
        return "\n".join(line for (line,) in cursor.fetchall())


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


def test_a_page_that_is_full_opens_the_partitions_near_its_start_alone(caller: Caller, job: Job) -> None:
    """The planner would open all of a year's otherwise, which takes longer than reading the page."""
    made = make_history(job, 6)
    with CaptureQueriesContext(connection) as seen:
        assert ids(caller.get("runs", limit=5)) == made[:5]
    [statement] = reading_runs(seen)
    assert f"beatkeeper_run_{database_now() - timedelta(days=4):%Y%m%d}" not in plan_of(statement)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'beatkeeper_run'::regclass")
        assert cursor.fetchone()[0] > 20


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


def test_a_page_costs_the_same_queries_whatever_its_size(caller: Caller, job: Job) -> None:
    make_history(job, 2)
    caller.get("runs")
    with CaptureQueriesContext(connection) as short:
        caller.get("runs")
    make_history(post_job(caller.tenant), 20)
    with CaptureQueriesContext(connection) as long:
        assert len(ids(caller.get("runs"))) == 22
    assert len(long) == len(short)


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
    assert ids(caller.get("runs", planned_before=as_text(now - timedelta(days=1)))) == [str(old.pk)]
    after = caller.get("runs", planned_after=as_text(dead.planned_at), planned_before=as_text(now))
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
    assert ids(caller.get("runs", finished_after=as_text(now - timedelta(hours=4)))) == [
        str(run.pk) for run in hours[:2]
    ]
    assert ids(caller.get("runs", finished_before=as_text(now - timedelta(hours=2)))) == [
        str(run.pk) for run in hours[1:]
    ]
    between = {
        "finished_after": as_text(now - timedelta(hours=4)),
        "finished_before": as_text(now - timedelta(hours=2)),
    }
    assert ids(caller.get(f"jobs/{job.pk}/runs", **between)) == [str(hours[1].pk)]


def test_a_run_that_took_days_is_found_from_when_it_was_planned(caller: Caller, job: Job) -> None:
    now = database_now()
    planned_at = now - timedelta(days=5)
    long = make_finished_run(job, planned_at=planned_at, finished_at=now)
    after = as_text(now - timedelta(hours=1))
    assert ids(caller.get("runs", finished_after=after)) == []
    assert ids(caller.get("runs", finished_after=after, planned_after=as_text(planned_at))) == [str(long.pk)]


def test_runs_by_the_name_of_their_job_and_by_their_error(caller: Caller, job: Job) -> None:
    now = database_now()
    line = "Timeout of the bank: 50% done"
    dead = make_finished_run(job, FinalState.DEAD, error_type="bank.Away", error_line=line)
    make_finished_run(job)
    other = make_finished_run(post_job(caller.tenant, name="mail"), FinalState.DEAD, error_line="no answer")
    assert (
        ids(caller.get("runs", error="TIMEOUT of")) == [str(dead.pk)] == ids(caller.get("runs", error="50%"))
    )
    assert ids(caller.get("runs", error="50_")) == [] and ids(caller.get("runs", error="away")) == [
        str(dead.pk)
    ]
    assert ids(caller.get("runs", job_name="MAI")) == [str(other.pk)]
    assert ids(caller.get(f"jobs/{job.pk}/runs", error="answer")) == []
    old = make_finished_run(job, FinalState.DEAD, planned_at=now - timedelta(days=9), error_line="long ago")
    assert ids(caller.get("runs", error="long ago")) == []
    assert ids(caller.get("runs", error="long ago", planned_after=as_text(old.planned_at))) == [str(old.pk)]
    before = as_text(now - timedelta(days=8))
    assert ids(caller.get("runs", error="long ago", planned_before=before)) == [str(old.pk)]


def test_runs_are_not_found_by_the_names_of_jobs_of_others(caller: Caller) -> None:
    make_finished_run(post_job(make_tenant(), name="settle"), FinalState.DEAD, error_line="no answer")
    assert ids(caller.get("runs", job_name="settle")) == [] == ids(caller.get("runs", error="answer"))


@pytest.mark.parametrize(
    "query",
    [
        {"finished_before": "9999-12-31T23:59:59Z"},
        {"finished_after": "1970-01-01T00:00:00Z"},
        {"planned_before": "1970-01-01T00:00:00Z", "error": "timeout"},
    ],
)
def test_a_bound_at_the_edge_of_all_instants_is_one(caller: Caller, query: dict[str, str]) -> None:
    assert ids(caller.get("runs", **query)) == []


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


@pytest.mark.parametrize(
    ("query", "partitions"),
    [
        ({"planned_after": NOW - 30 * HOUR, "planned_before": NOW - 26 * HOUR}, 2),
        ({"finished_after": NOW - HOUR, "planned_before": NOW}, 4),
        ({"error": "answer", "planned_before": NOW}, 9),
        ({"job_name": "settle", "planned_before": NOW - 48 * HOUR}, 9),
    ],
)
def test_a_filter_reads_only_the_partitions_of_its_time(
    caller: Caller, job: Job, query: dict[str, Any], partitions: int
) -> None:
    query = {name: given if isinstance(given, str) else as_text(given) for name, given in query.items()}
    caller.get("runs", **query)
    with CaptureQueriesContext(connection) as seen:
        caller.get("runs", **query)
    plans = "\n".join(plan_of(statement) for statement in reading_runs(seen))
    assert 1 <= len(set(re.findall(r"beatkeeper_run_\d{8}", plans))) <= partitions, plans
    assert not any("count(" in statement.lower() for statement in reading_runs(seen))
