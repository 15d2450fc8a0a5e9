"""Show the audit trail in the admin, read-only, to operators of the platform."""

import json
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter

from auditlog.actions import Action
from auditlog.models import AuditEntry

if TYPE_CHECKING:
    Admin = admin.ModelAdmin[Any]
else:
    from unfold.admin import ModelAdmin as Admin


class ActionFilter(DropdownFilter):  # type: ignore[misc]
    title = "action"
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(action.value, action.value) for action in Action]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(action=self.value()) if self.value() else queryset


class AuditEntryAdmin(Admin):
    list_display: Any = ("when", "actor_column", "action", "about", "changed", "reason")
    list_filter = (ActionFilter, ("actor_kind", ChoicesDropdownFilter))
    list_filter_submit = True
    list_filter_sheet = False
    list_fullwidth = True
    show_full_result_count = False
    search_fields = ("actor", "object_id")
    search_help_text = "Search by actor or by id of the object"
    ordering = ("-id",)
    sortable_by = ()
    actions = None
    fields = (
        ("when", "actor_column", "address"),
        ("action", "about", "request_id"),
        "reason",
        "before_column",
        "after_column",
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_delete_permission = has_change_permission

    @admin.display(description="at (UTC)")
    def when(self, entry: AuditEntry) -> SafeString:
        return format_html('<span class="bk-nowrap">{}</span>', f"{entry.at:%-d %b %Y %H:%M:%S}")

    @admin.display(description="who")
    def actor_column(self, entry: AuditEntry) -> SafeString:
        return format_html('<span class="bk-nowrap">{} ({})</span>', entry.actor, entry.actor_kind)

    @admin.display(description="about")
    def about(self, entry: AuditEntry) -> SafeString | str:
        text = f"{entry.object_type} {name_of(entry) or entry.object_id}"
        for model in self.admin_site._registry:
            if model._meta.model_name == entry.object_type:
                page = f"admin:{model._meta.app_label}_{entry.object_type}_change"
                link = '<a href="{}" class="text-primary-600 dark:text-primary-500">{}</a>'
                return format_html(link, reverse(page, args=[quote(entry.object_id)]), text)
        return text

    @admin.display(description="changed")
    def changed(self, entry: AuditEntry) -> str:
        names = ", ".join({**(entry.before or {}), **(entry.after or {})})
        return shorten(names, 60, placeholder=" …") or "–"

    @admin.display(description="before")
    def before_column(self, entry: AuditEntry) -> SafeString | str:
        return pretty(entry.before)

    @admin.display(description="after")
    def after_column(self, entry: AuditEntry) -> SafeString | str:
        return pretty(entry.after)


def name_of(entry: AuditEntry) -> str:
    for side in (entry.after, entry.before):
        if side and (name := side.get("name") or side.get("slug")):
            return str(name)
    return ""


def pretty(value: Any) -> SafeString | str:
    if not value:
        return "–"
    return format_html('<pre class="bk-code">{}</pre>', json.dumps(value, indent=2, ensure_ascii=False))


admin.site.register(AuditEntry, AuditEntryAdmin)
