"""Missed times and job gates in the admin, read only."""

from jobs.admin.base import LongListAdmin, related
from jobs.admin.columns import column, moment_column
from runs.reasons import describe


class MissedSpanAdmin(LongListAdmin):
    list_display = ("begins", "ends", "job", "tenant", "why", "policy", "state", "count")
    list_filter = related("tenant", "job")
    list_select_related = ("job", "tenant")
    ordering = ("-id",)

    begins = moment_column("begins_at", "begins")
    ends = moment_column("ends_at", "ends")
    why = column("reason", lambda span: describe(span.reason))


class JobGateAdmin(LongListAdmin):
    tenant_path = "job__tenant_id"
    list_display = ("job", "max_running")
    list_select_related = ("job",)
    ordering = ("pk",)
    sortable_by = None
