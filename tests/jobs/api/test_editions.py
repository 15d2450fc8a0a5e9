"""ETag, If-Match and If-None-Match of a job: nobody undoes a change that he has not seen."""

from collections.abc import Callable
from typing import Any

import pytest

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.models import Job
from jobs.services.status import pause_job
from runs.scheduler.trigger.trigger import trigger_job
from runs.sql import django_session
from tests.support.api_client import Caller, refusal
from tests.support.factories import job_spec, make_due, make_pool, make_tenant, post_job

pytestmark = pytest.mark.django_db
Change = Callable[[Caller, str, str], Any]
CHANGES: dict[str, Change] = {
    "patch": lambda caller, job, seen: caller.patch(f"jobs/{job}", {"priority": 7}, If_Match=seen),
    "delete": lambda caller, job, seen: caller.delete(f"jobs/{job}", If_Match=seen),
    "pause": lambda caller, job, seen: caller.post(f"jobs/{job}/pause", If_Match=seen),
    "resume": lambda caller, job, seen: caller.post(f"jobs/{job}/resume", If_Match=seen),
    "cancel": lambda caller, job, seen: caller.post(f"jobs/{job}/cancel", If_Match=seen),
}


@pytest.fixture
def caller() -> Caller:
    make_pool(slug="default")
    return Caller(make_tenant())


def made(caller: Caller, **fields: Any) -> tuple[str, str]:
    """Create a job; return its id and its ETag."""
    answer = caller.post("jobs", job_spec(**{"schedule": {"every": 3600}, **fields}))
    assert answer.status_code == 201, answer.content
    return answer.json()["id"], answer["ETag"]


def read(caller: Caller, job: str, seen: str) -> Any:
    return caller.client.get(f"/api/v1/jobs/{job}", headers={"If-None-Match": seen})


def test_every_answer_of_a_job_has_the_same_etag_until_it_changes(caller: Caller) -> None:
    job, first = made(caller)
    assert caller.get(f"jobs/{job}")["ETag"] == first
    second = caller.patch(f"jobs/{job}", {"priority": 7}, If_Match=first)["ETag"]
    third = caller.post(f"jobs/{job}/pause", If_Match=second)["ETag"]
    assert caller.patch(f"jobs/{job}", {"priority": 7}, If_Match=third)["ETag"] == third
    fourth = caller.post(f"jobs/{job}/pause", {"until": "2099-01-01T00:00:00Z"}, If_Match=third)["ETag"]
    fifth = caller.post(f"jobs/{job}/resume", If_Match=fourth)["ETag"]
    sixth = caller.post(f"jobs/{job}/cancel", If_Match=fifth)["ETag"]
    assert len({first, second, third, fourth, fifth, sixth}) == 6
    assert caller.get(f"jobs/{job}")["ETag"] == sixth
    assert caller.delete(f"jobs/{job}", If_Match=sixth).status_code == 204


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_was_not_seen_is_refused_with_who_and_when(caller: Caller, change: str) -> None:
    job, seen = made(caller)
    other = Caller(caller.tenant)
    edited = other.patch(f"jobs/{job}", {"tags": {"a": "b"}}).json()
    entries = AuditEntry.objects.count()
    problem = refusal(CHANGES[change](caller, job, seen), 412)
    assert problem["code"] == "changed_meanwhile"
    assert other.key.name in problem["detail"] and edited["updated_at"] in problem["detail"]
    assert "read it again" in problem["hint"]
    assert caller.get(f"jobs/{job}").json() == edited and AuditEntry.objects.count() == entries


def test_a_change_of_the_status_names_who_made_it(caller: Caller) -> None:
    job, seen = made(caller)
    pause_job(Job.objects.get(pk=job))
    detail = refusal(CHANGES["patch"](caller, job, seen), 412)["detail"]
    assert detail.startswith("system has changed the job at") and "it is paused" in detail


@pytest.mark.parametrize("named", ["{}", "W/{}", '"another", {}', "*"])
def test_the_present_etag_is_taken_also_made_weak_or_in_a_list(caller: Caller, named: str) -> None:
    """An answer that was compressed has a weak one."""
    job, seen = made(caller)
    assert CHANGES["patch"](caller, job, named.format(seen)).status_code == 200
    refusal(CHANGES["patch"](caller, job, seen), 412)


def test_a_star_in_quotes_is_an_etag_like_others(caller: Caller) -> None:
    job, _ = made(caller)
    refusal(CHANGES["patch"](caller, job, '"*"'), 412)


@pytest.mark.parametrize("named", ["1", "abc", '"open', '"one", two', '"one" "two"', ""])
def test_an_etag_without_its_quotes_is_refused(caller: Caller, named: str) -> None:
    job, _ = made(caller)
    for change in CHANGES.values():
        assert "quotes" in refusal(change(caller, job, named), 400, "If-Match")["hint"]
    refusal(read(caller, job, named), 400, "If-None-Match")


def test_what_the_trigger_moves_is_no_part_of_it(caller: Caller) -> None:
    job, seen = made(caller)
    found = Job.objects.get(pk=job)
    make_due(found)
    trigger_job(django_session(), found.pk, database_now())
    moved = caller.get(f"jobs/{job}")
    assert moved["ETag"] == seen and moved.json()["next_run_at"] is not None
    assert CHANGES["patch"](caller, job, seen).status_code == 200


def test_a_job_that_has_come_to_its_end_has_changed(caller: Caller) -> None:
    job, seen = made(caller)
    Job.objects.filter(pk=job).update(status="finished", status_by="scheduler", updated_at=database_now())
    assert "scheduler has changed" in refusal(CHANGES["patch"](caller, job, seen), 412)["detail"]


def test_a_job_that_was_not_changed_is_not_sent_again(caller: Caller) -> None:
    job, seen = made(caller)
    for named in (seen, f"W/{seen}", f'"another", {seen}', "*"):
        answer = read(caller, job, named)
        assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", seen)
    caller.patch(f"jobs/{job}", {"description": "new"})
    answer = read(caller, job, seen)
    assert answer.status_code == 200 and answer.json()["description"] == "new"


def test_an_answer_given_again_has_the_etag_of_then(caller: Caller) -> None:
    """With the present one the caller would undo what others have changed since."""
    spec = job_spec()
    first = caller.post("jobs", spec, Idempotency_Key="one")
    caller.patch(f"jobs/{first.json()['id']}", {"priority": 7})
    again = caller.post("jobs", spec, Idempotency_Key="one")
    assert again["Idempotency-Replayed"] == "true" and again["ETag"] == first["ETag"]


def test_the_etag_of_a_job_of_another_tenant_tells_nothing(caller: Caller) -> None:
    other = post_job(make_tenant())
    for change in CHANGES.values():
        refusal(change(caller, str(other.pk), '"1"'), 404)
    refusal(read(caller, str(other.pk), "*"), 404)
