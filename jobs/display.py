"""How instants, lengths of time and states look in the admin."""

from datetime import datetime, timedelta, timezone

from django.utils.html import format_html
from django.utils.safestring import SafeString

from jobs.models import Job, JobStatus, JobVersion
from jobs.schedules import BadSchedule, Schedule, parse
from jobs.schedules.words import in_words
from jobs.staff import BAD, BUSY, GOOD, QUIET, WARNING, label

STATUS_COLOURS = {
    JobStatus.ACTIVE: GOOD,
    JobStatus.PAUSED: WARNING,
    JobStatus.FINISHED: BUSY,
    JobStatus.CANCELLED: QUIET,
    JobStatus.UNRUNNABLE: BAD,
}
NOTHING = "–"


def status_label(job: Job) -> SafeString:
    return label(job.status, STATUS_COLOURS[JobStatus(job.status)])


def moment(instant: datetime | None, now: datetime | None = None) -> SafeString | str:
    """As `18 Nov 12:30:05, in 4 s`; the whole instant when the mouse is on it. Always UTC."""
    if instant is None:
        return NOTHING
    now = now or datetime.now(timezone.utc)
    shown = instant.astimezone(timezone.utc)
    form = "%-d %b %H:%M:%S" if abs(now - shown) < timedelta(days=180) else "%-d %b %Y %H:%M"
    return format_html(
        '<time datetime="{}" title="{} UTC" class="bk-nowrap">{} <span class="bk-dim">{}</span></time>',
        shown.isoformat(),
        shown.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
        shown.strftime(form),
        distance(shown - now),
    )


def distance(length: timedelta) -> str:
    text = brief(abs(length))
    return f"in {text}" if length > timedelta(0) else f"{text} ago"


def brief(length: timedelta) -> str:
    """The largest unit alone: 850 ms, 12.3 s, 45 s, 12 min, 5 h, 3 days."""
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} days"


def schedule_of(job: Job, spec: JobVersion) -> Schedule | None:
    """None: it cannot be read any more, as the job's status note tells."""
    try:
        return parse(spec.schedule, hash_id=str(job.pk))
    except BadSchedule:
        return None


def schedule_in_words(job: Job, spec: JobVersion) -> str:
    schedule = schedule_of(job, spec)
    return in_words(schedule) if schedule else "cannot be read"
