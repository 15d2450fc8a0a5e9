"""Test /api/v1/jobs/{id}/times, and what a preview says of them."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from jobs.models import Effect, Job, Override, Role, SuspensionKind
from jobs.validation.instants import as_text, read
from runs.scheduler.trigger.trigger import trigger_job
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_finished_run, make_suspension, make_tenant, now, post_job

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def job(caller: Caller) -> Job:
    return post_job(caller.tenant, schedule={"every": 3600})


def times(caller: Caller, job: Job) -> list[str]:
    found: list[str] = caller.get(f"jobs/{job.pk}/preview").json()["times"]
    return found


def ahead(caller: Caller, job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caller.get(f"jobs/{job.pk}/preview").json()["ahead"]
    return found


def later(text: str, by: timedelta) -> str:
    return as_text(read(text, "text") + by)


def test_a_time_is_skipped_shown_and_restored(caller: Caller, job: Job) -> None:
    first = times(caller, job)[0]
    answer = caller.post(f"jobs/{job.pk}/times", {"planned_at": first, "skip": True, "reason": "holiday"})
    made = answer.json()
    assert answer.status_code == 201 and answer["Location"] == made["links"]["self"]
    assert (made["planned_at"], made["skip"], made["move_to"], made["reason"]) == (
        first,
        True,
        None,
        "holiday",
    )
    assert (made["created_by"], made["done_at"], made["run"]) == (str(caller.key), None, None)
    assert caller.get(made["links"]["self"]).json() == made and UUID(made["id"]).version == 4
    assert caller.get(f"jobs/{job.pk}/times").json()["results"] == [made]
    shown = ahead(caller, job)[0]
    assert (shown["planned_at"], shown["starts_at"], shown["skipped"]) == (first, None, True)
    assert shown["override"] == made["id"] and shown["description"] == f"skipped by {caller.key}: holiday"
    assert caller.delete(made["links"]["self"]).status_code == 204
    refusal(caller.get(made["links"]["self"]), 404)
    assert not ahead(caller, job)[0]["skipped"]


def test_the_next_run_is_past_skipped_times_and_with_moved_ones(caller: Caller, job: Job) -> None:
    first, second, third, *_ = times(caller, job)

    def next_run() -> str:
        [listed] = caller.get("jobs").json()["results"]
        explained = caller.get(f"jobs/{job.pk}/explain").json()
        found: str = caller.get(f"jobs/{job.pk}").json()["next_run_at"]
        assert listed["next_run_at"] == found == explained["next_run_at"]
        return found

    def change(planned_at: str, **how: Any) -> None:
        answer = caller.post(f"jobs/{job.pk}/times", {"planned_at": planned_at, **how})
        assert answer.status_code in (200, 201), answer.content

    change(first, skip=True)
    assert next_run() == second
    change(second, move_to=later(third, HOUR / 2))
    assert next_run() == third
    change(third, skip=True)
    assert next_run() == later(third, HOUR / 2)
    change(first, move_to=later(first, HOUR / 2))
    assert next_run() == later(first, HOUR / 2)


def test_a_job_whose_last_times_are_skipped_has_no_next_run(caller: Caller) -> None:
    job = post_job(caller.tenant, schedule={"at": "2099-01-01T00:00:00Z"})
    answer = caller.post(f"jobs/{job.pk}/times", {"planned_at": "2099-01-01T00:00:00Z", "skip": True})
    assert answer.status_code == 201 and caller.get(f"jobs/{job.pk}").json()["next_run_at"] is None


def test_a_time_is_moved(caller: Caller, job: Job) -> None:
    first, second, *_ = times(caller, job)
    to = later(first, -HOUR / 2)
    made = caller.post(f"jobs/{job.pk}/times", {"planned_at": second, "move_to": to}).json()
    assert (made["skip"], made["move_to"]) == (False, to)
    assert caller.get(f"jobs/{job.pk}").json()["next_run_at"] == to
    shown = ahead(caller, job)[1]
    assert (shown["planned_at"], shown["starts_at"], shown["moved_to"]) == (second, to, to)


def test_a_later_request_for_the_same_time_changes_its_override(caller: Caller, job: Job) -> None:
    first = times(caller, job)[0]
    made = caller.post(f"jobs/{job.pk}/times", {"planned_at": first, "skip": True}).json()
    to = later(first, HOUR / 2)
    body = {"planned_at": first, "move_to": to}
    changed = caller.post(f"jobs/{job.pk}/times", body, Idempotency_Key="k")
    assert changed.status_code == 200 and "Location" not in changed
    assert changed.json() == {**made, "skip": False, "move_to": to}
    assert caller.get(made["links"]["self"]).json() == changed.json()
    again = caller.post(f"jobs/{job.pk}/times", body, Idempotency_Key="k")
    assert (again.status_code, again.json()) == (200, changed.json())
    operation = caller.get("schema", format="json").json()["paths"]["/api/v1/jobs/{job_id}/times"]["post"]
    answers = operation["responses"]
    assert answers["200"]["content"] == answers["201"]["content"]


def test_a_done_override_leads_to_its_run_and_stays(caller: Caller, job: Job) -> None:
    first = times(caller, job)[0]
    made = caller.post(f"jobs/{job.pk}/times", {"planned_at": first, "skip": True}).json()
    connection.ensure_connection()
    trigger_job(connection.connection, job.pk, read(first, "first") + timedelta(seconds=1))
    done = caller.get(made["links"]["self"]).json()
    assert done["done_at"] and caller.get(done["run"]).json()["state"] == "skipped"
    assert refusal(caller.delete(made["links"]["self"]), 409)["code"] == "override_is_done"


def test_a_mistake_is_reported_at_its_field(caller: Caller, job: Job) -> None:
    first = times(caller, job)[0]
    problem = refusal(
        caller.post(f"jobs/{job.pk}/times", {"planned_at": later(first, timedelta(seconds=1)), "skip": True}),
        400,
        "planned_at",
    )
    assert problem["code"] == "not_planned" and first in problem["hint"]
    refusal(caller.post(f"jobs/{job.pk}/times", {"planned_at": first}), 400, "skip")
    refusal(caller.post(f"jobs/{job.pk}/times", {"planned_at": first, "move_to": first}), 400, "move_to")
    refusal(caller.post(f"jobs/{job.pk}/times", "[]"), 400)
    refusal(caller.get(f"jobs/{job.pk}/times", state="x"), 400, "state")
    assert not Override.objects.exists()


def test_a_time_that_has_its_run_is_answered_with_a_link(caller: Caller, job: Job) -> None:
    first = times(caller, job)[0]
    run = make_finished_run(job, planned_at=read(first, "first"))
    problem = refusal(caller.post(f"jobs/{job.pk}/times", {"planned_at": first, "skip": True}), 409)
    assert (problem["code"], problem["link"]) == ("instant_has_run", f"/api/v1/runs/{run.pk}")


def test_the_same_request_twice_is_done_once(caller: Caller, job: Job) -> None:
    body = {"planned_at": times(caller, job)[0], "skip": True}
    first = caller.post(f"jobs/{job.pk}/times", body, Idempotency_Key="k")
    again = caller.post(f"jobs/{job.pk}/times", body, Idempotency_Key="k")
    assert first.json() == again.json() and again["Idempotency-Replayed"] == "true"


def test_a_viewer_only_looks(caller: Caller, job: Job) -> None:
    viewer, operator = Caller(caller.tenant, Role.VIEWER), Caller(caller.tenant, Role.OPERATOR)
    body = {"planned_at": times(viewer, job)[0], "skip": True}
    refusal(viewer.post(f"jobs/{job.pk}/times", body), 403)
    made = operator.post(f"jobs/{job.pk}/times", body).json()
    assert viewer.get(made["links"]["self"]).status_code == 200
    refusal(viewer.delete(made["links"]["self"]), 403)


def test_other_tenants_and_jobs_are_out_of_reach(caller: Caller, job: Job) -> None:
    body = {"planned_at": times(caller, job)[0], "skip": True}
    made = caller.post(f"jobs/{job.pk}/times", body).json()
    stranger = Caller(make_tenant())
    refusal(stranger.get(f"jobs/{job.pk}/times"), 404)
    refusal(stranger.post(f"jobs/{job.pk}/times", body), 404)
    refusal(stranger.get(made["links"]["self"]), 404)
    refusal(stranger.delete(made["links"]["self"]), 404)
    other = post_job(caller.tenant, schedule={"every": 3600})
    for number in (made["id"], "x", "-1", "9" * 30):
        refusal(caller.get(f"jobs/{other.pk}/times/{number}"), 404)
        refusal(caller.delete(f"jobs/{other.pk}/times/{number}"), 404)
    assert Override.objects.count() == 1


def test_the_preview_shows_what_a_suspension_will_do(caller: Caller, job: Job) -> None:
    first, second, *_ = times(caller, job)
    ends = read(second, "second") + HOUR / 2
    make_suspension(
        kind=SuspensionKind.BLACKOUT,
        effect=Effect.SKIP,
        tenant=caller.tenant,
        begins_at=now(),
        ends_at=read(first, "first") + HOUR / 2,
        reason="inventory",
    )
    hold = make_suspension(
        effect=Effect.HOLD, begins_at=read(second, "second"), ends_at=ends, created_by="olga"
    )
    make_suspension(tenant=make_tenant(), reason="of others")
    dropped, held, free, *_ = ahead(caller, job)
    assert dropped["starts_at"] is None and dropped["suspension"]["reason"] == "inventory"
    assert dropped["description"] == "no run, blackout: inventory" and not dropped["suspension"]["held"]
    assert held["starts_at"] == as_text(ends) and held["suspension"]["held"]
    assert held["suspension"]["link"] == f"/api/v1/pauses/{hold.public_id}"
    assert caller.get(held["suspension"]["link"]).status_code == 200
    assert free["suspension"] is None and free["starts_at"] == free["planned_at"]


def test_the_preview_says_that_the_job_is_paused(caller: Caller, job: Job) -> None:
    assert caller.get(f"jobs/{job.pk}/preview").json()["status"] == "active"
    caller.post(f"jobs/{job.pk}/pause")
    assert caller.get(f"jobs/{job.pk}/preview").json()["status"] == "paused"
