"""The audit trail in the admin can be read, filtered and followed, and never changed."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.models import Job
from jobs.services.definition import create_job
from jobs.services.status import pause_job
from tests.support.factories import make_pool, make_tenant

pytestmark = pytest.mark.django_db
LIST = "admin:beatkeeper_auditlog_auditentry_changelist"


@pytest.fixture
def job() -> Job:
    make_pool(slug="default")
    target = {"kind": "http", "url": "https://example.com", "headers": {"Authorization": "Bearer xyzzy-4711"}}
    return create_job(make_tenant(slug="payments"), {"name": "settle", "target": target})


def entries(staff: Client, **query: Any) -> list[str]:
    answer = staff.get(reverse(LIST), query)
    assert answer.status_code == 200
    return [entry.action for entry in answer.context["cl"].result_list]


def test_entries_are_listed_newest_first_and_link_to_their_object(staff: Client, job: Job) -> None:
    pause_job(job, "holidays")
    assert entries(staff) == ["job.paused", "job.created"]
    content = staff.get(reverse(LIST)).content.decode()
    assert reverse("admin:beatkeeper_jobs_job_change", args=[job.pk]) in content
    assert "holidays" in content and "payments" in content


def test_entries_are_found_by_object_action_and_actor(staff: Client, job: Job) -> None:
    pause_job(job)
    assert entries(staff, object_type="job", object_id=str(job.pk)) == ["job.paused", "job.created"]
    assert entries(staff, action="job.created") == ["job.created"]
    assert entries(staff, q="system") == ["job.paused", "job.created"]
    assert entries(staff, q="nobody") == []


def test_an_entry_shows_both_sides_without_secrets(staff: Client, job: Job) -> None:
    entry = AuditEntry.objects.get()
    answer = staff.get(reverse("admin:beatkeeper_auditlog_auditentry_change", args=[entry.pk]))
    content = answer.content.decode()
    assert "https://example.com" in content and "xyzzy-4711" not in content


def test_an_entry_cannot_be_changed_added_or_deleted(staff: Client, job: Job) -> None:
    entry = AuditEntry.objects.get()
    own = reverse("admin:beatkeeper_auditlog_auditentry_change", args=[entry.pk])
    assert staff.post(own, {"actor": "nobody"}).status_code == 403
    assert staff.post(own.replace("change/", "delete/"), {"post": "yes"}).status_code == 403
    assert staff.get(reverse("admin:beatkeeper_auditlog_auditentry_add")).status_code == 403
