"""How a job looks in the API. Everything shown can be posted again as it is shown."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F

from auditlog.redaction import redact
from jobs import durations
from jobs.input_checks import Json
from jobs.models import Job, JobVersion
from jobs.refusals import InvalidInput
from jobs.specs import words_of
from scheduler_project.sdk.retries import DEFAULT_RETRY, NAMED_CLASSES, most_losses

BASE = "/api/v1"


def job_json(job: Job, spec: JobVersion | None = None, *, secrets: bool) -> Json:
    """Without `secrets`, values of headers, variables and arguments that are named like one are masked."""
    spec = spec or job.spec
    return {
        "id": str(job.pk),
        "name": job.name,
        "description": job.description,
        "status": job.status,
        "status_note": job.status_note,
        "status_at": instant(job.status_at),
        "paused_until": instant(job.paused_until),
        "missed_so_far": None,
        "pool": job.pool.slug,
        "priority": job.priority,
        "tags": job.tags,
        "version": job.version,
        "target": spec.target if secrets else redact(spec.target),
        "schedule": schedule_json(spec.schedule),
        "schedule_in_words": words(spec.schedule, str(job.pk)),
        "next_run_at": instant(job.clock.next_run_at),
        "timeout": _duration(spec.timeout_ms / 1000),
        "overlap": spec.overlap,
        "catch_up": {**spec.catch_up, "window": _duration(spec.catch_up["window"])},
        "retry": retry_json(spec.retry),
        "breaker": spec.breaker and {**spec.breaker, "cooldown": _duration(spec.breaker["cooldown"])},
        "max_concurrency": spec.max_concurrency,
        "created_at": instant(job.created_at),
        "updated_at": instant(job.updated_at),
        "links": {
            "self": f"{BASE}/jobs/{job.pk}",
            "runs": f"{BASE}/jobs/{job.pk}/runs",
            "preview": f"{BASE}/jobs/{job.pk}/preview",
            "times": f"{BASE}/jobs/{job.pk}/times",
            "explain": f"{BASE}/jobs/{job.pk}/explain",
        },
    }


def jobs_json(jobs: Iterable[Job], *, secrets: bool) -> list[Json]:
    """With one query for all the specs."""
    jobs = list(jobs)
    specs = JobVersion.objects.filter(job__in=[job.pk for job in jobs], version=F("job__version"))
    by_job = {spec.job_id: spec for spec in specs}
    return [job_json(job, by_job[job.pk], secrets=secrets) for job in jobs]


def retry_json(retry: Json) -> Json:
    named = {kind: retry.get(kind, []) for kind in NAMED_CLASSES}
    lengths = {name: _duration(retry[name]) for name in ("base", "cap")}
    return {
        **DEFAULT_RETRY,
        "max_losses": most_losses(retry, settings.MAX_WORKER_LOSSES),
        **retry,
        **lengths,
        **named,
    }


def schedule_json(schedule: Json | None) -> Json | None:
    if schedule is None:
        return None
    lengths: Json = {name: _duration(schedule[name]) for name in ("every", "jitter") if name in schedule}
    return {**schedule, **lengths}


def words(schedule: Json | None, hash_id: str) -> str:
    try:
        return words_of(schedule, hash_id)
    except InvalidInput as unreadable:
        return f"unreadable: {unreadable}"


def instant(value: datetime | None) -> str | None:
    if value is None:
        return None
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _duration(seconds: float) -> str:
    return durations.as_text(timedelta(seconds=seconds))
