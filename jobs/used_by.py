"""Which jobs use a calendar or a secret: while one does, it is not deleted."""

from django.db.models import F, QuerySet

from jobs.models import JobStatus, JobVersion

MOST_NAMED = 10


def of_living_jobs(versions: QuerySet[JobVersion]) -> QuerySet[JobVersion]:
    """The present ones. What is cancelled or deleted never runs again."""
    present = versions.filter(version=F("job__version"), job__deleted_at=None)
    return present.exclude(job__status=JobStatus.CANCELLED)


def job_names(versions: QuerySet[JobVersion], rest: str) -> str:
    """The first of them, in the order of `versions`, and what stands for the others: nobody counts these."""
    names = list(versions.values_list("job__name", flat=True)[: MOST_NAMED + 1])
    return ", ".join(names[:MOST_NAMED]) + (rest if len(names) > MOST_NAMED else "")
