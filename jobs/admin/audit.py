"""The audit trail in the admin, read only: members see the entries of their tenants, operators all."""

from textwrap import shorten
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, Subquery
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter

from auditlog.actions import Action
from auditlog.models import AuditEntry
from jobs.admin.base import LongListAdmin, by_choice
from jobs.admin.columns import column
from jobs.admin.formatting import as_json
from jobs.admin.html import link, on_one_line, page_of
from jobs.models import Tenant


class ActionFilter(DropdownFilter):  # type: ignore[misc]
    title = "action"
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(action.value, action.value) for action in Action]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(action=self.value()) if self.value() else queryset


class AuditEntryAdmin(LongListAdmin):
    list_display = ("when", "tenant", "actor_column", "action", "about", "changed", "reason")
    list_filter = (ActionFilter, *by_choice("actor_kind"))
    search_fields = ("actor", "object_id")
    search_help_text = "Search by actor or by id of the object"
    ordering = ("-id",)
    more_fields = (("address", "request_id"), "before_column", "after_column")

    when = column("at (UTC)", lambda entry: on_one_line(f"{entry.at:%-d %b %Y %H:%M:%S}"))
    tenant = column("tenant", lambda entry: entry.tenant_slug)
    actor_column = column("who", lambda entry: on_one_line(f"{entry.actor} ({entry.actor_kind})"))
    about = column("about", lambda entry: link_to_object(entry))
    changed = column("changed", lambda entry: changed_names(entry))
    before_column = column("before", lambda entry: as_json(entry.before or None))
    after_column = column("after", lambda entry: as_json(entry.after or None))

    def get_queryset(self, request: HttpRequest) -> Any:
        slug = Tenant.objects.filter(pk=OuterRef("tenant_id")).values("slug")[:1]
        return super().get_queryset(request).annotate(tenant_slug=Subquery(slug))


def link_to_object(entry: AuditEntry) -> str:
    text = f"{entry.object_type} {name_of(entry) or entry.object_id}"
    for model in admin.site._registry:
        if model._meta.model_name == entry.object_type:
            return link(page_of(model(pk=entry.object_id)), text)
    return text


def changed_names(entry: AuditEntry) -> str:
    names = ", ".join({**(entry.before or {}), **(entry.after or {})})
    return shorten(names, 60, placeholder=" …")


def name_of(entry: AuditEntry) -> str:
    for side in (entry.after, entry.before):
        if side and (name := side.get("name") or side.get("slug")):
            return str(name)
    return ""
