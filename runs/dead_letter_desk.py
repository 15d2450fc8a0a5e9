"""What the list of the dead-letter desk shows: groups by error, the runs of one, or what was decided before."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter

from jobs.models import Role
from jobs.staff import UncountedList, is_superuser, list_of, may_act, own_tenants
from runs import dead_letters
from runs.dead_letters import Group
from runs.models import DeadLetter, Decision, Redrive, RedriveState


class DecisionFilter(DropdownFilter):  # type: ignore[misc]
    title = "decision"
    parameter_name = "decision"
    all_option = None

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("open", "open"), ("redriven", "redriven"), ("dismissed", "dismissed")]

    def value(self) -> str:
        chosen = super().value()
        return chosen if chosen in (Decision.REDRIVEN, Decision.DISMISSED) else "open"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(decision="" if self.value() == "open" else self.value())


class Desk(UncountedList):
    """By error as long as no error is chosen: a row for each group, its latest letter standing for it."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: list[Any] = list(self.result_list)
        for letter in self.result_list:
            letter.may_decide = may_act(request, letter.tenant_id, Role.OPERATOR)
        if not is_grouped(request):
            return
        found = groups_of(request)
        jobs = dead_letters.jobs_of(list(found.values()))
        under_way = Redrive.objects.filter(state=RedriveState.WORKING)
        running = {(redrive.tenant_id, redrive.fingerprint): redrive for redrive in under_way}
        for letter in self.result_list:
            letter.group = found.get(letter.pk)
            letter.group_jobs = (
                [jobs[job] for job in letter.group.jobs if job in jobs] if letter.group else []
            )
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
    """Until an error or a job is chosen."""
    return not {"fingerprint__exact", "fingerprint", "job__id__exact", "decision"} & set(request.GET)


def is_decided(request: HttpRequest) -> bool:
    return request.GET.get("decision") in (Decision.REDRIVEN, Decision.DISMISSED)


def groups_of(request: HttpRequest) -> dict[UUID, Group]:
    """By their latest letters; looked up once for a page."""
    found: dict[UUID, Group] | None = getattr(request, "_dead_groups", None)
    if found is None:
        tenants = None if is_superuser(request) else own_tenants(request)
        found = {group.newest: group for group in dead_letters.groups(tenants)}
        request._dead_groups = found  # type: ignore[attr-defined]
    return found


def letters_of(about: DeadLetter | Redrive) -> str:
    return list_of(DeadLetter, tenant__id__exact=about.tenant_id, fingerprint__exact=about.fingerprint)
