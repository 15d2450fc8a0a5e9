"""Test GET /api/v1/jobs/{id}/missed."""

from datetime import timedelta
from typing import Any

import pytest

from jobs.models import Job, Role
from jobs.validation.instants import as_text
from runs.models import MissedSpan
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_tenant, now, post_job

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def caller() -> Caller:
    return Caller(make_tenant(slug="acme"), Role.VIEWER)


@pytest.fixture
def job(caller: Caller) -> Job:
    return post_job(caller.tenant, schedule={"every": 3600})


def missed(job: Job, hours: int, **fields: Any) -> MissedSpan:
    since = now() - hours * HOUR
    span = {"tenant": job.tenant, "job": job, "version": 1, "begins_at": since, "ends_at": since + HOUR}
    return MissedSpan.objects.create(**{**span, "reason": "downtime", "policy": "last", "count": 1, **fields})


def test_missed_times_are_listed_with_their_reason_the_latest_first(caller: Caller, job: Job) -> None:
    old, late = missed(job, 30), missed(job, 3, reason="paused: deploy", policy="all", made=2)
    found = caller.get(job_link(caller, job)).json()["results"]
    assert [row["begins_at"] for row in found] == [as_text(late.begins_at), as_text(old.begins_at)]
    first = found[0]
    assert (first["ends_at"], first["count"], first["runs_made"]) == (as_text(late.ends_at), 1, 2)
    assert (first["reason"], first["reason_text"]) == ("paused", "held by a pause: deploy")
    assert (first["state"], first["policy"], first["version"]) == ("settled", "all", 1)


def test_they_come_in_pages(caller: Caller, job: Job) -> None:
    spans = [missed(job, hours) for hours in (1, 2, 3)]
    page = caller.get(f"jobs/{job.pk}/missed", limit=2).json()
    rest = caller.get(page["next"]).json()
    listed = [row["begins_at"] for row in page["results"] + rest["results"]]
    assert listed == [as_text(span.begins_at) for span in spans] and rest["next"] is None


def test_those_of_other_jobs_and_tenants_are_not_shown(caller: Caller, job: Job) -> None:
    theirs = missed(post_job(make_tenant()), 2)
    missed(post_job(caller.tenant), 2)
    assert caller.get(f"jobs/{job.pk}/missed").json()["results"] == []
    refusal(caller.get(f"jobs/{theirs.job_id}/missed"), 404)


def job_link(caller: Caller, job: Job) -> str:
    address: str = caller.get(f"jobs/{job.pk}").json()["links"]["missed"]
    return address
