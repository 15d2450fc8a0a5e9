"""Filter the list of jobs."""

from django.db.models import Exists, OuterRef, QuerySet

from jobs.api.filters import NamedFilterSet, QueryFilter, choice
from jobs.hooks import job_hooks
from jobs.models import Job, JobStatus, JobVersion
from jobs.models.jobs import JobQuerySet
from jobs.spec.tags import ABOUT, TAG, read_tag

# The version that a job has now.
PRESENT = JobVersion.objects.filter(job=OuterRef("pk"), version=OuterRef("version"))


class JobFilters(NamedFilterSet):
    tag = QueryFilter(
        f"{ABOUT} Several must all match.", read=read_tag, schema=TAG, many=True, method="with_tags"
    )
    status = choice("The status.", JobStatus.values, "is not a status")
    held_by = choice(
        "What holds their runs now: the breaker of the job, open or half open.",
        ("breaker",),
        "holds no jobs",
        method="held",
    )
    pool = QueryFilter("The pool.", field_name="pool__slug")
    calendar = QueryFilter("The name of the calendar they plan by.", method="planned_by")
    secret = QueryFilter("The name of a secret their targets refer to.", method="referring_to")
    q = QueryFilter("Part of the name.", field_name="name", lookup_expr="icontains")

    def with_tags(self, jobs: JobQuerySet, _: str, tags: list[tuple[str, str]]) -> JobQuerySet:
        for name, value in tags:
            jobs = jobs.tagged(name, value)
        return jobs

    def held(self, jobs: QuerySet[Job], _: str, __: str) -> QuerySet[Job]:
        return jobs.filter(pk__in=job_hooks().held_jobs())

    def planned_by(self, jobs: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        return jobs.filter(Exists(PRESENT.filter(calendar__name=name, calendar__deleted_at=None)))

    def referring_to(self, jobs: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        referring = PRESENT.exclude(secret_names=[]).filter(secret_names__contains=[name])
        return jobs.filter(Exists(referring))
