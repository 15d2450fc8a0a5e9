"""Read the suspensions that keep jobs from running now."""

from datetime import datetime

from django.db.models.functions import Least

from jobs.models import Job, Suspension
from jobs.suspensions.rules import SuspensionRow, SuspensionSet


def read_suspensions(until: datetime) -> SuspensionSet:
    """Read the suspensions that have begun by then and are not settled."""
    unsettled = Suspension.objects.filter(settled_at=None, begins_at__lte=until).order_by("begins_at", "id")
    # PostgreSQL's LEAST ignores nulls.
    columns = [Least("lifted_at", "ends_at") if name == "over_at" else name for name in SuspensionRow._fields]
    return SuspensionSet(tuple(map(SuspensionRow._make, unsettled.values_list(*columns))))


def suspensions_of(job: Job, now: datetime) -> list[SuspensionRow]:
    """Return all suspensions that keep the job from running now."""
    return list(read_suspensions(now).of(job.tenant_id, job.pool_id, job.tags, now))
