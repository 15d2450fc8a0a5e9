"""Dead letters over HTTP."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from jobs.models import Job, Role
from runs.models import DeadLetter, LiveRun, Redrive, Run
from runs.services import redrives
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_dead, make_pool, make_tenant, now, post_job

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


@pytest.fixture
def caller() -> Caller:
    make_pool(slug="default")
    return Caller(make_tenant(slug="acme"), Role.OPERATOR)


@pytest.fixture
def job(caller: Caller) -> Job:
    return post_job(caller.tenant, name="settle")


def read(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.content
    return answer.json()


def test_what_died_is_listed_by_error(caller: Caller, job: Job) -> None:
    early, late = now() - 5 * SECOND, now()
    first = make_dead(job, finished_at=early)
    last = make_dead(job, finished_at=late, error_line="no answer 2")
    make_dead(post_job())
    found = read(caller.get("dead-letters"))
    (group,) = found["results"]
    assert (group["fingerprint"], group["count"], group["more"], found["more"]) == ("f00d", 2, False, False)
    assert group["first_seen_at"][:19] == early.isoformat()[:19]
    assert group["last_seen_at"][:19] == late.isoformat()[:19]
    assert group["error"] == {"class": "transient", "type": "ConnectionError", "line": "no answer 2"}
    assert group["jobs"] == [{"id": str(job.pk), "name": "settle"}]
    assert group["redrive"] is None
    letters = read(caller.get(group["links"]["self"]))["results"]
    assert [letter["run"] for letter in letters] == [str(last.pk), str(first.pk)]
    assert letters[0]["job_name"] == "settle" and letters[0]["decision"] == ""


def test_a_group_is_read_page_by_page(caller: Caller, job: Job) -> None:
    runs = [make_dead(job, finished_at=now() - n * SECOND) for n in range(5)]
    seen, address = [], "dead-letters/f00d?limit=2"
    while address:
        page = read(caller.get(address))
        seen += [letter["run"] for letter in page["results"]]
        address = page["next"]
    assert seen == [str(run.pk) for run in runs]


def test_a_group_is_asked_for_a_job_or_a_decision(caller: Caller, job: Job) -> None:
    other = make_dead(post_job(caller.tenant))
    dead = make_dead(job)
    read(caller.post("dead-letters/dismiss", {"runs": [str(dead.pk)], "reason": "known"}))
    open_ones = read(caller.get("dead-letters/f00d"))["results"]
    assert [letter["run"] for letter in open_ones] == [str(other.pk)]
    (letter,) = read(caller.get("dead-letters/f00d", decision="dismissed", job=str(job.pk)))["results"]
    assert (letter["run"], letter["reason"], letter["decision"]) == (str(dead.pk), "known", "dismissed")
    assert letter["decided_by"] and letter["decided_at"]
    assert "open" in refusal(caller.get("dead-letters/f00d", decision="later"), 400, "decision")["hint"]


def test_groups_are_asked_for_a_job(caller: Caller, job: Job) -> None:
    make_dead(post_job(caller.tenant), fingerprint="beef")
    make_dead(job)
    assert len(read(caller.get("dead-letters"))["results"]) == 2
    (group,) = read(caller.get("dead-letters", job=str(job.pk)))["results"]
    assert group["fingerprint"] == "f00d"
    theirs = make_dead(post_job(make_tenant()))
    assert read(caller.get("dead-letters", job=str(theirs.job_id)))["results"] == []
    for given in ("", "settle"):
        refusal(caller.get("dead-letters", job=given), 400, "job")


def test_chosen_runs_are_redriven_with_another_input(caller: Caller, job: Job) -> None:
    dead = [make_dead(job) for _ in range(2)]
    ids = [str(run.pk) for run in dead]
    body = {"runs": [*ids, str(uuid4())], "input": {"args": [7]}, "reason": "fixed"}
    found = read(caller.post("dead-letters/redrive", body))
    assert [one["run"] for one in found["redriven"]] == ids
    assert [one["code"] for one in found["refused"]] == ["run_not_dead"]
    new = Run.objects.get(pk=found["redriven"][0]["new_run"])
    assert (new.input, new.retry_of) == ({"args": [7]}, dead[0].pk)
    again = read(caller.post("dead-letters/redrive", {"runs": ids}))
    assert again["redriven"] == [] and {one["code"] for one in again["refused"]} == {"already_decided"}
    (letter, _) = read(caller.get("dead-letters/f00d", decision="redriven"))["results"]
    assert read(caller.get(letter["links"]["redriven_as"]))["trigger"] == "redrive"


def test_a_request_with_a_key_is_done_once(caller: Caller, job: Job) -> None:
    body = {"runs": [str(make_dead(job).pk)]}
    first, second = (caller.post("dead-letters/redrive", body, Idempotency_Key="a") for _ in range(2))
    assert first.json() == second.json() and len(first.json()["redriven"]) == 1
    assert LiveRun.objects.count() == 1


def test_a_group_goes_at_a_pace_and_is_stopped(caller: Caller, job: Job) -> None:
    for number in range(3):
        make_dead(job, finished_at=now() - (number + 1) * SECOND)
    started = read(caller.post("dead-letters/f00d/redrive", {"per_minute": 1, "reason": "fixed"}), 201)
    assert (started["state"], started["made"], started["left"]) == ("working", 0, 3)
    redrives.work_off()
    found = read(caller.get(started["links"]["self"]))
    assert (found["made"], found["left"], found["requested_by"]) == (1, 2, started["requested_by"])
    assert read(caller.get("dead-letters"))["results"][0]["redrive"]["id"] == started["id"]
    assert refusal(caller.post("dead-letters/f00d/redrive"), 409)["code"] == "redrive_under_way"
    stopped = read(caller.post(found["links"]["stop"], {"reason": "too early"}))
    assert (stopped["state"], stopped["left"]) == ("stopped", 0)
    assert refusal(caller.post(found["links"]["stop"]), 409)["code"] == "redrive_is_over"
    assert [one["id"] for one in read(caller.get("redrives"))["results"]] == [started["id"]]
    assert DeadLetter.objects.filter(decision="").count() == 2


def test_a_group_is_dismissed_with_a_note(caller: Caller, job: Job) -> None:
    for _ in range(2):
        make_dead(job)
    assert refusal(caller.post("dead-letters/f00d/dismiss"), 400, "reason")["code"] == "required"
    for wrong in (None, " ", "x" * 501):
        assert (
            refusal(caller.post("dead-letters/f00d/dismiss", {"reason": wrong}), 400, "reason")["code"]
            == "invalid"
        )
    assert read(caller.post("dead-letters/f00d/dismiss", {"reason": "known"}))["dismissed"] == 2
    assert read(caller.get("dead-letters"))["results"] == []
    assert caller.post("dead-letters/f00d/dismiss", {"reason": "known"}).status_code == 404


@pytest.mark.parametrize("name", ["xyz", "%00", "f00d%0a", "f" * 33])
def test_what_is_no_fingerprint_is_no_group(caller: Caller, name: str) -> None:
    assert "list of dead letters" in refusal(caller.get(f"dead-letters/{name}"), 404)["hint"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "runs"),
        ({"runs": []}, "runs"),
        ({"runs": "all"}, "runs"),
        ({"runs": [1]}, "runs"),
        ({"runs": ["x"]}, "runs"),
        ({"runs": [str(uuid4())] * 101}, "runs"),
        ({"runs": [str(uuid4())], "input": [1]}, "input"),
        ({"runs": [str(uuid4())], "reason": 1}, "reason"),
        ({"runs": [str(uuid4())], "pace": 1}, "pace"),
    ],
)
def test_what_cannot_be_read_is_refused_at_its_field(
    caller: Caller, body: dict[str, Any], field: str
) -> None:
    refusal(caller.post("dead-letters/redrive", body), 400, field)


@pytest.mark.parametrize("pace", [0, 6001, "fast", 1.5])
def test_a_pace_out_of_range_is_refused(caller: Caller, job: Job, pace: Any) -> None:
    make_dead(job)
    refusal(caller.post("dead-letters/f00d/redrive", {"per_minute": pace}), 400, "per_minute")


def test_a_group_that_never_was_is_missing_and_one_that_is_decided_is_empty(caller: Caller, job: Job) -> None:
    dead = make_dead(job)
    assert "list of dead letters" in refusal(caller.get("dead-letters/beef"), 404)["hint"]
    read(caller.post("dead-letters/dismiss", {"runs": [str(dead.pk)], "reason": "known"}))
    assert read(caller.get("dead-letters/f00d"))["results"] == []
    assert read(caller.get("dead-letters/f00d", decision="redriven"))["results"] == []


def test_of_others_nothing_is_seen_or_decided(caller: Caller, job: Job) -> None:
    dead = make_dead(job)
    redrive = redrives.start(caller.tenant, "f00d", 1)
    other = Caller(make_tenant(), Role.ADMIN)
    assert read(other.get("dead-letters"))["results"] == []
    assert other.get("dead-letters/f00d").status_code == 404
    assert other.get(f"redrives/{redrive.pk}").status_code == 404
    assert other.post(f"redrives/{redrive.pk}/stop").status_code == 404
    assert other.post("dead-letters/f00d/redrive").status_code == 404
    assert other.post("dead-letters/f00d/dismiss", {"reason": "x"}).status_code == 404
    assert read(other.post("dead-letters/redrive", {"runs": [str(dead.pk)]}))["redriven"] == []
    assert DeadLetter.objects.get().decision == "" and Redrive.objects.get().state == "working"


def test_who_may_only_look_decides_nothing(caller: Caller, job: Job) -> None:
    dead = make_dead(job)
    viewer = Caller(caller.tenant, Role.VIEWER)
    assert len(read(viewer.get("dead-letters"))["results"]) == 1
    for path, body in (
        ("dead-letters/redrive", {"runs": [str(dead.pk)]}),
        ("dead-letters/dismiss", {"runs": [str(dead.pk)], "reason": "x"}),
        ("dead-letters/f00d/redrive", {}),
        ("dead-letters/f00d/dismiss", {"reason": "x"}),
    ):
        assert viewer.post(path, body).status_code == 403, path
