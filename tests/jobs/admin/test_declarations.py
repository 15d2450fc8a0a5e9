"""The page of a declared job names its code base and what was edited by hand."""

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from jobs.declarations import apply_now, declare
from jobs.models import Job, Pool, Tenant
from jobs.services.definition import edit_job
from tests.support.factories import post_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool(own_pool: Pool) -> Pool:
    return own_pool


def declared(tenant: Tenant, pool: Pool, **more: Any) -> Job:
    target = {"kind": "celery", "task": "shop.settle", "args": [], "kwargs": {"password": "hunter2"}}
    declare(tenant, pool, [{"name": "settle", "source": "shop", "target": target, "schedule": None, **more}])
    apply_now(tenant, ["settle"])
    return Job.objects.get(tenant=tenant)


def part(staff: Client, job: Job, name: str) -> str:
    answer = staff.get(reverse("admin:beatkeeper_jobs_job_change", args=[job.pk]))
    assert answer.status_code == 200
    found = re.search(rf'<(\w+)[^>]* id="{name}".*?</\1>', answer.content.decode(), re.DOTALL)
    return unescape(found[0]) if found else ""


def test_whose_it_is(staff: Client, tenant: Tenant, pool: Pool) -> None:
    job = declared(tenant, pool)
    assert "Declared by the code base shop in the pool payments" in part(staff, job, "declared")
    assert not part(staff, job, "drift")


def test_what_was_changed_by_hand(staff: Client, tenant: Tenant, pool: Pool) -> None:
    job = declared(tenant, pool, priority=700)
    edit_job(job, {"priority": 7})
    shown = part(staff, job, "drift")
    assert "`beatkeeper apply` of the code base shop resets it" in shown
    assert "priority: 700 -> 7" in shown


def test_no_secret_is_shown_there(staff: Client, tenant: Tenant, pool: Pool) -> None:
    job = declared(tenant, pool)
    target = {**job.spec.target, "kwargs": {"password": "geheim"}}
    edit_job(job, {"target": target})
    shown = part(staff, job, "drift")
    assert "target.kwargs.password" in shown and "hunter2" not in shown and "geheim" not in shown


def test_what_was_refused(staff: Client, tenant: Tenant, pool: Pool) -> None:
    job = declared(tenant, pool)
    declared(tenant, pool, priority=7000)
    assert "Its latest declaration was refused: priority" in part(staff, job, "drift")


def test_everybody_elses_jobs_say_nothing_of_it(staff: Client) -> None:
    assert not part(staff, post_job(), "declared")
