"""Tenants, API keys, memberships and users in the admin."""

from datetime import datetime, timezone
from typing import Any

from django import forms
from django.contrib.auth.admin import UserAdmin
from django.contrib.postgres.fields import ArrayField
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminTextInputWidget

from jobs.access import api_keys, memberships, pools
from jobs.admin.base import StrictLookupAdmin, TenantScopedAdmin, by_choice, related
from jobs.admin.buttons import button
from jobs.admin.columns import column, moment_column
from jobs.admin.html import BAD, GOOD, QUIET, label, list_with, page_of, sentence
from jobs.admin.permissions import is_superuser, may_act
from jobs.errors import DomainError
from jobs.models import ApiKey, Role


class PlatformAdmin(TenantScopedAdmin):
    """Let members look at their tenants and pools, and operators of the platform change them."""

    formfield_overrides = {ArrayField: {"widget": UnfoldAdminTextInputWidget}}

    def allows(self, request: HttpRequest, row: Any, needed: Role) -> bool:
        return is_superuser(request) or (needed == Role.VIEWER and super().allows(request, row, needed))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        stored = type(obj).objects.filter(pk=obj.pk).first() if change else None
        form.snapshot_before = pools.audit_snapshot(stored) if stored else None
        # What a scheduler has written since the page was read stays.
        fields = obj._meta.concrete_fields
        editable = [field.name for field in fields if field.editable and not field.primary_key]
        obj.save(update_fields=editable if change else None)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        pools.record_saved(form.instance, form.snapshot_before)


class TenantAdmin(PlatformAdmin):
    tenant_path = "id"
    list_display = ("slug", "name", "weight", "max_running", "rate_limit", "daily_quota", "created")
    search_fields = ("slug", "name")
    ordering = ("slug",)
    fields = (
        ("slug", "name"),
        ("weight", "max_running", "rate_limit", "daily_quota", "retry_budget"),
        "requests_per_minute",
        "allowed_hosts",
    )

    created = moment_column("created_at")


class ApiKeyForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if "tenant" in given and "role" in given and "pool" in given:
            try:
                api_keys.check_pool_of_key(given["tenant"], Role(given["role"]), given["pool"])
            except DomainError as refused:
                self.add_error("pool", f"{sentence(refused.detail)}: {refused.hint}.")
        return given


class ApiKeyAdmin(TenantScopedAdmin):
    form = ApiKeyForm
    list_display = ("name", "tenant", "prefix_column", "role", "pool", "state_column", "expires", "last_used")
    list_filter = (*related("tenant"), *by_choice("role"))
    search_fields = ("name", "prefix")
    list_select_related = ("tenant", "pool")
    ordering = ("-id",)
    autocomplete_fields = ("tenant", "pool")
    fields = (("tenant", "name"), ("role", "pool"), "expires_at")
    actions_detail = ["revoke"]

    prefix_column = column("begins with", lambda key: f"bk_{key.prefix}_…")
    state_column = column("state", lambda key: key_state(key))
    expires = moment_column("expires_at", empty="never")
    last_used = moment_column("last_used_at", empty="never")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = ("tenant", "name", "role", "pool", "prefix_column", "state_column", "expires", "last_used")
        return shown if obj else self.fields

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_revoke_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        key = self.get_object(request, str(object_id)) if object_id else None
        return key is not None and key.revoked_at is None and may_act(request, key.tenant_id, Role.ADMIN)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        key, text = api_keys.create_key(obj.tenant, obj.name, Role(obj.role), obj.expires_at, obj.pool)
        obj.pk, obj.prefix, obj.text = key.pk, key.prefix, text

    def response_add(self, request: HttpRequest, obj: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show the key in the response itself: a message would carry it to the next page in a cookie."""
        context = self.admin_site.each_context(request)
        context |= {"title": "New key", "opts": self.opts, "key": obj, "text": obj.text, "page": page_of(obj)}
        return TemplateResponse(request, "jobs/new_key.html", context)

    @button(
        "Revoke",
        "key_off",
        "Requests with it are refused from now on.",
        variant="danger",
        permission="revoke",
        then=list_with,
    )
    def revoke(self, key: ApiKey, given: dict[str, Any]) -> str:
        api_keys.revoke_key(key, given["reason"])
        return f"{key} is revoked."


def key_state(key: ApiKey) -> SafeString:
    if key.revoked_at:
        return label("revoked", QUIET)
    if key.expires_at and key.expires_at <= datetime.now(timezone.utc):
        return label("expired", BAD)
    return label("valid", GOOD)


class MembershipAdmin(PlatformAdmin):
    list_display = ("user", "tenant", "role")
    list_filter = (*related("tenant"), *by_choice("role"))
    search_fields = ("user__username",)
    list_select_related = ("user", "tenant")
    ordering = ("id",)
    autocomplete_fields = ("user", "tenant")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("user", "tenant") if obj else ()

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return is_superuser(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        obj.pk = memberships.set_membership(obj.user, obj.tenant, Role(obj.role)).pk

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save nothing: a membership has no related rows, and its service records the change."""

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        memberships.remove_membership(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for member in queryset:
            memberships.remove_membership(member)


class StaffUserAdmin(UserAdmin, StrictLookupAdmin):  # type: ignore[type-arg]
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Personal info", {"fields": ("first_name", "last_name", "email")}),
        ("Permissions", {"fields": ("is_active", "is_staff", "is_superuser")}),
        ("Important dates", {"fields": ("last_login", "date_joined")}),
    )
