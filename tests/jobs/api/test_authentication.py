"""Who may ask, and how a refusal looks."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.access import api_keys
from jobs.clock import database_now
from jobs.models import ApiKey, Role
from tests.support.api_client import Caller, refusal
from tests.support.factories import job_spec, make_key, make_run, make_tenant, post_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic dXNlcjpwYXNz",
        "Bearer bk_000000000000_" + "x" * 43,
        "Bearer bk__",
        "Bearer é",
    ],
)
def test_without_a_valid_key_there_is_no_answer(header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = Client(headers=headers).get("/api/v1/jobs")
    assert refusal(response, 401)["code"] == "unauthenticated"
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_a_key_with_one_letter_changed_is_wrong() -> None:
    _, text = make_key()
    changed = text[:-1] + ("A" if text[-1] != "A" else "B")
    refusal(Client(headers={"Authorization": f"Bearer {changed}"}).get("/api/v1/jobs"), 401)


def test_the_prefix_of_one_key_with_the_secret_of_another_is_wrong() -> None:
    (one, _), (_, text) = make_key(), make_key()
    mixed = f"bk_{one.prefix}_{text.split('_', 2)[2]}"
    refusal(Client(headers={"Authorization": f"Bearer {mixed}"}).get("/api/v1/jobs"), 401)


def test_revoked_and_expired_keys_are_refused() -> None:
    caller = Caller(make_tenant())
    assert caller.get("jobs").status_code == 200
    ApiKey.objects.filter(pk=caller.key.pk).update(expires_at=database_now() - timedelta(seconds=1))
    refusal(caller.get("jobs"), 401)
    ApiKey.objects.filter(pk=caller.key.pk).update(expires_at=database_now() + timedelta(hours=1))
    assert caller.get("jobs").status_code == 200
    api_keys.revoke_key(caller.key)
    refusal(caller.get("jobs"), 401)


def test_the_use_of_a_key_is_noted_at_most_once_a_minute() -> None:
    caller = Caller(make_tenant())
    caller.get("jobs")
    caller.key.refresh_from_db()
    assert caller.key.last_used_at is not None
    with CaptureQueriesContext(connection) as queries:
        caller.get("jobs")
    assert not any("UPDATE" in query["sql"] for query in queries.captured_queries)
    ApiKey.objects.update(last_used_at=database_now() - timedelta(minutes=2))
    caller.get("jobs")
    recently = database_now() - timedelta(seconds=30)
    assert ApiKey.objects.filter(pk=caller.key.pk, last_used_at__gt=recently).exists()


READS = [
    "jobs",
    "jobs/{job}",
    "jobs/{job}/runs",
    "jobs/{job}/preview",
    "runs",
    "runs/{run}",
    "runs/{run}/attempts",
]
OPERATES = [
    "jobs/{job}/pause",
    "jobs/{job}/resume",
    "jobs/{job}/run",
    "runs/{run}/cancel",
    "jobs/{job}/cancel",
]


def test_a_viewer_reads_and_does_nothing_else() -> None:
    viewer = Caller(make_tenant(), Role.VIEWER)
    job = post_job(viewer.tenant)
    run = make_run(job)
    for path in READS:
        assert viewer.get(path.format(job=job.pk, run=run.pk)).status_code == 200, path
    for path in OPERATES:
        problem = refusal(viewer.post(path.format(job=job.pk, run=run.pk)), 403)
        assert "operator" in problem["detail"] and "viewer" in problem["detail"]
    refusal(viewer.post("jobs", job_spec()), 403)
    refusal(viewer.patch(f"jobs/{job.pk}", {"priority": 1}), 403)
    refusal(viewer.delete(f"jobs/{job.pk}"), 403)


def test_an_operator_operates_and_defines_nothing() -> None:
    operator = Caller(make_tenant(), Role.OPERATOR)
    job = post_job(operator.tenant)
    run = make_run(job)
    for path in OPERATES:
        assert operator.post(path.format(job=job.pk, run=run.pk)).status_code in (200, 201), path
    refusal(operator.post("jobs", job_spec()), 403)
    refusal(operator.patch(f"jobs/{job.pk}", {"priority": 1}), 403)
    refusal(operator.delete(f"jobs/{job.pk}"), 403)


def test_secrets_of_a_target_are_shown_to_who_may_write_them() -> None:
    admin = Caller(make_tenant())
    target = {"kind": "command", "argv": ["x", "--token=hush"], "env": {"API_KEY": "hush", "LANG": "C"}}
    job = post_job(admin.tenant, target=target)
    assert admin.get(f"jobs/{job.pk}").json()["target"] == target
    for role in (Role.VIEWER, Role.OPERATOR):
        other = Caller(admin.tenant, role)
        answers = [other.get("jobs"), other.get(f"jobs/{job.pk}")]
        if role == Role.OPERATOR:
            answers.append(other.post(f"jobs/{job.pk}/pause"))
        for answer in answers:
            assert answer.status_code == 200 and "hush" not in answer.content.decode()
            assert '"LANG":"C"' in answer.content.decode()


@pytest.mark.parametrize("path", ["nothing", "jobs/", "jobs/1/2/3", "", "../admin"])
def test_unknown_addresses_tell_strangers_nothing_and_others_404(path: str) -> None:
    caller = Caller(make_tenant())
    if path:
        refusal(Client().get(f"/api/v1/{path}"), 401)
        refusal(caller.get(f"/api/v1/{path}"), 404)
    else:
        assert caller.get("/api/v1/").status_code == 302


def test_an_address_outside_the_version_is_a_problem_too() -> None:
    refusal(Client().get("/api/v2/jobs"), 404)


def test_an_unknown_method_is_refused(caller: Caller) -> None:
    response = caller.client.put("/api/v1/jobs", "{}", content_type="application/json")
    refusal(response, 405)
    refusal(caller.delete("jobs"), 405)


def test_our_own_mistake_is_a_problem_without_details(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("hush: internal")

    monkeypatch.setattr("jobs.api.jobs.jobs_json", fail)
    problem = refusal(caller.get("jobs"), 500)
    assert "hush" not in str(problem) and problem["request_id"]


def test_a_database_that_is_away_is_a_503_to_try_again(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("host db.internal is down")

    monkeypatch.setattr("jobs.api.jobs.jobs_json", fail)
    response = caller.get("jobs")
    assert "internal" not in str(refusal(response, 503)) and response["Retry-After"] == "5"


def test_every_answer_carries_its_request_id(caller: Caller) -> None:
    assert len(caller.get("jobs")["X-Request-Id"]) == 32
    given = caller.client.get("/api/v1/jobs/x", headers={"X-Request-Id": "trace-7"})
    assert given["X-Request-Id"] == "trace-7" == given.json()["request_id"]
    forged = caller.client.get("/api/v1/jobs", headers={"X-Request-Id": "a\x1bb" * 9})
    assert len(forged["X-Request-Id"]) == 32


def test_health_needs_no_key_and_tells_little() -> None:
    response = Client().get("/healthz")
    assert response.status_code == 200 and response.json() == {"status": "ok", "database": "ok"}


def test_the_docs_need_no_other_host() -> None:
    page = Client().get("/api/v1/docs")
    text = page.content.decode()
    assert page.status_code == 200 and "/static/drf_spectacular_sidecar/" in text
    assert "https://" not in text.replace("https://www.w3.org", "") and "//cdn" not in text
