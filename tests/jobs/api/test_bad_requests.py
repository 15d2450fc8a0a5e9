"""Whatever is sent, the answer is a job or a refusal that names a field; never a failure of ours."""

import json
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.api.urls import urlpatterns as addresses_of_jobs
from jobs.models import Job, JobClock, JobVersion, Pool, Role
from runs.api.urls import urlpatterns as addresses_of_runs
from tests.support.api_client import Caller, address, refusal
from tests.support.factories import TASK, make_tenant, post_job

pytestmark = pytest.mark.django_db
PATIENT = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WHOLE: dict[str, Any] = {
    "name": "settle",
    "description": "",
    "target": {"kind": "celery", "task": TASK, "args": [1], "kwargs": {"a": 1}},
    "schedule": {"cron": "*/5 * * * *", "timezone": "UTC"},
    "priority": 500,
    "pool": "default",
    "timeout": "PT1M",
    "overlap": "skip",
    "catch_up": {"policy": "last", "window": "PT1H"},
    "retry": {
        "max_attempts": 4,
        "backoff": "exponential",
        "base": "PT10S",
        "cap": "PT1H",
        "permanent": ["ValueError"],
    },
    "breaker": {"failures": 5, "cooldown": "PT1M"},
    "max_concurrency": None,
    "tags": {"team": "payments"},
}
TARGETS = [
    {
        "kind": "http",
        "url": "https://a.example",
        "method": "POST",
        "headers": {"X": "y"},
        "body": {},
        "expect": [200],
    },
    {"kind": "command", "argv": ["ls"], "env": {"LANG": "C"}},
    WHOLE["target"],
]
SCHEDULES = [{"every": "PT30S"}, {"at": "2099-01-01T00:00:00Z"}, WHOLE["schedule"], None]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "\x00", "\ud800", "PT1S", "P1Y", "-1", "9" * 400, "* * * * *", "2026-13-01T00:00:00Z", 10**400]
    )
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for name, item in below for path in paths(item, (*here, name)))][0 if here else 1 :]


@st.composite
def almost_right(draw: Any) -> dict[str, Any]:
    """Make a whole spec in which one or two places hold anything at all."""
    spec = json.loads(
        json.dumps(
            {**WHOLE, "target": draw(st.sampled_from(TARGETS)), "schedule": draw(st.sampled_from(SCHEDULES))}
        )
    )
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(paths(spec)))
        inner = spec
        for step in way:
            inner = inner[step]
        inner[last] = draw(ANYTHING)
    return dict(spec)


def sent(caller: Caller, method: str, path: str, body: Any) -> Any:
    return getattr(caller, method)(path, json.dumps(body))


@PATIENT
@given(spec=almost_right())
def test_a_creation_with_anything_in_it(caller: Caller, spec: dict[str, Any]) -> None:
    with transaction.atomic():
        response = sent(caller, "post", "jobs", spec)
        if response.status_code != 201:
            assert refusal(response, 400)["field"] or "not JSON" in refusal(response, 400)["detail"]
            assert Job.objects.count() == JobVersion.objects.count() == JobClock.objects.count() == 0
        else:
            assert caller.get(response.json()["links"]["self"]).status_code == 200
        transaction.set_rollback(True)


@PATIENT
@given(spec=almost_right(), data=st.data())
def test_an_edit_with_anything_in_it(caller: Caller, spec: dict[str, Any], data: st.DataObject) -> None:
    changes = {name: spec[name] for name in data.draw(st.sets(st.sampled_from(sorted(spec)), min_size=1))}
    with transaction.atomic():
        job = post_job(caller.tenant, schedule={"every": 60})
        response = sent(caller, "patch", f"jobs/{job.pk}", changes)
        if response.status_code != 200:
            refusal(response, 400)
            assert JobVersion.objects.filter(job=job).count() == 1
        transaction.set_rollback(True)


@PATIENT
@given(body=ANYTHING)
def test_any_body_at_all(caller: Caller, body: Any) -> None:
    job = post_job(caller.tenant)
    for path in ("jobs", "schedules/preview", f"jobs/{job.pk}/run", f"jobs/{job.pk}/pause"):
        with transaction.atomic():
            assert sent(caller, "post", path, body).status_code in (200, 201, 400)
            transaction.set_rollback(True)


@PATIENT
@given(
    name=st.sampled_from(["limit", "cursor", "tag", "status", "q", "pool", "state", "job", "planned_after"]),
    value=st.text(max_size=30),
)
def test_any_filter_at_all(caller: Caller, name: str, value: str) -> None:
    for path in ("jobs", "runs"):
        assert caller.get(path, **{name: value.encode("utf-8", "replace").decode()}).status_code in (200, 400)


@PATIENT
@given(header=st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=80))
def test_any_key_at_all(caller: Caller, header: str) -> None:
    for value in (header, f"Bearer {header}", f"Bearer bk_{header}"):
        with override_settings(WRONG_KEYS_PER_MINUTE=0):
            assert caller.client.get("/api/v1/jobs", headers={"Authorization": value}).status_code == 401


# Every address there is, so also those that are yet to come.
ADDRESSES = sorted(str(one.pattern) for one in [*addresses_of_jobs, *addresses_of_runs])
WITH_NAMES = [path for path in ADDRESSES if "<str:" in path]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
ODD_NAMES = [
    "%00",
    "a%00b",
    "%ff",
    "%ED%A0%80",
    "%F0%9F%92%A9",
    "..%2f..",
    "0",
    "-1",
    "9" * 400,
    "%0a",
    "%20",
]
FEW = settings(PATIENT, max_examples=25)
FIELDS = """action again at begins_at catch_up count dates declarations effect ended ends_at error held hours
    incarnation input key known_targets queue name names reason number outcome per_minute planned_at pool reason runs
    schedule slots spec tag target timezone token until value wanted withdraw""".split()
BODIES = ANYTHING | st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=5)
FILTERS = {
    "jobs": ["q", "tag", "held_by", "pool", "calendar", "secret", "status"],
    "dead-letters/f00d": ["job", "decision"],
    "redrives": [],
    "run-requests": ["key", "state"],
    "declarations": ["pool", "source"],
    "secrets": [],
    "calendars": [],
    "queues": ["pool"],
    "runs": ["job", "state", "planned_after"],
    "pauses": ["state"],
    "blackouts": ["state"],
}


@pytest.fixture
def worker(caller: Caller, own_pool: Pool) -> Caller:
    return Caller(caller.tenant, Role.WORKER, pool=own_pool)


def no_failure_of_ours(asked: Caller, method: str, path: str, text: str = "{}") -> None:
    """And nothing of it stays."""
    with transaction.atomic():
        answer = asked.client.generic(method, address(path), text, content_type="application/json")
        assert answer.status_code < 500, (method, path, text, answer.content[:300])
        transaction.set_rollback(True)


def filled(path: str, job: Job, name: str = "") -> str:
    """With this name in the place of every one; without one, with those of what may be there."""
    parts = (part if "<str:" not in part else name or made_up(part, job) for part in path.split("/"))
    return "/".join(parts)


def made_up(part: str, job: Job) -> str:
    known = {"<str:job_id>": str(job.pk), "<str:fingerprint>": "f00d", "<str:claim_seq>": "1"}
    return known.get(part) or str(uuid4())


def whose(path: str, caller: Caller, worker: Caller) -> Caller:
    return worker if path.startswith("worker/") else caller


@pytest.mark.parametrize("path", ADDRESSES)
@FEW
@given(body=BODIES)
def test_any_body_at_every_address(path: str, caller: Caller, worker: Caller, body: Any) -> None:
    job = post_job(caller.tenant)
    for method in ("POST", "PUT", "PATCH"):
        no_failure_of_ours(whose(path, caller, worker), method, filled(path, job), json.dumps(body))


@pytest.mark.parametrize("path", WITH_NAMES)
def test_odd_names_in_every_address(path: str, caller: Caller, worker: Caller) -> None:
    job = post_job(caller.tenant)
    for name in ODD_NAMES:
        for method in METHODS:
            for body in ("{}", '{"reason": "known"}'):
                no_failure_of_ours(whose(path, caller, worker), method, filled(path, job, name), body)


EMPTY = ["jobs?status", "jobs?held_by", "jobs?pool", "jobs?q", "runs?job", "runs?state", "runs?trigger"]
EMPTY += [
    "blackouts?state",
    "dead-letters/f00d?job",
    "workers?pool",
    "jobs?limit",
    "jobs?cursor",
    "jobs?stat",
]


@pytest.mark.parametrize("path", EMPTY)
def test_an_empty_filter_is_refused_by_its_name(path: str, caller: Caller) -> None:
    refusal(caller.get(f"{path}="), 400, path.partition("?")[2])


def test_no_answer_speaks_python(caller: Caller) -> None:
    values: list[Any] = [None, True, [], {}, "soon"]
    for value in values:
        answer = caller.post("jobs", {"name": "a", "target": {"kind": "http"}, "timeout": value})
        details = [error["detail"] for error in answer.json()["errors"] if error["field"] == "timeout"]
        assert details == [f"{json.dumps(value)} is not a duration"]
    for at in ("2026-02-30T00:00:00Z", "2026-11-18T12:00:00+99:99", "0000-01-01T00:00:00Z"):
        detail = refusal(caller.post("schedules/preview", {"schedule": {"at": at}}), 400)["detail"]
        assert detail == f"{at} does not exist: there is no such day, time or offset"


@pytest.mark.parametrize("path", FILTERS)
def test_odd_filters_of_every_list(path: str, caller: Caller) -> None:
    for name in [*FILTERS[path], "limit", "cursor"]:
        for value in ODD_NAMES:
            no_failure_of_ours(caller, "GET", f"{path}?{name}={value}")


@pytest.mark.parametrize("path", ["jobs", "runs", "me"])
def test_options_are_refused_with_the_methods_there_are(path: str) -> None:
    answer = Caller(make_tenant()).client.options(f"/api/v1/{path}", "{}", content_type="application/json")
    assert refusal(answer, 405)["code"] == "method_not_allowed"
    assert "GET" in answer["Allow"]
