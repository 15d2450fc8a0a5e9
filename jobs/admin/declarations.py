"""Jobs and runs that code declares or requests over the database, in the admin, read only."""

from django.utils.safestring import SafeString

from jobs.admin.base import LongListAdmin, ReadOnlyAdmin, related
from jobs.admin.columns import column, json_column, moment_column
from jobs.admin.html import BAD, GOOD, WARNING, label
from jobs.models import Declaration, RunRequest


def state_label(row: Declaration | RunRequest, applied: str) -> SafeString:
    if row.error:
        return label("refused", BAD)
    return label(applied, GOOD) if row.applied_at else label("waiting", WARNING)


class DeclarationAdmin(ReadOnlyAdmin):
    list_display = ("name", "tenant", "pool", "state", "declared", "error")
    list_filter = related("tenant", "pool")
    search_fields = ("name",)
    list_select_related = ("tenant", "pool")
    ordering = ("-declared_at",)
    more_fields = ("spec_column",)

    spec_column = json_column("spec", "declared as")
    state = column("state", lambda declaration: state_label(declaration, "applied"))
    declared = moment_column("declared_at")


class RunRequestAdmin(LongListAdmin):
    list_display = ("key", "tenant", "pool", "job", "requested", "planned", "state", "error")
    list_filter = related("tenant", "job")
    list_select_related = ("tenant", "pool", "job")
    ordering = ("-requested_at",)
    more_fields = ("run", "spec_column")

    spec_column = json_column("spec", "request")
    state = column("state", lambda request: state_label(request, "created"))
    requested = moment_column("requested_at")
    planned = moment_column("at", "planned")
