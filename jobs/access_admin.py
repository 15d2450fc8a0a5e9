"""Tenants, pools, keys, memberships and users in the admin: who may do what."""

from datetime import datetime, timezone
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.postgres.fields import ArrayField
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminTextInputWidget

from jobs import platform, tenants
from jobs.display import NOTHING, moment
from jobs.known_targets import known_in
from jobs.models import ApiKey, Pool, Role, Tenant
from jobs.pool_dialog import ExportDialog
from jobs.refusals import Refused
from jobs.staff import (
    BAD,
    GOOD,
    QUIET,
    WARNING,
    OfOwnTenants,
    OwnRelated,
    Searched,
    button,
    fixed_width,
    found_or_missing,
    go_to,
    is_superuser,
    label,
    list_of,
    own_tenants,
    page_of,
    sentence,
    telling,
)


class KeptByOperators(OfOwnTenants):
    """Tenants and pools: members look at their own, operators of the platform change them."""

    formfield_overrides = {ArrayField: {"widget": UnfoldAdminTextInputWidget}}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # runs and the audit trail refer to them for years

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        stored = type(obj).objects.filter(pk=obj.pk).first() if change else None
        form.facts_before = platform.facts(stored) if stored else None
        super().save_model(request, obj, form, change)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        platform.record_saved(form.instance, form.facts_before)


class TenantsAdmin(KeptByOperators):
    list_display = ("slug", "name", "weight", "max_running", "rate_limit", "daily_quota", "created")
    search_fields = ("slug", "name")
    ordering = ("slug",)
    fields = (
        ("slug", "name"),
        ("weight", "max_running", "rate_limit", "daily_quota", "retry_budget"),
        "allowed_hosts",
    )

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.filter(pk__in=own_tenants(request))

    def tenant_of(self, row: Any) -> int | None:
        return int(row.pk)

    @admin.display(description="created", ordering="created_at")
    def created(self, tenant: Tenant) -> SafeString | str:
        return moment(tenant.created_at)


class PoolAdmin(KeptByOperators):
    list_display = ("slug", "description", "shown_state", "open_to", "kinds", "tasks")
    search_fields = ("slug", "description")
    ordering = ("slug",)
    autocomplete_fields = ("tenants",)
    actions_detail = ["export", "pause", "resume"]
    readonly_fields = ("known_tasks",)

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.filter(Q(shared=True) | Q(tenants__in=own_tenants(request))).distinct()

    def tenant_of(self, row: Any) -> int | None:
        return None

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Which other tenants use a pool, and what of their code it could run, is none of a member's business."""
        everybody = ["slug", "description", "exported_kinds", "exported_tasks", "shared"]
        if not is_superuser(request):
            return everybody
        return [*everybody[:4], *(["known_tasks"] if obj else []), "shared", "tenants", "broker"]

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return is_superuser(request)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        pool = self.get_object(request, str(object_id))
        useless = "pause" if pool and platform.pauses(pool).exists() else "resume"
        found = super().get_actions_detail(request, object_id)  # type: ignore[misc]
        return [one for one in found if one.method.original_function_name != useless]

    @admin.display(description="state")
    def shown_state(self, pool: Pool) -> SafeString:
        return label("paused", WARNING) if platform.pauses(pool).exists() else label("open", GOOD)

    @admin.display(description="tenants")
    def open_to(self, pool: Pool) -> str:
        return "all" if pool.shared else "chosen ones"

    @admin.display(description="kinds")
    def kinds(self, pool: Pool) -> str:
        return ", ".join(pool.exported_kinds) or NOTHING

    @admin.display(description="tasks")
    def tasks(self, pool: Pool) -> str:
        return f"{len(pool.exported_tasks)} exported"

    @admin.display(description="known to its workers")
    def known_tasks(self, pool: Pool) -> SafeString | str:
        known = known_in(pool)
        if not known.live:
            return "no live worker can be asked"
        lines = [
            f"{task}" if task in pool.exported_tasks else f"{task}  (not exported)" for task in known.tasks
        ]
        unknown = sorted(set(pool.exported_tasks) - known.names)
        lines += [f"{task}  (exported, and known to no live worker)" for task in unknown]
        return fixed_width("\n".join(lines)) if lines else "no task"

    @button(
        "Export tasks",
        icon="add_task",
        asks="Jobs may then run them on the pool's workers.",
        form=ExportDialog,
    )
    def export(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        pool, tasks = Pool.objects.get(pk=object_id), form.cleaned_data["tasks"]
        with telling(request, f"{pool} exports {', '.join(tasks)} now."):
            platform.export_tasks(pool, tasks, form.cleaned_data["reason"])
        return go_to(request, page_of(pool))

    @button(
        "Pause pool",
        icon="pause",
        asks="Nothing more is handed over here; what runs goes on.",
        variant="danger",
    )
    def pause(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        pool = Pool.objects.get(pk=object_id)
        platform.pause_pool(pool, form.cleaned_data["reason"])
        messages.success(request, f"{pool} is paused.")
        return go_to(request, page_of(pool))

    @button("Resume pool", icon="play_arrow", asks="What has become due meanwhile goes first.")
    def resume(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        pool = Pool.objects.get(pk=object_id)
        platform.resume_pool(pool, form.cleaned_data["reason"])
        messages.success(request, f"{pool} goes on.")
        return go_to(request, page_of(pool))


class ApiKeyForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if "tenant" in given and "role" in given and "pool" in given:
            try:
                tenants.check_pool_of_key(given["tenant"], Role(given["role"]), given["pool"])
            except Refused as refusal:
                self.add_error("pool", f"{sentence(refusal.detail)}: {refusal.hint}.")
        return given


class ApiKeyAdmin(OfOwnTenants):
    form = ApiKeyForm
    list_display = ("name", "tenant", "shown_prefix", "role", "pool", "shown_state", "expires", "last_used")
    list_filter = (("tenant", OwnRelated), ("role", ChoicesDropdownFilter))
    search_fields = ("name", "prefix")
    list_select_related = ("tenant", "pool")
    ordering = ("-id",)
    autocomplete_fields = ("tenant", "pool")
    fields = (("tenant", "name"), ("role", "pool"), "expires_at")
    actions_detail = ["revoke"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            ("tenant", "name", "role", "pool", "shown_prefix", "shown_state", "expires", "last_used")
            if obj
            else self.fields
        )

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # a revoked key still says who did what

    def has_revoke_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        key = self.get_object(request, str(object_id)) if object_id else None
        return key is not None and key.revoked_at is None and may_manage(request, key.tenant_id)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        key, text = tenants.create_key(obj.tenant, obj.name, Role(obj.role), obj.expires_at, obj.pool)
        obj.pk, obj.prefix, obj.text = key.pk, key.prefix, text

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Shows the key in the answer itself: a message would carry it to the next page in a cookie."""
        context = {
            **self.admin_site.each_context(request),
            "title": "New key",
            "opts": self.opts,
            "key": obj,
            "text": obj.text,
            "page": page_of(obj),
        }
        return TemplateResponse(request, "jobs/new_key.html", context)

    @button(
        "Revoke", icon="key_off", asks="Its next request is refused.", variant="danger", permission="revoke"
    )
    def revoke(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        key = self.get_object(request, object_id)
        with telling(request, f"{key} is revoked."):
            tenants.revoke_key(found_or_missing(key), form.cleaned_data["reason"])
        return go_to(request, list_of(ApiKey))

    @admin.display(description="begins with")
    def shown_prefix(self, key: ApiKey) -> str:
        return f"bk_{key.prefix}_…"

    @admin.display(description="state")
    def shown_state(self, key: ApiKey) -> SafeString:
        if key.revoked_at:
            return label("revoked", QUIET)
        if key.expires_at and key.expires_at <= datetime.now(timezone.utc):
            return label("expired", BAD)
        return label("valid", GOOD)

    @admin.display(description="expires", ordering="expires_at")
    def expires(self, key: ApiKey) -> SafeString | str:
        return moment(key.expires_at) if key.expires_at else "never"

    @admin.display(description="last used", ordering="last_used_at")
    def last_used(self, key: ApiKey) -> SafeString | str:
        return moment(key.last_used_at) if key.last_used_at else "never"


class MembershipAdmin(KeptByOperators):
    list_display = ("user", "tenant", "role")
    list_filter = (("tenant", OwnRelated), ("role", ChoicesDropdownFilter))
    search_fields = ("user__username",)
    list_select_related = ("user", "tenant")
    ordering = ("id",)
    autocomplete_fields = ("user", "tenant")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("user", "tenant") if obj else ()

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return is_superuser(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        obj.pk = tenants.set_membership(obj.user, obj.tenant, Role(obj.role)).pk

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """There is nothing related."""

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        tenants.remove_membership(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for member in queryset:
            tenants.remove_membership(member)


class UsersAdmin(UserAdmin, Searched):  # type: ignore[type-arg]
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("May", {"fields": ("is_active", "is_staff", "is_superuser")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )


def may_manage(request: HttpRequest, tenant_id: int) -> bool:
    return is_superuser(request) or tenant_id in own_tenants(request, Role.ADMIN)
