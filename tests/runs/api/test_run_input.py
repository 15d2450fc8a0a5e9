"""The input of a run is checked by the kind of its job's target, whoever requests the run."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from auditlog.models import AuditEntry
from jobs.models import Job, Role
from jobs.services.definition import edit_job
from runs.models import DeadLetter, LiveRun, Redrive, Run
from runs.services import redrives
from runs.states import FinalState
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_dead, make_finished_run, now, post_job

pytestmark = pytest.mark.django_db
TARGETS: dict[str, dict[str, Any]] = {
    "celery": {"kind": "celery", "task": "tests.succeeds", "args": [1], "kwargs": {}},
    "http": {"kind": "http", "url": "https://team.example/", "method": "POST"},
    "get": {"kind": "http", "url": "https://team.example/", "method": "GET"},
    "command": {"kind": "command", "argv": ["report"]},
}
GIVEN: dict[str, dict[str, Any]] = {
    "celery": {"args": [2], "kwargs": {"day": "2026-11-19"}},
    "http": {"body": [1, {"a": None}], "query": {"day": "1"}, "headers": {"X-Team": "red"}},
    "get": {"body": None, "query": {}},
    "command": {"argv": ["--again", ""], "env": {"DAY": "1"}, "stdin": "a\nb"},
}
ALLOWED = {"celery": "args, kwargs", "http": "body, query, headers", "command": "argv, env, stdin"}
Ask = Callable[[Caller, str, Any], Any]


def job_of(caller: Caller, kind: str) -> Job:
    return post_job(caller.tenant, name=f"the {kind} job", target=TARGETS[kind])


def run_now(caller: Caller, kind: str, given: Any) -> Any:
    return caller.post(f"jobs/{job_of(caller, kind).pk}/run", {"input": given})


def redrive(caller: Caller, kind: str, given: Any) -> Any:
    dead = make_dead(job_of(caller, kind))
    return caller.post("dead-letters/redrive", {"runs": [str(dead.pk)], "input": given})


def redrive_group(caller: Caller, kind: str, given: Any) -> Any:
    make_dead(job_of(caller, kind), finished_at=now() - timedelta(seconds=1))
    return caller.post("dead-letters/f00d/redrive", {"per_minute": 60, "input": given})


def request_by_code(caller: Caller, kind: str, given: Any) -> Any:
    job = job_of(caller, kind)
    return caller.post(
        "run-requests", {"key": kind, "pool": job.pool.slug, "spec": {"name": job.name, "input": given}}
    )


every_way = pytest.mark.parametrize("ask", [run_now, redrive, redrive_group, request_by_code])


@every_way
@pytest.mark.parametrize("kind", TARGETS)
def test_what_a_target_takes_is_kept_with_the_run(caller: Caller, ask: Ask, kind: str) -> None:
    response = ask(caller, kind, GIVEN[kind])
    assert response.status_code in (200, 201), response.content
    redrives.work_off()
    assert Run.objects.get(state=None).input == LiveRun.objects.get().input == GIVEN[kind]


@every_way
@pytest.mark.parametrize(("kind", "name"), [("celery", "name"), ("http", "a"), ("command", "A")])
def test_anything_else_is_refused_with_what_is_allowed(
    caller: Caller, ask: Ask, kind: str, name: str
) -> None:
    problem = refusal(ask(caller, kind, {**GIVEN[kind], name: "1"}), 400, f"input.{name}")
    assert problem["hint"] == f"allowed are {ALLOWED[kind]}" and kind in problem["detail"]
    assert not LiveRun.objects.exists() and not DeadLetter.objects.exclude(decision="").exists()


@pytest.mark.parametrize(
    ("kind", "given", "field"),
    [
        ("celery", {"args": {}}, "args"),
        ("celery", {"kwargs": [1]}, "kwargs"),
        ("celery", {"beatkeeper_whole": True}, "beatkeeper_whole"),
        ("http", {"query": {"day": 1}}, "query.day"),
        ("http", {"query": "day=1"}, "query"),
        ("http", {"headers": {"Host": "a"}}, "headers.Host"),
        ("http", {"headers": {"Proxy-Authorization": "a"}}, "headers.Proxy-Authorization"),
        ("http", {"headers": {"Idempotency-Key": "a"}}, "headers.Idempotency-Key"),
        ("http", {"headers": {"Beatkeeper-Run": "a"}}, "headers.Beatkeeper-Run"),
        ("http", {"headers": {"X": "a\r\nHost: b"}}, "headers.X"),
        ("http", {"headers": {"a b": "c"}}, "headers.a b"),
        ("get", {"body": {}}, "body"),
        ("command", {"argv": "again"}, "argv"),
        ("command", {"argv": [1]}, "argv"),
        ("command", {"argv": ["x"] * 1000}, "argv"),
        ("command", {"env": {"LD_PRELOAD": "a"}}, "env.LD_PRELOAD"),
        ("command", {"env": {"BEATKEEPER_RUN": "a"}}, "env.BEATKEEPER_RUN"),
        ("command", {"env": {"BASH_ENV": "a"}}, "env.BASH_ENV"),
        ("command", {"env": {"a-b": "c"}}, "env.a-b"),
        ("command", {"env": {"A": 1}}, "env.A"),
        ("command", {"env": None}, "env"),
        ("command", {"stdin": 1}, "stdin"),
    ],
)
def test_what_the_job_may_not_say_its_run_may_not_either(
    caller: Caller, kind: str, given: Any, field: str
) -> None:
    problem = refusal(run_now(caller, kind, given), 400, f"input.{field}")
    assert problem["hint"] and not Run.objects.exists()


@pytest.mark.parametrize(
    ("given", "field"),
    [({"name": "1"}, "input.name"), ({"stdin": 1}, "input.stdin"), ({"stdin": "", "body": 1}, "input.stdin")],
)
def test_what_no_target_takes_is_refused_also_when_no_run_is_dead(
    caller: Caller, given: Any, field: str
) -> None:
    body = {"runs": [str(make_finished_run(job_of(caller, "celery")).pk)]}
    refusal(caller.post("dead-letters/redrive", {**body, "input": given}), 400, field)
    refused = caller.post("dead-letters/redrive", {**body, "input": GIVEN["command"]}).json()["refused"]
    assert [one["code"] for one in refused] == ["run_not_dead"]


def test_standard_input_is_bounded_with_the_rest(caller: Caller) -> None:
    assert refusal(run_now(caller, "command", {"stdin": "x" * 65_536}), 400, "input")["code"] == "too_large"


def test_a_secret_is_refused_among_the_words_and_taken_elsewhere(caller: Caller) -> None:
    caller.post("secrets", {"name": "KEY", "value": "a value of it"})
    job, words = job_of(caller, "command"), {"argv": ["${secret:KEY}"]}
    problem = refusal(caller.post(f"jobs/{job.pk}/run", {"input": words}), 400, "input.argv")
    assert problem["code"] == "secret_reference" and "input.env" in problem["hint"]
    given = {"env": {"KEY": "${secret:KEY}"}, "stdin": "<${secret:KEY}>"}
    assert caller.post(f"jobs/{job.pk}/run", {"input": given}).json()["input"] == given


def test_the_target_is_that_of_the_version_that_runs(caller: Caller) -> None:
    job = job_of(caller, "celery")
    dead = make_dead(job)
    edit_job(job, {"target": TARGETS["command"]})
    body = {"runs": [str(dead.pk)], "input": GIVEN["command"]}
    refusal(caller.post("dead-letters/redrive", body), 400, "input.argv")
    assert caller.post(f"jobs/{job.pk}/run", {"input": GIVEN["command"]}).status_code == 201
    assert caller.post("dead-letters/redrive", {**body, "input": GIVEN["celery"]}).status_code == 200


def test_a_run_of_a_group_whose_target_does_not_take_it_stays_open(caller: Caller) -> None:
    other = make_dead(job_of(caller, "http"), finished_at=now() - timedelta(seconds=2))
    make_dead(job_of(caller, "celery"), finished_at=now() - timedelta(seconds=1))
    started = caller.post("dead-letters/f00d/redrive", {"per_minute": 6000, "input": GIVEN["celery"]}).json()
    Redrive.objects.update(next_at=now() - timedelta(seconds=1))
    redrives.work_off()
    found = caller.get(started["links"]["self"]).json()
    assert (found["made"], found["refused"]) == (1, 1) and "http" in found["last_refusal"]
    assert DeadLetter.objects.get(decision="").run_id == other.pk


def test_an_input_of_before_is_refused_when_it_is_to_run_again(caller: Caller) -> None:
    old = make_finished_run(job_of(caller, "command"), FinalState.CANCELLED, input={"A": "1"})
    refusal(caller.post(f"runs/{old.pk}/retry"), 400, "input.A")


def test_words_beside_the_input_of_a_declared_job_are_refused(caller: Caller) -> None:
    job = job_of(caller, "celery")
    spec = {"name": job.name, "input": {}, "priority": 900}
    refusal(
        caller.post("run-requests", {"key": "k", "pool": job.pool.slug, "spec": spec}), 400, "spec.priority"
    )


def test_values_of_secret_names_are_shown_to_those_who_write_targets(caller: Caller) -> None:
    operator = Caller(caller.tenant, Role.OPERATOR)
    job, given = job_of(caller, "command"), {"env": {"DB_PASS": "hush-hush", "DAY": "1"}}
    run = operator.post(f"jobs/{job.pk}/run", {"input": given}).json()
    assert run["input"]["env"] == {"DB_PASS": "•••", "DAY": "1"}
    assert caller.get(f"runs/{run['id']}").json()["input"] == given
    assert "hush-hush" not in str(AuditEntry.objects.get(action="run.requested").after)
