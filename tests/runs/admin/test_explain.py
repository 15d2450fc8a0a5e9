"""The pages of jobs and runs name the same obstacles as the API."""

from datetime import timedelta

import pytest
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags

from jobs.models import Effect, Job, Role
from jobs.services.status import pause_job
from runs.models import Breaker, BreakerState, LiveRun
from runs.services.explain import JOB_CODES, ObstacleCode
from runs.states import LiveState
from tests.support.api_client import Caller
from tests.support.factories import (
    make_pool,
    make_queue,
    make_run,
    make_suspension,
    make_tenant,
    make_worker,
    now,
    post_job,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    make_pool(slug="default")
    return post_job(make_tenant(slug="acme"), schedule={"every": 3600})


def why(staff: Client, row: Model) -> list[str]:
    url = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    return [strip_tags(line) for line in staff.get(url).context["why"]]


def from_api(job: Job) -> list[tuple[str, str]]:
    answer = Caller(job.tenant, Role.VIEWER).get(f"jobs/{job.pk}/explain").json()
    return [(found["code"], found["detail"]) for found in answer["obstacles"]]


def block(job: Job) -> LiveRun:
    """Put every obstacle in the way of a job at once."""
    make_suspension(effect=Effect.HOLD, pool=job.pool, reason="upgrade", ends_at=now() + timedelta(hours=1))
    queue = make_queue(job)
    queue.reason = "no_live_worker"
    queue.save()
    moment = now()
    opened = {"opened_at": moment, "probe_at": moment + timedelta(minutes=5)}
    Breaker.objects.create(
        job=job, state=BreakerState.OPEN, limit=3, failures=3, cooldown_ms=300_000, **opened
    )
    live = make_run(job, LiveState.BLOCKED)
    LiveRun.objects.filter(pk=live.pk).update(reason="overlap")
    make_run(job, LiveState.DELAYED)
    return live


def test_the_page_of_a_job_names_the_obstacles_of_the_api(staff: Client, job: Job) -> None:
    block(job)
    pause_job(job, "deploy")
    named = from_api(job)
    assert [code for code, _ in named] == [code for code in JOB_CODES if code != ObstacleCode.SCHEDULE]
    lines = why(staff, job)
    assert len(lines) == len(named)
    for line, (_, detail) in zip(lines, named, strict=True):
        assert line.lower().startswith(detail.lower())


def test_a_job_without_obstacles_has_none_in_both(staff: Client, job: Job) -> None:
    make_worker(job.pool)
    assert from_api(job) == [] == why(staff, job)


def test_an_obstacle_says_what_ends_it_and_links_to_its_row(staff: Client, job: Job) -> None:
    make_worker(job.pool)
    suspension = make_suspension(pool=job.pool)
    page = staff.get(reverse("admin:beatkeeper_jobs_job_change", args=[job.pk]))
    (line,) = page.context["why"]
    assert "Unblocked by: lifting it." in line
    assert reverse("admin:beatkeeper_jobs_suspension_change", args=[suspension.pk]) in line


def test_the_page_of_a_waiting_run_names_its_reason_and_the_obstacles_of_its_job(
    staff: Client, job: Job
) -> None:
    live = block(job)
    lines = why(staff, live.run)
    assert "earlier planned run" in lines[0]
    of_job = dict(from_api(job))
    for code in ("suspension", "queue", "target", "breaker"):
        assert any(line.lower().startswith(of_job[code].lower()) for line in lines[1:])


def test_a_running_run_has_no_obstacles(staff: Client, job: Job) -> None:
    make_queue(job)
    live = make_run(job, LiveState.RUNNING)
    make_suspension(pool=job.pool)
    assert why(staff, live.run) == []


def test_the_lists_of_runs_say_why_each_waits(staff: Client, job: Job) -> None:
    make_run(job)
    for model in ("run", "liverun"):
        page = staff.get(reverse(f"admin:beatkeeper_runs_{model}_changelist")).content.decode()
        assert "no live worker" in page, model
