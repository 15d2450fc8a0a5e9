"""Jobs, and what they stand on, in the admin. Every change goes through the services."""

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.contrib.postgres.fields import ArrayField
from django.db.models import F, Model, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminTextInputWidget

from auditlog.admin import AuditEntryAdmin
from auditlog.models import AuditEntry
from auditlog.redaction import redact
from jobs import platform, services, tenants
from jobs.database_clock import database_now
from jobs.display import (
    NOTHING,
    moment,
    schedule_in_words,
    schedule_of,
    status_label,
)
from jobs.durations import as_text
from jobs.job_form import JobForm
from jobs.models import (
    ApiKey,
    Declaration,
    Job,
    JobClock,
    JobStatus,
    JobVersion,
    Membership,
    Pool,
    Role,
    Tenant,
)
from jobs.schedules import upcoming
from jobs.staff import (
    BAD,
    GOOD,
    QUIET,
    WARNING,
    LookOnly,
    OfOwnTenants,
    OwnRelated,
    Searched,
    button,
    fixed_width,
    found_or_missing,
    go_to,
    is_superuser,
    label,
    link,
    list_of,
    own_tenants,
    page_of,
    telling,
    together,
)
from jobs.uncounted_pages import Uncounted

FIRINGS_SHOWN = 5


class JobAdmin(OfOwnTenants):
    """What runs know of a job is added in runs/admin.py: jobs never calls up."""

    form = JobForm
    paginator = Uncounted
    list_display: Any = ("shown_name", "tenant", "shown_status", "schedule", "next_run", "pool", "priority")
    list_filter = (
        ("status", ChoicesDropdownFilter),
        ("tenant", OwnRelated),
        ("pool", OwnRelated),
    )
    search_fields = ("name",)
    search_help_text = "Search by name"
    list_select_related = ("tenant", "pool", "clock")
    # As job_newest_first_idx has them: without tenant first, the newest of ten million would be sorted for.
    ordering = ("tenant_id", "-created_at", "-id")
    sortable_by = ("shown_name", "next_run", "priority")
    autocomplete_fields = ("tenant", "pool")
    actions: Any = ("pause_chosen", "resume_chosen")
    actions_detail: Any = ["pause", "resume", "cancel", "delete"]
    actions_row: Any = ["pause", "resume", "cancel"]
    change_form_outer_before_template = "jobs/job_summary.html"
    conditional_fields = {
        "cron": "schedule_kind == 'cron'",
        "timezone": "schedule_kind == 'cron'",
        "every": "schedule_kind == 'every'",
        "at": "schedule_kind == 'at'",
        "start": "schedule_kind == 'cron' || schedule_kind == 'every'",
        "end": "schedule_kind == 'cron' || schedule_kind == 'every'",
    }
    readonly_fields = ("shown_target", "schedule", "shown_timeout", "shown_retry", "shown_tags")
    what = (
        ("name", "pool"),
        "description",
        ("priority", "tags"),
        "target",
    )
    when = ("schedule_kind", ("cron", "timezone"), "every", "at", ("start", "end"))
    how = (
        ("timeout", "max_concurrency"),
        "overlap",
        ("retry_max_attempts", "retry_backoff"),
        ("retry_base", "retry_cap"),
        ("catch_up_policy", "catch_up_window"),
    )
    looked_at = (
        ("name", "tenant", "pool"),
        "description",
        ("priority", "shown_tags"),
        "shown_target",
        "schedule",
        ("shown_timeout", "shown_retry"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        current = JobVersion.objects.filter(version=F("job__version"))
        present = super().get_queryset(request).filter(deleted_at=None)
        return present.prefetch_related(Prefetch("versions", current, to_attr="current_versions"))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": self.looked_at})]
        what = (*self.what, "seen") if obj else ("tenant", *self.what)
        return [(None, {"fields": what}), ("When", {"fields": self.when}), ("How", {"fields": self.how})]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # The fields are the form's own; unfold cannot find them on the model.
        return super().get_form(
            request, obj, change, **{**kwargs, "fields": ("pool",) if obj else ("tenant", "pool")}
        )

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """The form has asked the service already."""

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # the button `Delete` is the soft one

    def has_pause_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.has_operate_permission(request, object_id)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        job = self.get_object(request, object_id)
        extra = {**(extra_context or {}), **(self.summary(job) if job else {})}
        return super().change_view(request, object_id, form_url, extra)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """Only the buttons that make sense now."""
        job = self.get_object(request, str(object_id))
        useless = self.useless_buttons(job) if job else set()
        return [
            found
            for found in super().get_actions_detail(request, object_id)  # type: ignore[misc]
            if found.method.original_function_name not in useless
        ]

    def useless_buttons(self, job: Job) -> set[str]:
        useless = set()
        if job.status not in services.PAUSABLE:
            useless.add("pause")
        if job.status not in services.RESUMABLE:
            useless.add("resume")
        if job.status == JobStatus.CANCELLED:
            useless.add("cancel")
        return useless

    def summary(self, job: Job) -> dict[str, Any]:
        spec = job.spec
        return {
            "job": job,
            "status": status_label(job),
            "status_at": moment(job.status_at),
            "words": schedule_in_words(job, spec),
            "firings": [moment(at) for at in next_firings(job, spec)],
            "links": self.links(job),
        }

    def links(self, job: Job) -> list[SafeString]:
        return [
            link(list_of(JobVersion, job__id__exact=job.pk), f"Versions ({job.version})"),
            link(list_of(AuditEntry, object_type="job", object_id=job.pk), "Audit trail"),
        ]

    @admin.display(description="name", ordering="name")
    def shown_name(self, job: Job) -> SafeString:
        return together(job.name)

    @admin.display(description="status", ordering="status")
    def shown_status(self, job: Job) -> SafeString:
        return status_label(job)

    @admin.display(description="schedule")
    def schedule(self, job: Any) -> str:
        return schedule_in_words(job, current_version(job))

    @admin.display(description="next run", ordering="clock__next_run_at")
    def next_run(self, job: Job) -> SafeString | str:
        return moment(job.clock.next_run_at)

    @admin.display(description="target")
    def shown_target(self, job: Any) -> SafeString:
        return pretty(redact(current_version(job).target))

    @admin.display(description="timeout")
    def shown_timeout(self, job: Any) -> str:
        return shown_milliseconds(current_version(job).timeout_ms)

    @admin.display(description="retry")
    def shown_retry(self, job: Any) -> str:
        return in_line(current_version(job).retry)

    @admin.display(description="tags")
    def shown_tags(self, job: Job) -> str:
        return in_line(job.tags) or NOTHING

    @button("Pause", icon="pause", asks="It has no planned times until it is resumed.", permission="pause")
    def pause(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return self.do(request, form, object_id, services.pause_job, "is paused")

    @button("Resume", icon="play_arrow", asks="It goes on with the first time after now.", permission="pause")
    def resume(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return self.do(request, form, object_id, services.resume_job, "goes on")

    @button(
        "Cancel job",
        icon="block",
        asks="For good: no more planned times, and its unfinished runs end.",
        variant="danger",
        permission="pause",
    )
    def cancel(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return self.do(request, form, object_id, services.cancel_job, "is cancelled")

    @button(
        "Delete",
        icon="delete",
        asks="It disappears, its unfinished runs end; finished runs and the audit trail stay readable.",
        variant="danger",
        permission="retire",
    )
    def delete(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        self.do(request, form, object_id, services.delete_job, "is deleted")
        return go_to(request, list_of(Job))

    def has_retire_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        job = self.get_object(request, str(object_id)) if object_id else None
        return job is not None and self.has_change_permission(request, job)

    def do(self, request: HttpRequest, form: Any, object_id: str, service: Any, done: str) -> HttpResponse:
        job = self.get_object(request, object_id)
        with telling(request, f"{job} {done}."):
            service(found_or_missing(job), reason=form.cleaned_data["reason"])
        return go_to(request, page_of(job) if job else list_of(Job))

    @admin.action(description="Pause the chosen jobs", permissions=["pause"])
    def pause_chosen(self, request: HttpRequest, jobs: QuerySet[Any]) -> None:
        self.do_all(request, jobs, services.pause_job, "paused")

    @admin.action(description="Resume the chosen jobs", permissions=["pause"])
    def resume_chosen(self, request: HttpRequest, jobs: QuerySet[Any]) -> None:
        self.do_all(request, jobs, services.resume_job, "resumed")

    def do_all(self, request: HttpRequest, jobs: QuerySet[Any], service: Any, done: str) -> None:
        count = 0
        for job in jobs:
            with telling(request):
                if not self.has_pause_permission(request, str(job.pk)):
                    messages.error(request, f"{job}: your role does not allow it.")
                    continue
                service(job)
                count += 1
        messages.success(request, f"{count} {'job' if count == 1 else 'jobs'} {done}.")


class JobVersionAdmin(LookOnly):
    tenant_path = "job__tenant"
    paginator = Uncounted
    list_display = ("job", "version", "shown_schedule", "target_key", "overlap", "created", "created_by")
    list_filter = (("job", OwnRelated),)
    list_select_related = ("job",)
    ordering = ("-id",)
    fields = (
        ("job", "version"),
        "shown_target",
        ("shown_schedule", "overlap"),
        ("shown_timeout", "shown_retry", "max_concurrency"),
        ("created", "created_by"),
    )

    def tenant_of(self, row: Any) -> int | None:
        found: int = row.job.tenant_id
        return found

    @admin.display(description="schedule")
    def shown_schedule(self, version: JobVersion) -> str:
        return schedule_in_words(version.job, version)

    @admin.display(description="target")
    def shown_target(self, version: JobVersion) -> SafeString:
        return pretty(redact(version.target))

    @admin.display(description="timeout")
    def shown_timeout(self, version: JobVersion) -> str:
        return shown_milliseconds(version.timeout_ms)

    @admin.display(description="retry")
    def shown_retry(self, version: JobVersion) -> str:
        return in_line(version.retry)

    @admin.display(description="created", ordering="created_at")
    def created(self, version: JobVersion) -> SafeString | str:
        return moment(version.created_at)


class JobClockAdmin(LookOnly):
    tenant_path = "job__tenant"
    paginator = Uncounted
    list_display = ("job", "next_run", "slice")
    list_filter = (("job", OwnRelated),)
    list_select_related = ("job",)
    ordering = ("pk",)
    sortable_by = ()

    def tenant_of(self, row: Any) -> int | None:
        found: int = row.job.tenant_id
        return found

    @admin.display(description="next run")
    def next_run(self, clock: JobClock) -> SafeString | str:
        return moment(clock.next_run_at)


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
    list_display = ("slug", "name", "weight", "max_running", "rate_limit", "created")
    search_fields = ("slug", "name")
    ordering = ("slug",)
    fields = (("slug", "name"), ("weight", "max_running", "rate_limit"), "allowed_hosts")

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
    actions_detail = ["pause", "resume"]

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.filter(Q(shared=True) | Q(tenants__in=own_tenants(request))).distinct()

    def tenant_of(self, row: Any) -> int | None:
        return None

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Which other tenants use a pool is none of a member's business."""
        everybody = ["slug", "description", "exported_kinds", "exported_tasks", "shared"]
        return [*everybody, "tenants"] if is_superuser(request) else everybody

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return is_superuser(request)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        pool = self.get_object(request, str(object_id))
        useless = "pause" if pool and pool.paused_at else "resume"
        found = super().get_actions_detail(request, object_id)  # type: ignore[misc]
        return [one for one in found if one.method.original_function_name != useless]

    @admin.display(description="state")
    def shown_state(self, pool: Pool) -> SafeString:
        return label("paused", WARNING) if pool.paused_at else label("open", GOOD)

    @admin.display(description="tenants")
    def open_to(self, pool: Pool) -> str:
        return "all" if pool.shared else "chosen ones"

    @admin.display(description="kinds")
    def kinds(self, pool: Pool) -> str:
        return ", ".join(pool.exported_kinds) or NOTHING

    @admin.display(description="tasks")
    def tasks(self, pool: Pool) -> str:
        return f"{len(pool.exported_tasks)} exported"

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


class ApiKeyAdmin(OfOwnTenants):
    list_display = ("name", "tenant", "shown_prefix", "role", "shown_state", "expires", "last_used")
    list_filter = (("tenant", OwnRelated), ("role", ChoicesDropdownFilter))
    search_fields = ("name", "prefix")
    list_select_related = ("tenant",)
    ordering = ("-id",)
    autocomplete_fields = ("tenant",)
    fields = (("tenant", "name"), ("role", "expires_at"))
    actions_detail = ["revoke"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            ("tenant", "name", "role", "shown_prefix", "shown_state", "expires", "last_used")
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
        key, text = tenants.create_key(obj.tenant, obj.name, Role(obj.role), obj.expires_at)
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


class DeclarationAdmin(LookOnly):
    list_display = ("name", "tenant", "pool", "state", "declared", "error")
    list_filter = (("tenant", OwnRelated), ("pool", OwnRelated))
    search_fields = ("name",)
    list_select_related = ("tenant", "pool")
    ordering = ("-declared_at",)
    fields = (("name", "tenant", "pool"), "shown_spec", ("declared", "state"), "error")

    @admin.display(description="declared as")
    def shown_spec(self, declaration: Declaration) -> SafeString:
        return pretty(redact(declaration.spec))

    @admin.display(description="state")
    def state(self, declaration: Declaration) -> SafeString:
        if declaration.error:
            return label("refused", BAD)
        return label("applied", GOOD) if declaration.applied_at else label("waiting", WARNING)

    @admin.display(description="declared", ordering="declared_at")
    def declared(self, declaration: Declaration) -> SafeString | str:
        return moment(declaration.declared_at)


class AuditOfTenants(LookOnly, AuditEntryAdmin):
    """The trail as members see it: entries of their tenants."""

    paginator = Uncounted
    list_display = ("when", "tenant", "shown_actor", "action", "about", "changed", "reason")

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.filter(tenant_id__in=own_tenants(request))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        slug = Tenant.objects.filter(pk=OuterRef("tenant_id")).values("slug")[:1]
        entries: QuerySet[Any] = super().get_queryset(request).annotate(tenant_slug=Subquery(slug))
        return entries

    @admin.display(description="tenant")
    def tenant(self, entry: Any) -> str:
        return entry.tenant_slug or NOTHING


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


def current_version(job: Any) -> JobVersion:
    found: list[JobVersion] = getattr(job, "current_versions", [])
    return found[0] if found else job.spec


def next_firings(job: Job, spec: JobVersion) -> list[Any]:
    schedule = schedule_of(job, spec)
    if schedule is None or job.status != JobStatus.ACTIVE:
        return []
    return upcoming(schedule, database_now(), FIRINGS_SHOWN, anchor=spec.anchor_at)


def pretty(value: object) -> SafeString:
    return fixed_width(json.dumps(value, indent=2, ensure_ascii=False))


def in_line(value: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {part}" for name, part in value.items())


def shown_milliseconds(milliseconds: int) -> str:
    return as_text(timedelta(milliseconds=milliseconds))


admin.site.unregister(AuditEntry)
for model, model_admin in (
    (Job, JobAdmin),
    (JobVersion, JobVersionAdmin),
    (JobClock, JobClockAdmin),
    (Tenant, TenantsAdmin),
    (Pool, PoolAdmin),
    (ApiKey, ApiKeyAdmin),
    (Membership, MembershipAdmin),
    (Declaration, DeclarationAdmin),
    (AuditEntry, AuditOfTenants),
):
    admin.site.register(model, model_admin)
admin.site.unregister(User)
admin.site.register(User, UsersAdmin)
admin.site.unregister(Group)  # rights come from memberships
