"""/api/v1/calendars, and jobs that name one."""

from typing import Any

import pytest

from auditlog.models import AuditEntry
from jobs.calendars import service as calendars
from jobs.errors import TooMany
from jobs.models import Calendar, Job, Role, Tenant
from tests.support.api_client import Caller, refusal
from tests.support.factories import job_spec, make_tenant

pytestmark = pytest.mark.django_db
HOLIDAYS: dict[str, Any] = {
    "name": "us-holidays",
    "description": "Days off",
    "timezone": "America/New_York",
    "dates": [{"date": "2026-12-25", "name": "Christmas"}, "2026-11-26"],
    "weekly": {"mon": [["13:00", "17:00"], ["09:00", "12:00"]], "tue": [["00:00", "24:00"]]},
}
AT_TEN = {"cron": "0 10 * * *", "timezone": "America/New_York"}


def by_calendar(name: str = "us-holidays", **more: Any) -> dict[str, Any]:
    return {**job_spec(), "schedule": {**AT_TEN, "calendar": {"name": name}, **more}}


def test_a_calendar_is_made_and_read_back_in_order(caller: Caller) -> None:
    made = caller.post("calendars", HOLIDAYS)
    assert made.status_code == 201 and made["Location"] == "/api/v1/calendars/us-holidays"
    body = made.json()
    assert body["dates"] == [{"date": "2026-11-26", "name": ""}, {"date": "2026-12-25", "name": "Christmas"}]
    assert body["weekly"] == {"mon": [["09:00", "12:00"], ["13:00", "17:00"]], "tue": [["00:00", "24:00"]]}
    assert (body["timezone"], body["edition"], body["rearming"]) == ("America/New_York", 1, False)
    assert caller.get("calendars/us-holidays").json() == body
    assert caller.get("calendars").json()["results"] == [body]


def test_only_a_name_is_needed(caller: Caller) -> None:
    body = caller.post("calendars", {"name": "plain"}).json()
    assert (body["timezone"], body["dates"], body["weekly"]) == ("UTC", [], {})


def test_each_mistake_is_named_by_its_field(caller: Caller) -> None:
    dates = ["2026-12-25", {"date": "2026-01-01", "name": 5}, "25.12.2026", "2026-02-30", "2026-12-25", 7]
    weekly = {
        "mon": [["09:00", "25:00"], ["9:00", "10:00"]],
        "tue": [["22:00", "06:00"]],
        "wed": [["09:00", "12:00"], ["11:00", "13:00"]],
        "thu": "all day",
        "someday": [],
    }
    wrong = {"name": "US Holidays", "description": 5, "timezone": "Mars", "dates": dates, "weekly": weekly}
    problem = refusal(caller.post("calendars", wrong), 400, "name")
    found = {(error["field"], error["detail"]) for error in problem["errors"]}
    assert found == {
        ("name", '"US Holidays" is not a name'),
        ("description", "5 is not a description"),
        ("timezone", "Mars is not a known time zone"),
        ("dates[1].name", "the name is not one"),
        ("dates[2]", "'25.12.2026' is not a date"),
        ("dates[3]", "2026-02-30 does not exist"),
        ("dates[4]", "2026-12-25 is given twice"),
        ("dates[5]", "a number is not a date"),
        ("weekly.someday", "someday is not a day"),
        ("weekly.mon[0]", "'25:00' is not a time of day"),
        ("weekly.mon[1]", "'9:00' is not a time of day"),
        ("weekly.tue[0]", "06:00 is not after 22:00"),
        ("weekly.wed", "two spans overlap: one ends at 12:00, another begins at 11:00"),
        ("weekly.thu", "a string is not hours"),
    }
    over_midnight = next(e for e in problem["errors"] if e["field"] == "weekly.tue[0]")
    assert "22:00 to 24:00 here, and 00:00 to 06:00 on the next day" in over_midnight["hint"]
    assert not Calendar.objects.exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": None}, "name"),
        ({"name": "-x"}, "name"),
        ({"dates": {"2026-12-25": "Christmas"}}, "dates"),
        ({"dates": ["1969-12-31"]}, "dates[0]"),
        ({"dates": ["2026-12-25"] * 2001}, "dates"),
        ({"dates": [{"day": "2026-12-25"}]}, "dates[0].day"),
        ({"weekly": []}, "weekly"),
        ({"weekly": {"mon": []}}, "weekly"),
        ({"weekly": {"mon": [["09:00"]]}}, "weekly.mon[0]"),
        ({"weekly": {"mon": [["24:00", "24:00"]]}}, "weekly.mon[0]"),
        ({"timezone": None}, "timezone"),
        ({"jobs": []}, "jobs"),
    ],
)
def test_nonsense_is_refused(caller: Caller, changes: dict[str, Any], field: str) -> None:
    refusal(caller.post("calendars", {**HOLIDAYS, **changes}), 400, field)
    assert not Calendar.objects.exists()


def test_a_name_is_there_once_and_never_changes(caller: Caller) -> None:
    caller.post("calendars", HOLIDAYS)
    assert refusal(caller.post("calendars", HOLIDAYS), 409, "name")["code"] == "duplicate_name"
    refusal(caller.patch("calendars/us-holidays", {"name": "other"}), 400, "name")
    assert caller.patch("calendars/us-holidays", {"name": "us-holidays"}).status_code == 200


def test_an_edit_changes_what_is_given_and_says_so(caller: Caller) -> None:
    before = caller.post("calendars", HOLIDAYS).json()
    edited = caller.patch("calendars/us-holidays", {"dates": ["2026-07-03"]}).json()
    assert edited["dates"] == [{"date": "2026-07-03", "name": ""}]
    assert (edited["weekly"], edited["timezone"]) == (before["weekly"], before["timezone"])
    assert (edited["edition"], edited["rearming"]) == (2, True)
    entry = AuditEntry.objects.get(action="calendar.edited")
    assert entry.before == {"dates": before["dates"]} and entry.after == {"dates": edited["dates"]}
    assert entry.tenant_id == caller.tenant.pk and entry.actor_kind == "key"


def test_a_word_about_it_or_the_same_again_disturbs_no_clock(caller: Caller) -> None:
    caller.post("calendars", HOLIDAYS)
    edited = caller.patch("calendars/us-holidays", {**HOLIDAYS, "description": "Others"}).json()
    assert (edited["description"], edited["edition"], edited["rearming"]) == ("Others", 1, False)
    caller.patch("calendars/us-holidays", {"dates": list(reversed(HOLIDAYS["dates"]))})
    assert Calendar.objects.get().edition == 1
    assert AuditEntry.objects.filter(action="calendar.edited").count() == 1


def test_a_calendar_that_jobs_plan_by_stays(caller: Caller) -> None:
    caller.post("calendars", HOLIDAYS)
    job = caller.post("jobs", {**by_calendar(), "name": "settle"}).json()
    problem = refusal(caller.delete("calendars/us-holidays"), 409)
    assert problem["code"] == "calendar_in_use" and "settle" in problem["detail"]
    caller.patch(f"jobs/{job['id']}", {"schedule": {"calendar": None}})
    assert caller.delete("calendars/us-holidays").status_code == 204
    refusal(caller.get("calendars/us-holidays"), 404)
    assert caller.get("calendars").json()["results"] == []
    entry: Any = AuditEntry.objects.get(action="calendar.deleted")
    assert entry.before["name"] == "us-holidays"
    refusal(caller.post("jobs", by_calendar()), 400, "schedule.calendar.name")
    assert caller.post("calendars", HOLIDAYS).status_code == 201


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_what_is_over_keeps_no_calendar(caller: Caller, end: str) -> None:
    caller.post("calendars", HOLIDAYS)
    job = caller.post("jobs", by_calendar()).json()
    if end == "cancel":
        caller.post(f"jobs/{job['id']}/cancel")
    else:
        caller.delete(f"jobs/{job['id']}")
    assert caller.delete("calendars/us-holidays").status_code == 204


def test_a_tenant_sees_and_names_only_its_own(caller: Caller) -> None:
    other = Caller(make_tenant())
    other.post("calendars", HOLIDAYS)
    assert caller.get("calendars").json()["results"] == []
    for answer in (
        caller.get("calendars/us-holidays"),
        caller.patch("calendars/us-holidays", {}),
        caller.delete("calendars/us-holidays"),
    ):
        assert refusal(answer, 404)["detail"] == 'there is no calendar "us-holidays"'
    problem = refusal(caller.post("jobs", by_calendar()), 400, "schedule.calendar.name")
    assert "us-holidays" not in problem["hint"] and problem["code"] == "unknown_calendar"
    assert caller.post("calendars", HOLIDAYS).status_code == 201


def test_only_an_admin_writes(caller: Caller) -> None:
    caller.post("calendars", HOLIDAYS)
    operator = Caller(caller.tenant, Role.OPERATOR)
    assert operator.get("calendars/us-holidays").status_code == 200
    refusal(operator.post("calendars", {"name": "mine"}), 403)
    refusal(operator.patch("calendars/us-holidays", {}), 403)
    refusal(operator.delete("calendars/us-holidays"), 403)


def test_a_request_with_a_key_is_done_once(caller: Caller) -> None:
    first = caller.post("calendars", HOLIDAYS, Idempotency_Key="one")
    again = caller.post("calendars", HOLIDAYS, Idempotency_Key="one")
    assert first.json() == again.json() and again["Idempotency-Replayed"] == "true"


# Jobs


def test_a_job_keeps_to_its_calendar(caller: Caller) -> None:
    caller.post("calendars", {"name": "us-holidays", "weekly": {"mon": [["00:00", "24:00"]]}})
    body = caller.post("jobs", by_calendar(jitter="PT5M")).json()
    assert body["schedule"] == {
        **AT_TEN,
        "calendar": {"name": "us-holidays", "on_closed": "exclude"},
        "jitter": "PT5M",
    }
    assert body["schedule_description"] == (
        "At 10:00 every day, America/New_York, not when us-holidays is closed, beginning within 5 minutes"
    )
    times = caller.get(f"jobs/{body['id']}/preview").json()["times"]
    assert times[0] == body["next_run_at"]
    assert Job.objects.get().spec.calendar == Calendar.objects.get()
    assert caller.get(f"jobs/{body['id']}").json()["schedule"] == body["schedule"]
    again = caller.patch(f"jobs/{body['id']}", {"schedule": body["schedule"]}).json()
    assert again["version"] == 1


def test_jobs_are_found_by_their_calendar(caller: Caller) -> None:
    for name in ("us-holidays", "others"):
        caller.post("calendars", {"name": name})
    by_us = caller.post("jobs", by_calendar()).json()
    moved = caller.post("jobs", by_calendar()).json()
    caller.patch(f"jobs/{moved['id']}", {"schedule": by_calendar("others")["schedule"]})
    found = caller.get("jobs", calendar="us-holidays").json()["results"]
    assert [job["id"] for job in found] == [by_us["id"]]
    assert caller.get("jobs", calendar="nobody").json()["results"] == []


def test_a_calendar_is_called_by_a_near_name(caller: Caller) -> None:
    caller.post("calendars", HOLIDAYS)
    problem = refusal(caller.post("jobs", by_calendar("us-holiday")), 400, "schedule.calendar.name")
    assert problem["hint"] == "did you mean us-holidays?"


@pytest.mark.parametrize("on_closed", ["exclude", "next"])
def test_a_schedule_that_is_never_open_is_refused(caller: Caller, on_closed: str) -> None:
    caller.post("calendars", {**HOLIDAYS, "weekly": {"mon": [["09:00", "10:00"]]}})
    schedule = {**AT_TEN, "calendar": {"name": "us-holidays", "on_closed": on_closed}}
    problem = refusal(caller.post("jobs", {**job_spec(), "schedule": schedule}), 400, "schedule.calendar")
    assert (
        problem["code"] == "never_open"
        and problem["detail"] == "no time of the schedule is open in us-holidays"
    )
    assert not Job.objects.exists()


def test_one_time_on_a_closed_day_is_refused_or_moved(caller: Caller) -> None:
    caller.post("calendars", {"name": "us-holidays", "dates": ["2099-12-25"]})
    once = {"at": "2099-12-25T12:00:00Z", "calendar": {"name": "us-holidays"}}
    refusal(caller.post("jobs", {**job_spec(), "schedule": once}), 400, "schedule.calendar")
    moved = {**once, "calendar": {"name": "us-holidays", "on_closed": "previous"}}
    body = caller.post("jobs", {**job_spec(), "schedule": moved}).json()
    assert body["next_run_at"] == "2099-12-24T12:00:00.000Z"


def test_a_schedule_nobody_saved_is_shown_with_its_calendar(caller: Caller) -> None:
    caller.post("calendars", {"name": "us-holidays", "weekly": {"mon": [["00:00", "24:00"]]}})
    body = caller.post("schedules/preview", {"schedule": by_calendar()["schedule"], "limit": 3}).json()
    assert len(body["times"]) == 3 and body["schedule_description"].endswith("not when us-holidays is closed")
    refusal(
        caller.post("schedules/preview", {"schedule": by_calendar("none")["schedule"]}),
        400,
        "schedule.calendar.name",
    )


def test_an_edit_of_other_fields_keeps_the_calendar(caller: Caller) -> None:
    caller.post("calendars", HOLIDAYS)
    job = caller.post("jobs", by_calendar()).json()
    caller.patch(f"jobs/{job['id']}", {"timeout": 5})
    assert Job.objects.get().spec.calendar == Calendar.objects.get()
    caller.patch(f"jobs/{job['id']}", {"schedule": {"every": 60}})
    assert Job.objects.get().spec.calendar is None


def test_all_that_was_missed_is_made_up_for_as_asked(caller: Caller) -> None:
    asked = {"policy": "all", "window": "PT6H", "max": 50, "per_minute": 10, "order": "newest"}
    body = caller.post("jobs", {**job_spec(), "catch_up": asked}).json()
    assert body["catch_up"] == asked
    nulls = dict.fromkeys(("window", "max", "per_minute", "order"))
    defaults = caller.patch(f"jobs/{body['id']}", {"catch_up": nulls}).json()["catch_up"]
    assert defaults == {"policy": "all", "window": "P1D", "max": 1000, "per_minute": 60, "order": "oldest"}
    entry: Any = AuditEntry.objects.get(action="job.edited")
    assert entry.after["catch_up"]["max"] == 1000 and entry.before["catch_up"]["max"] == 50
    last = caller.patch(f"jobs/{body['id']}", {"catch_up": {"policy": "last"}}).json()["catch_up"]
    assert last == {"policy": "last", "window": "P1D"}


def test_a_tenant_has_only_so_many_calendars(monkeypatch: pytest.MonkeyPatch, tenant: Tenant) -> None:
    monkeypatch.setattr(calendars, "MAX_CALENDARS", 2)
    first = calendars.create_calendar(tenant, {"name": "one"})
    calendars.create_calendar(tenant, {"name": "two"})
    with pytest.raises(TooMany, match="2") as refused:
        calendars.create_calendar(tenant, {"name": "three"})
    assert refused.value.code == "too_many_calendars"
    calendars.create_calendar(make_tenant(), {"name": "three"})
    calendars.delete_calendar(first)
    calendars.create_calendar(tenant, {"name": "three"})
