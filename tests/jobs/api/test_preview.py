"""Test GET /api/v1/jobs/{id}/preview and POST /api/v1/schedules/preview."""

from typing import Any

import pytest

from jobs.models import Role
from tests.support.api_client import Caller, refusal
from tests.support.factories import post_job

pytestmark = pytest.mark.django_db


def test_the_next_times_of_a_job(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"cron": "0 2 * * *", "timezone": "Europe/Berlin"})
    body = caller.get(f"jobs/{job.pk}/preview", limit=3).json()
    assert len(body["times"]) == 3 and body["times"] == sorted(body["times"])
    assert body["times"][0] == caller.get(f"jobs/{job.pk}").json()["next_run_at"]
    assert "Europe/Berlin" in body["schedule_description"]


def test_ten_unless_told_otherwise_and_none_on_demand(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"every": 60})
    assert len(caller.get(f"jobs/{job.pk}/preview").json()["times"]) == 10
    assert caller.get(f"jobs/{post_job(caller.tenant).pk}/preview").json()["times"] == []


def test_a_schedule_nobody_saved(caller: Caller) -> None:
    viewer = Caller(caller.tenant, Role.VIEWER)
    body = viewer.post("schedules/preview", {"schedule": {"cron": "*/15 * * * *"}, "limit": 100}).json()
    assert len(body["times"]) == 100 and body["schedule_description"].startswith("Every 15 minutes")


def test_a_schedule_that_ends_has_fewer_times(caller: Caller) -> None:
    schedule = {"at": "2099-01-01T00:00:00Z"}
    assert caller.post("schedules/preview", {"schedule": schedule}).json()["times"] == [
        "2099-01-01T00:00:00.000Z"
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "schedule"),
        ({"schedule": {"cron": "x"}}, "schedule.cron"),
        ({"schedule": {"every": 5}, "limit": 0}, "limit"),
        ({"schedule": {"every": 5}, "limit": 101}, "limit"),
        ({"schedule": {"every": 5}, "limit": "many"}, "limit"),
        ({"schedule": {"every": 5}, "limit": "3"}, "limit"),
        ({"schedule": {"every": 5}, "m": 1}, "m"),
    ],
)
def test_a_bad_request_is_refused(caller: Caller, body: dict[str, Any], field: str) -> None:
    refusal(caller.post("schedules/preview", body), 400, field)


def test_a_schedule_alone_is_refused_with_where_it_belongs(caller: Caller) -> None:
    problem = refusal(caller.post("schedules/preview", {"cron": "0 9 * * *"}), 400, "schedule")
    assert '{"schedule": {"cron"' in problem["hint"]


def test_a_bad_number_is_refused(caller: Caller) -> None:
    job = post_job(caller.tenant)
    for number in ("0", "101", "-1", "ten", "1.5", "²"):
        refusal(caller.get(f"jobs/{job.pk}/preview", limit=number), 400, "limit")
