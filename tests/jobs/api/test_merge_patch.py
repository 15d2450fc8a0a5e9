"""A PATCH of a job is a JSON merge patch: what it leaves out stays, null deletes, a change of kind is named."""

import json
from typing import Any

import pytest

from tests.support.api_client import Caller, refusal
from tests.support.factories import job_spec, make_pool, make_tenant

pytestmark = pytest.mark.django_db
BERLIN = {
    "cron": "0 3 * * *",
    "timezone": "Europe/Berlin",
    "jitter": "PT5M",
    "calendar": {"name": "us-holidays", "on_closed": "next"},
}
HTTP = {
    "kind": "http",
    "method": "PUT",
    "url": "https://example.com/a",
    "headers": {"X-A": "1", "X-B": "2"},
    "body": {"invoice": {"id": 1, "lines": [1, 2]}},
    "timeout": "PT10S",
}


@pytest.fixture
def caller() -> Caller:
    make_pool(slug="default", exported_tasks=["tests.succeeds"])
    found = Caller(make_tenant())
    assert found.post("calendars", {"name": "us-holidays"}).status_code == 201
    return found


def made(caller: Caller, **fields: Any) -> dict[str, Any]:
    answer = caller.post("jobs", job_spec(**fields))
    assert answer.status_code == 201, answer.content
    job: dict[str, Any] = answer.json()
    return job


def patched(caller: Caller, job: dict[str, Any], **changes: Any) -> dict[str, Any]:
    answer = caller.patch(f"jobs/{job['id']}", changes)
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def gone(answer: dict[str, Any]) -> list[str]:
    """Without the warning that no worker knows the target, which every answer here has."""
    return [warning for warning in answer["warnings"] if "of another kind" in warning]


def test_a_new_cron_expression_keeps_zone_jitter_and_calendar(caller: Caller) -> None:
    job = made(caller, schedule=BERLIN)
    answer = patched(caller, job, schedule={"cron": "0 4 * * *"})
    assert answer["schedule"] == {**BERLIN, "cron": "0 4 * * *"}
    assert answer["version"] == 2 and gone(answer) == []


def test_a_schedule_need_not_name_its_kind(caller: Caller) -> None:
    job = made(caller, schedule=BERLIN)
    answer = patched(caller, job, schedule={"jitter": None, "calendar": {"on_closed": None}})
    kept = {name: part for name, part in BERLIN.items() if name != "jitter"}
    assert answer["schedule"] == {**kept, "calendar": {"name": "us-holidays", "on_closed": "exclude"}}
    assert patched(caller, job, schedule={"timezone": None})["schedule"]["timezone"] == "UTC"


@pytest.mark.parametrize("also", [{}, {"cron": None}])
def test_a_schedule_of_another_kind_names_what_is_gone(caller: Caller, also: dict[str, None]) -> None:
    job = made(caller, schedule=BERLIN)
    answer = patched(caller, job, schedule={"every": 300, **also})
    assert answer["schedule"] == {"every": "PT5M"}
    [warning] = gone(answer)
    assert warning.startswith("schedule is of another kind")
    assert all(name in warning for name in ("timezone", "jitter", "calendar"))
    assert gone(caller.get(f"jobs/{job['id']}").json()) == []


def test_an_interval_keeps_its_start(caller: Caller) -> None:
    job = made(caller, schedule={"every": 60, "begins_at": "2026-01-01T00:00:00Z"})
    answer = patched(caller, job, schedule={"every": 120})
    assert answer["schedule"] == {"every": "PT2M", "begins_at": "2026-01-01T00:00:00.000Z"}


def test_a_local_time_keeps_its_zone_until_an_instant_takes_its_place(caller: Caller) -> None:
    job = made(caller, schedule={"at": "2099-12-24T18:00", "timezone": "Europe/Berlin", "jitter": "PT5M"})
    answer = patched(caller, job, schedule={"at": "2099-12-25T18:00"})
    assert answer["schedule"] == {**job["schedule"], "at": "2099-12-25T18:00:00"}
    answer = patched(caller, job, schedule={"at": "2099-12-26T18:00:00Z"})
    assert answer["schedule"] == {"at": "2099-12-26T18:00:00.000Z", "jitter": "PT5M"}


def test_null_makes_a_job_on_demand_and_an_object_plans_it_again(caller: Caller) -> None:
    job = made(caller, schedule=BERLIN)
    answer = patched(caller, job, schedule=None)
    assert answer["schedule"] is None and gone(answer) == []
    answer = patched(caller, job, schedule={"every": 60})
    assert answer["schedule"] == {"every": "PT1M"} and gone(answer) == []


def test_a_retry_policy_keeps_its_other_parts(caller: Caller) -> None:
    job = made(caller, retry={"base": "PT3S", "jitter": "none", "permanent": ["ValueError"]})
    answer = patched(caller, job, retry={"max_attempts": 2})
    assert answer["retry"] == {**job["retry"], "max_attempts": 2}
    assert patched(caller, job, retry={"base": None})["retry"]["base"] == "PT10S"


def test_what_follows_from_other_parts_of_a_retry_policy_follows_the_patch(caller: Caller) -> None:
    """Kept, three lost workers would run a job of one attempt again, and no first delay over an hour would go."""
    job = made(caller)
    assert patched(caller, job, retry={"max_attempts": 1})["retry"]["max_losses"] == 1
    assert patched(caller, job, retry={"base": "PT2H"})["retry"]["cap"] == "PT2H"
    given = made(caller, name="given", retry={"max_losses": 7, "cap": "PT30M"})
    answer = patched(caller, given, retry={"max_attempts": 1})
    assert (answer["retry"]["max_losses"], answer["retry"]["cap"]) == (7, "PT30M")
    refusal(caller.patch(f"jobs/{given['id']}", {"retry": {"base": "PT2H"}}), 400, "retry.cap")


def test_a_target_of_the_same_kind_keeps_its_other_parts(caller: Caller) -> None:
    job = made(caller, target=HTTP)
    answer = patched(caller, job, target={"url": "https://example.com/b", "headers": {"X-A": None}})
    assert answer["target"] == {
        **job["target"],
        "url": "https://example.com/b",
        "headers": {"X-B": "2"},
    }
    answer = patched(
        caller, job, target={"kind": "http", "body": {"invoice": {"lines": [3]}}, "timeout": None}
    )
    assert answer["target"]["body"] == {"invoice": {"id": 1, "lines": [3]}}
    assert "timeout" not in answer["target"] and gone(answer) == []


def test_a_target_of_another_kind_names_what_is_gone(caller: Caller) -> None:
    job = made(caller, target=HTTP)
    answer = patched(caller, job, target={"kind": "command", "argv": ["true"]})
    assert answer["target"] == {"kind": "command", "argv": ["true"], "env": {}}
    [warning] = gone(answer)
    assert warning.startswith("target is of another kind") and "headers" in warning
    assert "example.com" not in warning


def test_another_catch_up_policy_keeps_the_window_and_names_what_is_gone(caller: Caller) -> None:
    job = made(caller, catch_up={"policy": "all", "window": "PT6H", "max": 50})
    answer = patched(caller, job, catch_up={"policy": "skip"})
    assert answer["catch_up"] == {"policy": "skip", "window": "PT6H"}
    [warning] = gone(answer)
    assert warning.startswith("catch_up is of another kind") and "max" in warning
    answer = patched(caller, job, catch_up={"policy": "all", "order": "newest"})
    assert (answer["catch_up"]["window"], answer["catch_up"]["max"]) == ("PT6H", 1000)


def test_a_breaker_keeps_its_cooldown(caller: Caller) -> None:
    job = made(caller, breaker={"failures": 5, "cooldown": "PT1H"})
    assert patched(caller, job, breaker={"failures": 3})["breaker"] == {"failures": 3, "cooldown": "PT1H"}
    assert patched(caller, job, breaker=None)["breaker"] is None


def test_tags_are_added_and_deleted_one_by_one(caller: Caller) -> None:
    job = made(caller, tags={"team": "payments", "tier": "1"})
    answer = patched(caller, job, tags={"tier": None, "owner": "olga"})
    assert answer["tags"] == {"team": "payments", "owner": "olga"}


def test_null_sets_a_field_to_its_default_and_a_required_one_stays_required(caller: Caller) -> None:
    job = made(caller, timeout="PT5M", description="old", tags={"a": "b"}, retry={"base": "PT3S"})
    answer = patched(caller, job, timeout=None, description=None, tags=None, retry=None)
    assert (answer["timeout"], answer["description"], answer["tags"]) == ("PT1H", "", {})
    assert answer["retry"]["base"] == "PT10S"
    for name in ("name", "target"):
        refusal(caller.patch(f"jobs/{job['id']}", {name: None}), 400, name)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schedule": {"every": 60, "cron": "0 4 * * *"}}, "schedule"),
        ({"schedule": {"cron": None}}, "schedule"),
        ({"schedule": {"timezone": "Europe/Berlyn"}}, "schedule.timezone"),
        ({"schedule": {"every": 60, "timezone": "UTC"}}, "schedule.timezone"),
        ({"schedule": "daily"}, "schedule"),
        ({"target": {"kind": None}}, "target.kind"),
        ({"target": {"url": None}}, "target.url"),
        ({"target": {"argv": ["true"]}}, "target.argv"),
        ({"catch_up": {"policy": "last", "max": 5}}, "catch_up.max"),
        ({"priority": {}}, "priority"),
        ({"pool": {"name": "default"}}, "pool"),
        ({"version": 1}, "version"),
    ],
)
def test_a_patch_is_refused_by_what_would_come_of_it(
    caller: Caller, changes: dict[str, Any], field: str
) -> None:
    job = made(caller, schedule=BERLIN, target=HTTP)
    refusal(caller.patch(f"jobs/{job['id']}", changes), 400, field)
    assert caller.get(f"jobs/{job['id']}").json()["version"] == 1


def test_an_empty_patch_and_one_of_what_is_there_change_nothing(caller: Caller) -> None:
    job = made(caller, schedule=BERLIN, target=HTTP, retry={"base": "PT3S"}, tags={"a": "b"})
    nested: dict[str, Any] = {"schedule": {}, "retry": {}, "tags": {}}
    patches: list[dict[str, Any]] = [{}, nested, {"target": job["target"]}]
    for patch in patches:
        answer = patched(caller, job, **patch)
        assert {name for name in answer if answer[name] != job.get(name)} <= {
            "estimated_start_at",
            "warnings",
        }


def test_the_media_type_of_a_merge_patch_is_taken(caller: Caller) -> None:
    job = made(caller)
    kind = "application/merge-patch+json"
    answer = caller.client.patch(f"/api/v1/jobs/{job['id']}", json.dumps({"priority": 7}), content_type=kind)
    assert answer.status_code == 200 and answer.json()["priority"] == 7
    assert caller.client.post("/api/v1/jobs", "{}", content_type=kind).status_code == 415
