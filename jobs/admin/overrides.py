"""Overrides of planned times in the admin, read only: they are made and removed on the page of their job."""

from jobs.admin.base import LongListAdmin, related
from jobs.admin.columns import column, link_column, moment_column
from jobs.admin.html import BUSY, QUIET, WARNING, label


class OverrideAdmin(LongListAdmin):
    tenant_path = "job__tenant_id"
    list_display = ("planned", "job_column", "change", "moved", "state", "reason", "created_by")
    list_filter = related("job")
    list_select_related = ("job",)
    ordering = ("-planned_at", "-id")

    planned = moment_column("planned_at", "planned time")
    job_column = link_column("job")
    change = column("change", lambda row: label("moved", BUSY) if row.moved_to else label("skipped", WARNING))
    moved = moment_column("moved_to", "moved to")
    state = column("state", lambda row: label("done", QUIET) if row.done_at else "")
