"""Versions and clocks of jobs in the admin, read only."""

from jobs.admin.base import LongListAdmin, related
from jobs.admin.columns import column, json_column, moment_column
from jobs.admin.formatting import in_line, milliseconds_as_text, schedule_text


class JobVersionAdmin(LongListAdmin):
    tenant_path = "job__tenant_id"
    list_display = ("job", "version", "schedule_column", "target_key", "overlap", "created", "created_by")
    list_filter = related("job")
    list_select_related = ("job",)
    ordering = ("-id",)
    sortable_by = None
    more_fields = (
        "target_column",
        "job_fields_column",
        ("timeout_column", "retry_column", "max_concurrency"),
    )

    schedule_column = column("schedule", lambda version: schedule_text(version.job, version))
    target_column = json_column("target")
    job_fields_column = json_column("job_fields", "job")
    timeout_column = column("timeout", lambda version: milliseconds_as_text(version.timeout_ms))
    retry_column = column("retry", lambda version: in_line(version.retry))
    created = moment_column("created_at")


class JobClockAdmin(LongListAdmin):
    tenant_path = "job__tenant_id"
    list_display = ("job", "next_run", "slice")
    list_filter = related("job")
    list_select_related = ("job",)
    ordering = ("pk",)

    next_run = moment_column("next_run_at")
