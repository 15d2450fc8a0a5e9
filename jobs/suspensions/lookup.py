"""Read the suspensions that keep jobs from running now, and the jobs that a suspension concerns."""

from datetime import datetime

from django.db.models.functions import Least

from jobs.models import Job, JobStatus, Suspension, Tenant
from jobs.suspensions.rules import SuspensionRow, SuspensionSet

NO_JOB = "none of the jobs there are is concerned; jobs that are made, moved or tagged later may be"


def read_suspensions(until: datetime) -> SuspensionSet:
    """Read the suspensions that have begun by then and are not settled."""
    unsettled = Suspension.objects.filter(settled_at=None, begins_at__lte=until).order_by("begins_at", "id")
    # PostgreSQL's LEAST ignores nulls.
    columns = [Least("lifted_at", "ends_at") if name == "over_at" else name for name in SuspensionRow._fields]
    return SuspensionSet(tuple(map(SuspensionRow._make, unsettled.values_list(*columns))))


def suspensions_of(job: Job, now: datetime) -> list[SuspensionRow]:
    """Return all suspensions that keep the job from running now."""
    return list(read_suspensions(now).of(job.tenant_id, job.pool_id, job.pk, job.tags, now))


def jobs_concerned(suspension: Suspension, tenant: Tenant | None) -> int:
    """Count the jobs that a suspension concerns, of this tenant alone if one is given."""
    found = Job.objects.of(tenant) if tenant else Job.objects.present()
    if suspension.pool_id is not None:
        found = found.filter(pool=suspension.pool_id)
    if suspension.job_id is not None:
        found = found.filter(pk=suspension.job_id)
    if suspension.tag_name:
        found = found.tagged(suspension.tag_name, suspension.tag_value)
    return found.exclude(status__in=(JobStatus.FINISHED, JobStatus.CANCELLED)).count()
