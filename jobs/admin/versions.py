"""Versions and clocks of jobs in the admin, read only."""

from jobs.admin.base import LongListAdmin, related
from jobs.admin.columns import column, json_column, moment_column
from jobs.admin.formatting import in_line, milliseconds_as_text, schedule_text


class JobVersionAdmin(LongListAdmin):
    tenant_path = "job__tenant"
    list_display = ("job", "version", "shown_schedule", "target_key", "overlap", "created", "created_by")
    list_filter = related("job")
    list_select_related = ("job",)
    ordering = ("-id",)
    sortable_by = None
    fields = (
        ("job", "version"),
        "shown_target",
        ("shown_schedule", "overlap"),
        ("shown_timeout", "shown_retry", "max_concurrency"),
        ("created", "created_by"),
    )

    shown_schedule = column("schedule", lambda version: schedule_text(version.job, version))
    shown_target = json_column("target")
    shown_timeout = column("timeout", lambda version: milliseconds_as_text(version.timeout_ms))
    shown_retry = column("retry", lambda version: in_line(version.retry))
    created = moment_column("created_at")


class JobClockAdmin(LongListAdmin):
    tenant_path = "job__tenant"
    list_display = ("job", "next_run", "slice")
    list_filter = related("job")
    list_select_related = ("job",)
    ordering = ("pk",)

    next_run = moment_column("next_run_at")
