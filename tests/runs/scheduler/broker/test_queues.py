"""What teams and operators see of queues: why they cannot go, and what is left of their limits."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.models import Tenant
from jobs.validation.instants import as_text
from runs.models import Queue
from runs.states import LiveState
from tests.support.api_client import Caller
from tests.support.factories import make_job, make_queue, make_run, make_tenant, now

pytestmark = pytest.mark.django_db


def queues(tenant: Tenant) -> list[dict[str, Any]]:
    answer = Caller(tenant).get("queues")
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def queue_of(tenant: Tenant, **fields: Any) -> Queue:
    queue = make_queue(make_job(tenant))
    Queue.objects.filter(pk=queue.pk).update(**fields)
    queue.refresh_from_db()
    return queue


def test_a_team_sees_why_nothing_goes_and_what_is_left_of_its_limits() -> None:
    tenant = make_tenant(max_running=5, rate_limit=2.5, daily_quota=100, retry_budget=30, weight=3)
    queue = queue_of(tenant, reason="daily_quota", day=now().date(), day_count=100)
    (seen,) = queues(tenant)
    assert seen == {
        "pool": queue.pool.slug,
        "reason": "daily_quota",
        "reason_text": "daily quota",
        "runs": dict.fromkeys(LiveState.values, 0),
        "oldest_waiting_at": None,
        "limits": {"max_running": 5, "rate_limit": 2.5, "daily_quota": 100, "retry_budget": 30},
        "weight": 3,
        "handed_over_today": 100,
    }


def test_a_team_sees_how_many_runs_are_where_and_since_when_they_wait() -> None:
    tenant = make_tenant()
    job = make_job(tenant)
    make_queue(job)
    since = now() - timedelta(minutes=9)
    make_run(job, available_at=since)
    for state in (LiveState.READY, *LiveState):
        make_run(job, state)
    make_run(make_job(make_tenant(), job.pool))
    make_run(make_job(tenant))
    (seen,) = queues(tenant)
    assert seen["runs"] == {**dict.fromkeys(LiveState.values, 1), "ready": 3}
    assert seen["oldest_waiting_at"] == as_text(since)


def test_a_list_of_queues_counts_them_by_one_statement() -> None:
    tenant = make_tenant()
    queue_of(tenant)
    queues(tenant)
    with CaptureQueriesContext(connection) as one:
        queues(tenant)
    for _ in range(3):
        queue_of(tenant)
    with CaptureQueriesContext(connection) as several:
        assert len(queues(tenant)) == 4
    assert len(several) == len(one)


def test_the_count_of_another_day_is_none_of_today() -> None:
    tenant = make_tenant(daily_quota=9)
    queue_of(tenant, day=now().date() - timedelta(days=1), day_count=9)
    assert queues(tenant)[0]["handed_over_today"] == 0


def test_without_a_quota_nothing_is_counted_and_no_other_team_is_seen() -> None:
    tenant = make_tenant()
    queue_of(tenant, reason="paused")
    queue_of(make_tenant(), reason="blackout")
    assert [(queue["reason"], queue["handed_over_today"]) for queue in queues(tenant)] == [("paused", None)]


def test_an_unknown_parameter_is_refused() -> None:
    assert Caller(make_tenant()).get("queues", colour="red").status_code == 400


def test_the_admin_tells_the_limits_in_words(client: Client) -> None:
    tenant = make_tenant(max_running=5, rate_limit=0.5, daily_quota=10)
    queue = queue_of(tenant, reason="rate_limit", day=now().date(), day_count=3)
    client.force_login(User.objects.create_superuser("root"))
    text = client.get(reverse("admin:beatkeeper_runs_queue_changelist")).content.decode()
    assert "at most 5 at once; 0.5 a second; 3 of 10 today" in text
    assert "rate limit" in text
    page = client.get(reverse("admin:beatkeeper_runs_queue_change", args=[queue.pk])).content.decode()
    assert "3 of 10 today" in page


def test_an_operator_sets_a_tenants_quota_and_the_audit_trail_tells(client: Client) -> None:
    tenant = make_tenant(slug="acme")
    client.force_login(User.objects.create_superuser("root"))
    page = reverse("admin:beatkeeper_jobs_tenant_change", args=[tenant.pk])
    values = {
        "slug": "acme",
        "name": "Acme",
        "weight": 2,
        "max_running": "",
        "rate_limit": "",
        "daily_quota": 7,
    }
    answer = client.post(page, {**values, "allowed_hosts": ""})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    tenant.refresh_from_db()
    assert tenant.daily_quota == 7
    entry = AuditEntry.objects.get(action="tenant.edited")
    assert (entry.before or {})["daily_quota"] is None and (entry.after or {})["daily_quota"] == 7
    refused = client.post(page, {**values, "allowed_hosts": "", "daily_quota": -1})
    assert "daily_quota" in refused.context["adminform"].form.errors
