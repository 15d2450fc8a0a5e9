"""The page of a worker shows what it runs and what went wrong."""

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from jobs.models import Membership
from runs.models import WorkerNode
from runs.states import LiveState
from tests.support.factories import make_attempt, make_job, make_pool, make_run, make_tenant, make_worker, now

pytestmark = pytest.mark.django_db


def page(client: Client, worker: WorkerNode) -> str:
    answer = client.get(reverse("admin:beatkeeper_runs_workernode_change", args=[worker.pk]))
    assert answer.status_code == 200
    return answer.content.decode()


def claims(text: str) -> str:
    found = re.search(r'<ol[^>]*id="claims">(.*?)</ol>', text, re.DOTALL)
    assert found
    return found[1]


def test_it_lists_what_the_worker_has_claimed_the_longest_first(staff: Client) -> None:
    pool = make_pool()
    worker = make_worker(pool)
    for name, minutes in (("short", 1), ("long", 9)):
        claimed_at = now() - timedelta(minutes=minutes)
        make_run(make_job(name=name, pool=pool), LiveState.RUNNING, worker=worker, claimed_at=claimed_at)
    make_run(make_job(name="of-another", pool=pool), LiveState.RUNNING, worker=make_worker(pool))
    listed = claims(page(staff, worker))
    assert listed.index("long") < listed.index("short") and "for 9 min" in listed
    assert "of-another" not in listed


def test_an_idle_worker_runs_nothing(staff: Client) -> None:
    assert "none" in claims(page(staff, make_worker(make_pool())))


@pytest.mark.parametrize("outcome", ["failed", "timeout", "lost"])
def test_it_leads_to_what_went_wrong_of_late(staff: Client, outcome: str) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    wanted = make_attempt(make_run(job, LiveState.RUNNING, worker=worker), outcome)
    make_attempt(make_run(job, LiveState.RUNNING, worker=worker), "succeeded")
    other = make_worker(job.pool)
    make_attempt(make_run(job, LiveState.RUNNING, worker=other), outcome)
    (address,) = re.findall(rf'href="([^"]*outcome__exact={outcome}[^"]*)"', page(staff, worker))
    answer = staff.get(address.replace("&amp;", "&"))
    assert [attempt.pk for attempt in answer.context["cl"].result_list] == [wanted.pk]


def test_a_member_sees_runs_of_their_tenants_alone(client: Client) -> None:
    ours, theirs = make_tenant(slug="ours"), make_tenant(slug="theirs")
    shared_by_two = make_pool(shared=False)
    shared_by_two.tenants.add(ours, theirs)
    worker = make_worker(shared_by_two)
    for tenant in (ours, theirs):
        job = make_job(tenant, name=f"job-of-{tenant.slug}", pool=shared_by_two)
        make_run(job, LiveState.RUNNING, worker=worker)
    client.force_login(member_of(ours))
    text = page(client, worker)
    assert "job-of-ours" in claims(text) and "theirs" not in claims(text)


def test_a_member_reads_the_name_of_a_worker_of_the_platform_without_a_link(client: Client) -> None:
    ours = make_tenant(slug="ours")
    worker = make_worker(make_pool(shared=True), name="big@machine")
    make_run(make_job(ours, pool=worker.pool), LiveState.RUNNING, worker=worker)
    client.force_login(member_of(ours))
    text = client.get(reverse("admin:beatkeeper_runs_liverun_changelist")).content.decode()
    assert "big@machine" in text
    assert reverse("admin:beatkeeper_runs_workernode_change", args=[worker.pk]) not in text
    assert f'value="{worker.pk}"' not in text, "nor is it among the workers to choose from"


def member_of(tenant: Any) -> User:
    user = User.objects.create_user(f"member-{uuid4().hex}", is_staff=True)
    Membership.objects.create(user=user, tenant=tenant)
    return user
