"""The common part of calendars and secrets: jobs use them, and only unused ones can be deleted."""

from typing import Any

from django.contrib import admin

from jobs.admin.base import ServiceAdmin, related
from jobs.admin.buttons import button
from jobs.admin.columns import column
from jobs.admin.formatting import NOTHING
from jobs.admin.html import audit_trail, list_with
from jobs.models.jobs import JobVersionQuerySet


class UsedByJobsAdmin(ServiceAdmin):
    list_filter = related("tenant")
    list_select_related = ("tenant",)
    ordering = ("tenant_id", "name")
    sortable_by = ()
    autocomplete_fields = ("tenant",)
    actions_detail = ["delete"]

    delete_by_service: Any  # the service, called with the row and the reason
    trail = column("audit trail", audit_trail)

    def users(self, row: Any) -> JobVersionQuerySet:
        """Return the jobs that use the row, in the order in which they are listed."""
        raise NotImplementedError

    @button(
        "Delete",
        "delete",
        "Only possible while no job uses it.",
        variant="danger",
        permission="remove",
        then=list_with,
    )
    def delete(self, row: Any, given: dict[str, Any]) -> str:
        self.delete_by_service(row, given["reason"])
        return f"The {self.opts.verbose_name} {row} is deleted."

    @admin.display(description="jobs", empty_value=NOTHING)
    def used_by(self, row: Any) -> str | None:
        return self.users(row).job_names(rest=" …") or None
