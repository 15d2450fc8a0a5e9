"""Format instants, lengths of time, states and specs for the admin."""

import json
import math
from datetime import datetime, timedelta, timezone
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from auditlog.redaction import redact
from jobs.admin.html import BAD, BUSY, GOOD, QUIET, WARNING, fixed_width, label
from jobs.errors import DomainError
from jobs.models import Job, JobStatus, JobVersion
from jobs.spec.schedule import describe_schedule
from jobs.validation.durations import as_text

STATUS_COLOURS = {
    JobStatus.ACTIVE: GOOD,
    JobStatus.PAUSED: WARNING,
    JobStatus.FINISHED: BUSY,
    JobStatus.CANCELLED: QUIET,
    JobStatus.UNRUNNABLE: BAD,
}
NOTHING = "–"
# Lengths of time below so many seconds are told in this unit of so many.
UNITS = ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600), (math.inf, "days", 86_400))


def status_label(job: Job) -> SafeString:
    return label(job.status, STATUS_COLOURS[JobStatus(job.status)])


def moment(instant: datetime | None) -> SafeString | str:
    """Format an instant in UTC, as `18 Nov 12:30:05 in 4 s`, with its full form as the title."""
    if instant is None:
        return NOTHING
    shown = instant.astimezone(timezone.utc)
    ahead = shown - datetime.now(timezone.utc)
    distance = brief(abs(ahead))
    form = "%-d %b %H:%M:%S" if abs(ahead) < timedelta(days=180) else "%-d %b %Y %H:%M"
    return format_html(
        '<time datetime="{}" title="{} UTC" class="whitespace-nowrap">{} <span class="bk-dim">{}</span></time>',
        shown.isoformat(),
        shown.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
        shown.strftime(form),
        f"in {distance}" if ahead > timedelta(0) else f"{distance} ago",
    )


def brief(length: timedelta) -> str:
    """Format a length of time in its largest unit: 850 ms, 9.3 s, 45 s, 12 min, 5 h, 3 days."""
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    name, unit = next((name, unit) for below, name, unit in UNITS if seconds < below)
    return f"{seconds / unit:.0f} {name}"


def schedule_text(job: Job, spec: JobVersion) -> str:
    try:
        return describe_schedule(spec.schedule, str(job.pk))
    except DomainError:
        return "cannot be read"


def milliseconds_as_text(milliseconds: int) -> str:
    return as_text(timedelta(milliseconds=milliseconds))


def in_line(value: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {part}" for name, part in value.items())


def as_json(value: object) -> SafeString | str:
    """Format JSON with its secrets masked."""
    return NOTHING if value is None else fixed_width(json.dumps(redact(value), indent=2, ensure_ascii=False))
