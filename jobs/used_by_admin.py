"""What the admin pages of calendars and secrets share: jobs use them, and only what none uses can be deleted."""

from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from auditlog.models import AuditEntry
from jobs.display import NOTHING
from jobs.models import JobVersion
from jobs.staff import KeptByService, OwnRelated, button, found_or_missing, go_to, link, list_of, telling
from jobs.used_by import job_names


class UsedByJobs(KeptByService):
    list_filter = (("tenant", OwnRelated),)
    list_select_related = ("tenant",)
    ordering = ("tenant_id", "name")
    sortable_by = ()
    autocomplete_fields = ("tenant",)
    actions = None
    actions_detail = ["delete"]

    def users(self, row: Any) -> QuerySet[JobVersion]:
        """In the order in which they are named."""
        raise NotImplementedError

    def delete_by_service(self, row: Any, reason: str) -> None:
        raise NotImplementedError

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # the button `Delete` asks the service, which knows who uses it

    def has_remove_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        row = self.get_object(request, object_id) if object_id else None
        return row is not None and self.has_change_permission(request, row)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # The other fields are the form's own; unfold cannot find them on the model.
        return super().get_form(request, obj, change, **{**kwargs, "fields": () if obj else ("tenant",)})

    @button("Delete", icon="delete", asks="Only while no job uses it.", variant="danger", permission="remove")
    def delete(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        row = found_or_missing(self.get_object(request, object_id))
        with telling(request, f"The {self.opts.verbose_name} {row} is deleted."):
            self.delete_by_service(row, form.cleaned_data["reason"])
        return go_to(request, list_of(self.model))

    @admin.display(description="jobs")
    def used_by(self, row: Any) -> str:
        return job_names(self.users(row), rest=" …") or NOTHING

    @admin.display(description="audit trail")
    def trail(self, row: Any) -> SafeString:
        trail = list_of(AuditEntry, object_type=self.opts.model_name, object_id=row.pk)
        return link(trail, "Audit trail")
