"""The list of dead letters: groups by error, the runs of one error, or the decided ones."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter

from jobs.admin.html import list_of
from jobs.admin.permissions import is_superuser, own_tenants
from runs.models import DeadLetter, DeadLetterDecision, Redrive, RedriveState
from runs.services import dead_letters
from runs.services.dead_letters import Group


class DecisionFilter(DropdownFilter):  # type: ignore[misc]
    title = "decision"
    parameter_name = "decision"
    all_option = None

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("open", "open"), ("redriven", "redriven"), ("dismissed", "dismissed")]

    def value(self) -> str:
        chosen = super().value()
        return chosen if chosen in (DeadLetterDecision.REDRIVEN, DeadLetterDecision.DISMISSED) else "open"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(decision="" if self.value() == "open" else self.value())


def complete_groups(request: HttpRequest, letters: list[Any]) -> None:
    """Add its group to the latest dead letter of each."""
    found = groups_of(request)
    jobs = dead_letters.jobs_of(list(found.values()))
    under_way = Redrive.objects.filter(state=RedriveState.WORKING)
    running = {(redrive.tenant_id, redrive.fingerprint): redrive for redrive in under_way}
    for letter in letters:
        letter.group = found.get(letter.pk)
        named = letter.group.jobs if letter.group else ()
        letter.group_jobs = [jobs[job] for job in named if job in jobs]
        letter.under_way = running.get((letter.tenant_id, letter.fingerprint))


def error_of(request: HttpRequest) -> str:
    letters = DeadLetter.objects.filter(fingerprint=request.GET.get("fingerprint__exact", ""))
    if not is_superuser(request):
        letters = letters.filter(tenant__in=own_tenants(request))
    tenant = request.GET.get("tenant__id__exact", "")
    letter = letters.filter(tenant=int(tenant)).first() if tenant.isdecimal() and len(tenant) < 10 else None
    return f"{letter.error_type}: {letter.error_line}"[:200] if letter else ""


def is_list(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and str(match.url_name).endswith("deadletter_changelist")


def is_grouped(request: HttpRequest) -> bool:
    """Check whether the list shows groups: no error, job or decision is chosen."""
    return not {"fingerprint__exact", "fingerprint", "job__id__exact", "decision"} & set(request.GET)


def is_decided(request: HttpRequest) -> bool:
    return request.GET.get("decision") in (DeadLetterDecision.REDRIVEN, DeadLetterDecision.DISMISSED)


def groups_of(request: HttpRequest) -> dict[UUID, Group]:
    """Return the groups by their latest dead letter, read once per request."""
    found: dict[UUID, Group] | None = getattr(request, "_dead_groups", None)
    if found is None:
        tenants = None if is_superuser(request) else own_tenants(request)
        found = {group.newest: group for group in dead_letters.groups(tenants)}
        request._dead_groups = found  # type: ignore[attr-defined]
    return found


def group_page(about: DeadLetter | Redrive) -> str:
    return list_of(DeadLetter, tenant__id__exact=about.tenant_id, fingerprint__exact=about.fingerprint)
