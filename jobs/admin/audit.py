"""The audit trail as members see it: the entries of their tenants."""

from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest

from auditlog.admin import AuditEntryAdmin
from jobs.admin.base import LongListAdmin
from jobs.admin.columns import column
from jobs.admin.permissions import own_tenants
from jobs.models import Tenant


class TenantAuditAdmin(LongListAdmin, AuditEntryAdmin):
    list_display = ("when", "tenant", "actor_column", "action", "about", "changed", "reason")

    tenant = column("tenant", lambda entry: entry.tenant_slug)

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.filter(tenant_id__in=own_tenants(request))

    def get_queryset(self, request: HttpRequest) -> Any:
        slug = Tenant.objects.filter(pk=OuterRef("tenant_id")).values("slug")[:1]
        return super().get_queryset(request).annotate(tenant_slug=Subquery(slug))
