"""Which pages the admin has of jobs and what they stand on, and those of them that are only to look at."""

from typing import Any

from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from auditlog.admin import AuditEntryAdmin
from auditlog.models import AuditEntry
from jobs.access_admin import ApiKeyAdmin, MembershipAdmin, PoolAdmin, TenantsAdmin, UsersAdmin
from jobs.calendar_admin import CalendarAdmin
from jobs.display import NOTHING, as_json, in_line, milliseconds_as_text, moment, schedule_in_words
from jobs.job_admin import JobAdmin
from jobs.models import (
    ApiKey,
    Calendar,
    Declaration,
    Job,
    JobClock,
    JobVersion,
    Membership,
    PlannedChange,
    Pool,
    RunRequest,
    Secret,
    Stop,
    Tenant,
)
from jobs.planned_change_admin import PlannedChangeAdmin
from jobs.secret_admin import SecretAdmin
from jobs.staff import BAD, GOOD, WARNING, LookOnly, OwnRelated, label, own_tenants
from jobs.stop_admin import StopAdmin
from jobs.uncounted_pages import Uncounted


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
    def shown_target(self, version: JobVersion) -> SafeString | str:
        return as_json(version.target)

    @admin.display(description="timeout")
    def shown_timeout(self, version: JobVersion) -> str:
        return milliseconds_as_text(version.timeout_ms)

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


class DeclarationAdmin(LookOnly):
    list_display = ("name", "tenant", "pool", "state", "declared", "error")
    list_filter = (("tenant", OwnRelated), ("pool", OwnRelated))
    search_fields = ("name",)
    list_select_related = ("tenant", "pool")
    ordering = ("-declared_at",)
    fields = (("name", "tenant", "pool"), "shown_spec", ("declared", "state"), "error")

    @admin.display(description="declared as")
    def shown_spec(self, declaration: Declaration) -> SafeString | str:
        return as_json(declaration.spec)

    @admin.display(description="state")
    def state(self, declaration: Declaration) -> SafeString:
        if declaration.error:
            return label("refused", BAD)
        return label("applied", GOOD) if declaration.applied_at else label("waiting", WARNING)

    @admin.display(description="declared", ordering="declared_at")
    def declared(self, declaration: Declaration) -> SafeString | str:
        return moment(declaration.declared_at)


class RunRequestAdmin(LookOnly):
    paginator = Uncounted
    list_display = ("key", "tenant", "pool", "job", "requested", "planned", "state", "error")
    list_filter = (("tenant", OwnRelated), ("job", OwnRelated))
    list_select_related = ("tenant", "pool", "job")
    ordering = ("-requested_at",)
    sortable_by = ()
    fields = (
        ("key", "tenant", "pool"),
        ("job", "run"),
        "shown_spec",
        ("requested", "planned", "state"),
        "error",
    )

    @admin.display(description="asked for")
    def shown_spec(self, asked: RunRequest) -> SafeString | str:
        return as_json(asked.spec)

    @admin.display(description="state")
    def state(self, asked: RunRequest) -> SafeString:
        if asked.error:
            return label("refused", BAD)
        return label("made", GOOD) if asked.applied_at else label("waiting", WARNING)

    @admin.display(description="requested")
    def requested(self, asked: RunRequest) -> SafeString | str:
        return moment(asked.requested_at)

    @admin.display(description="planned")
    def planned(self, asked: RunRequest) -> SafeString | str:
        return moment(asked.at)


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


admin.site.unregister(AuditEntry)
for model, model_admin in (
    (Job, JobAdmin),
    (JobVersion, JobVersionAdmin),
    (JobClock, JobClockAdmin),
    (Tenant, TenantsAdmin),
    (Pool, PoolAdmin),
    (Calendar, CalendarAdmin),
    (Secret, SecretAdmin),
    (ApiKey, ApiKeyAdmin),
    (Membership, MembershipAdmin),
    (Declaration, DeclarationAdmin),
    (RunRequest, RunRequestAdmin),
    (Stop, StopAdmin),
    (PlannedChange, PlannedChangeAdmin),
    (AuditEntry, AuditOfTenants),
):
    admin.site.register(model, model_admin)
admin.site.unregister(User)
admin.site.register(User, UsersAdmin)
admin.site.unregister(Group)  # rights come from memberships
