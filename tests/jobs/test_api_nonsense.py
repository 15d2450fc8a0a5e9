"""Whatever is sent, the answer is a job or a refusal that names a field; never a failure of ours."""

import json
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.models import Job, JobClock, JobVersion
from tests.api_client import Caller, refusal
from tests.factories import TASK, post_job

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
    """A whole spec in which one or two places hold anything at all."""
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
        assert caller.client.get("/api/v1/jobs", headers={"Authorization": value}).status_code == 401
