"""Test GET /api/v1/jobs/{id}/versions."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job, Role
from jobs.services.definition import edit_job
from tests.support.api_client import Caller, refusal
from tests.support.factories import TASK, make_job, make_run, make_tenant, post_job


def target(**kwargs: Any) -> dict[str, Any]:
    return {"kind": "celery", "task": TASK, "args": [], "kwargs": kwargs}


@pytest.fixture
def job(caller: Caller) -> Job:
    job = post_job(caller.tenant, schedule={"cron": "0 3 * * *", "timezone": "Europe/Berlin"})
    edit_job(job, {"schedule": {"cron": "0 4 * * *", "timezone": "Europe/Berlin"}, "max_concurrency": 2})
    edit_job(job, {"target": target(limit=5, day="x")})
    edit_job(job, {"target": target(limit=6)})
    return job


def versions(caller: Caller, job: Job, **query: Any) -> list[dict[str, Any]]:
    address = caller.get(f"jobs/{job.pk}").json()["links"]["versions"]
    found: list[dict[str, Any]] = caller.get(address, **query).json()["results"]
    return found


def test_each_version_shows_what_its_edit_changed(caller: Caller, job: Job) -> None:
    found = versions(caller, job)
    assert [one["version"] for one in found] == [4, 3, 2, 1]
    assert found[3]["changes"] == []
    assert found[2]["changes"] == [
        {"field": "max_concurrency", "before": None, "after": 2},
        {"field": "schedule.cron", "before": "0 3 * * *", "after": "0 4 * * *"},
    ]
    assert [change["field"] for change in found[1]["changes"]] == ["target.kwargs.day", "target.kwargs.limit"]
    assert found[0]["changes"] == [
        {"field": "target.kwargs.day", "before": "x", "after": None},
        {"field": "target.kwargs.limit", "before": 5, "after": 6},
    ]
    assert found[2]["spec"]["schedule"]["cron"] == "0 4 * * *" and found[2]["created_by"]
    assert "04:00" in found[2]["schedule_description"]


def test_one_version_is_read_by_its_number(caller: Caller, job: Job) -> None:
    second = caller.get(f"jobs/{job.pk}/versions/2").json()
    assert second == versions(caller, job)[2]
    run = caller.get(f"runs/{make_run(job).pk}").json()
    assert caller.get(run["links"]["version"]).json()["version"] == run["version"]
    for given in ("9", "0", "x", "-1", "9" * 40):
        refusal(caller.get(f"jobs/{job.pk}/versions/{given}"), 404)


def test_a_page_knows_the_version_before_its_last(caller: Caller, job: Job) -> None:
    [only] = versions(caller, job, limit=1)
    assert len(only["changes"]) == 2


def test_a_viewer_sees_that_a_secret_changed_and_not_what_it_is(caller: Caller, job: Job) -> None:
    edit_job(job, {"target": target(limit=6, password="hush")})
    edit_job(job, {"target": target(limit=6, password="quiet")})
    viewer = Caller(caller.tenant, Role.VIEWER)
    answer = viewer.get(f"jobs/{job.pk}/versions")
    assert "hush" not in answer.content.decode() and "quiet" not in answer.content.decode()
    [change] = answer.json()["results"][0]["changes"]
    assert change["field"] == "target.kwargs.password" and change["after"]
    [change] = versions(caller, job)[0]["changes"]
    assert (change["before"], change["after"]) == ("hush", "quiet")


def test_those_of_another_tenant_look_like_none(caller: Caller) -> None:
    theirs = post_job(make_tenant())
    refusal(caller.get(f"jobs/{theirs.pk}/versions"), 404)
    refusal(caller.get(f"jobs/{theirs.pk}/versions/1"), 404)


def test_a_page_costs_the_same_queries_whatever_its_size(caller: Caller, job: Job) -> None:
    versions(caller, job)
    with CaptureQueriesContext(connection) as long:
        versions(caller, job)
    with CaptureQueriesContext(connection) as short:
        versions(caller, job, limit=2)
    assert len(long) == len(short)


def test_a_version_shows_what_was_changed_of_the_job_itself(caller: Caller, job: Job) -> None:
    edit_job(job, {"tags": {"team": "a"}, "priority": 7})
    latest = versions(caller, job)[0]
    assert latest["changes"] == [
        {"field": "priority", "before": 500, "after": 7},
        {"field": "tags.team", "before": None, "after": "a"},
    ]
    assert (latest["spec"]["name"], latest["spec"]["pool"]) == (job.name, "default")


def test_a_version_from_before_these_were_kept_shows_no_change_of_them(caller: Caller) -> None:
    job = make_job(caller.tenant)
    edit_job(job, {"timeout": 5})
    assert [change["field"] for change in versions(caller, job)[0]["changes"]] == ["timeout"]
