"""Two who change the same job at once, each having seen the same edition of it."""

from collections.abc import Callable
from typing import Any

import pytest

from auditlog.models import AuditEntry
from jobs.errors import ChangedMeanwhile
from jobs.models import Job, JobVersion
from jobs.services.definition import delete_job, patch_job
from jobs.services.locking import edition
from jobs.services.status import cancel_job, pause_job
from tests.races.staging import held_open, result_after
from tests.support.factories import post_job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job() -> Job:
    return post_job(schedule={"cron": "0 3 * * *", "timezone": "Europe/Berlin"})


def test_of_two_patches_that_have_seen_the_same_exactly_one_wins(job: Job) -> None:
    seen = [edition(job)]
    with held_open() as first:
        patch_job(job, {"tags": {"by": "first"}}, seen=seen)
        with pytest.raises(ChangedMeanwhile, match="has changed the job"):
            result_after(first, lambda: patch_job(job, {"tags": {"by": "second"}}, seen=seen))
    job.refresh_from_db()
    assert (job.tags, job.version) == ({"by": "first"}, 2)
    assert JobVersion.objects.filter(job=job).count() == 2
    assert AuditEntry.objects.filter(action="job.edited").count() == 1


def test_the_second_patch_wins_when_the_first_is_undone(job: Job) -> None:
    seen = [edition(job)]
    with held_open() as first:
        patch_job(job, {"tags": {"by": "first"}}, seen=seen)
        second, _ = result_after(
            first, lambda: patch_job(job, {"tags": {"by": "second"}}, seen=seen), "ROLLBACK"
        )
    assert second.tags == {"by": "second"}
    job.refresh_from_db()
    assert (job.tags, job.version) == ({"by": "second"}, 2)


@pytest.mark.parametrize("change", [pause_job, cancel_job, delete_job])
def test_a_change_of_the_status_that_comes_second_is_refused(job: Job, change: Callable[..., Any]) -> None:
    seen = [edition(job)]
    with held_open() as first:
        patch_job(job, {"priority": 7}, seen=seen)
        with pytest.raises(ChangedMeanwhile):
            result_after(first, lambda: change(job, seen=seen))
    job.refresh_from_db()
    assert (job.priority, job.status, job.deleted_at) == (7, "active", None)


def test_patches_of_parts_of_one_field_both_count(job: Job) -> None:
    """The second merges into what the first has left, not into what it has read before it waited."""
    with held_open() as first:
        patch_job(job, {"schedule": {"cron": "0 4 * * *"}})
        result_after(first, lambda: patch_job(job, {"schedule": {"jitter": "PT5M"}}))
    job.refresh_from_db()
    assert job.spec.schedule == {"cron": "0 4 * * *", "timezone": "Europe/Berlin", "jitter": 300}
