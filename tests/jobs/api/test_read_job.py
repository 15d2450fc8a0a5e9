"""Clients poll a job: it is read by few statements, each composed once."""

from typing import Any

import pytest

from jobs.models import Calendar, Job, Pool
from tests.support.api_client import Caller
from tests.support.factories import make_pool, make_tenant, make_worker, post_job
from tests.support.minute import Minute

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool() -> Pool:
    return make_pool(slug="default")


@pytest.fixture
def job(pool: Pool) -> Job:
    return post_job(make_tenant(slug="acme"), schedule={"every": 3600})


def test_a_job_is_read_by_two_statements(job: Job, minute: Minute, django_assert_num_queries: Any) -> None:
    """Of the key, and of the job with its version; one more reads the times that are skipped or moved, if some are."""
    caller = Caller(job.tenant)
    assert caller.get(f"jobs/{job.pk}").status_code == 200
    with django_assert_num_queries(2):
        answer = caller.get(f"jobs/{job.pk}").json()
    assert (answer["pool"], answer["version"]) == ("default", 1)
    skipped = answer["next_run_at"]
    assert caller.post(f"jobs/{job.pk}/times", {"planned_at": skipped, "skip": True}).status_code == 201
    with django_assert_num_queries(3):
        assert caller.get(f"jobs/{job.pk}").json()["next_run_at"] > skipped


def test_a_target_is_known_by_a_living_worker_of_the_tenant_alone(job: Job, pool: Pool) -> None:
    caller, known = Caller(job.tenant), [job.spec.target_key]
    make_worker(pool, known_targets=known, tenant=make_tenant(slug="other"))
    make_worker(make_pool(slug="elsewhere"), known_targets=known)
    make_worker(pool, known_targets=known, state="left")
    assert caller.patch(f"jobs/{job.pk}", {"pool": "default"}).json()["warnings"] != []
    make_worker(pool, known_targets=known, tenant=job.tenant)
    assert caller.patch(f"jobs/{job.pk}", {"pool": "default"}).json()["warnings"] == []


def test_a_job_is_read_with_the_calendar_of_its_present_version(job: Job) -> None:
    Calendar.objects.create(
        tenant=job.tenant, name="holidays", dates=[{"date": "2030-12-25", "name": "Christmas"}]
    )
    caller = Caller(job.tenant)
    changed = {"schedule": {"cron": "0 8 * * *", "calendar": {"name": "holidays", "on_closed": "next"}}}
    edited = caller.patch(f"jobs/{job.pk}", changed)
    assert edited.status_code == 200, edited.content
    read = caller.get(f"jobs/{job.pk}").json()
    assert read["version"] == 2
    assert read["schedule"]["calendar"] == {"name": "holidays", "on_closed": "next"}


def test_deleted_jobs_and_those_of_others_are_missing(job: Job) -> None:
    assert Caller(make_tenant(slug="rival")).get(f"jobs/{job.pk}").status_code == 404
    own = Caller(job.tenant)
    assert own.delete(f"jobs/{job.pk}").status_code == 204
    assert own.get(f"jobs/{job.pk}").status_code == 404
