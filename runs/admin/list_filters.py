"""Filters of the lists of runs, which read a window of ids page by page and never count."""

from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.contrib.filters.admin import DropdownFilter

from jobs.admin.html import page_of
from runs.history import ended_as
from runs.models import NodeState, Run, WorkerNode
from runs.states import FinalState, LiveState
from scheduler_project.sdk.ids import id_range

# Ids follow planned times; a window also holds those a little ahead of this machine's clock.
AHEAD = timedelta(minutes=5)
WINDOWS = {
    "1h": ("Last hour", timedelta(hours=1)),
    "24h": ("Last 24 hours", timedelta(hours=24)),
    "7d": ("Last 7 days", timedelta(days=7)),
    "30d": ("Last 30 days", timedelta(days=30)),
}
DEFAULT_WINDOW = "24h"
WORKERS_LISTED = 200


def window_of(name: str | None, now: datetime | None = None) -> tuple[UUID, UUID]:
    now = now or datetime.now(timezone.utc)
    length = WINDOWS.get(name or DEFAULT_WINDOW, WINDOWS[DEFAULT_WINDOW])[1]
    return id_range(now - length, now + AHEAD)


class WindowFilter(DropdownFilter):  # type: ignore[misc]
    """Limit the list to a window, always: without a range of ids every partition would be read."""

    title = "time"
    parameter_name = "window"
    all_option = None

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(name, text) for name, (text, _) in WINDOWS.items()]

    def value(self) -> str:
        chosen = super().value()
        return chosen if chosen in WINDOWS else DEFAULT_WINDOW

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if as_uuid(request.GET.get("q", "")):
            return queryset
        first, beyond = window_of(self.value())
        return queryset.filter(pk__gte=first, pk__lt=beyond)


class RunStateFilter(DropdownFilter):  # type: ignore[misc]
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        states = ("unfinished", *LiveState.values, *FinalState.values)
        return [(state, state.replace("_", " ")) for state in states]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if chosen == "unfinished":
            return queryset.filter(state=None)
        if chosen in FinalState.values:
            return queryset.filter(ended_as([chosen]))
        return queryset.filter(state=None, live__state=chosen) if chosen in LiveState.values else queryset


class WorkerFilter(DropdownFilter):  # type: ignore[misc]
    """List the runs that a worker has claimed. A lost worker is listed only while it is chosen."""

    title = "running on"
    parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        seen = workers_seen(request)
        living = seen.filter(state__in=(NodeState.ACTIVE, NodeState.DRAINING)).order_by("name", "pk")
        listed = {str(node.pk): node.name for node in living[:WORKERS_LISTED]}
        if (chosen := as_uuid(request.GET.get(self.parameter_name, ""))) and str(chosen) not in listed:
            listed[str(chosen)] = str(seen.filter(pk=chosen).first() or chosen)
        return list(listed.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        chosen = as_uuid(self.value())
        return queryset.filter(worker=chosen, state=LiveState.RUNNING) if chosen else queryset.none()


def workers_seen(request: HttpRequest) -> Any:
    return admin.site.get_model_admin(WorkerNode).get_queryset(request)


def chips(request: HttpRequest) -> list[list[dict[str, Any]]]:
    """Return the filters by time and state as rows of links."""
    windows = [(name, text) for name, (text, _) in WINDOWS.items()]
    states = [("", "all states"), ("unfinished", "unfinished"), ("running", "running")]
    states += [(state.value, state.value) for state in FinalState]
    return [chip_row(request, "window", windows, DEFAULT_WINDOW), chip_row(request, "state", states, "")]


def chip_row(request: HttpRequest, name: str, choices: Any, default: str) -> list[dict[str, Any]]:
    chosen, row = request.GET.get(name, default), []
    for value, text in choices:
        query = request.GET.copy()
        query.pop("p", None)
        query[name] = value
        row.append({"text": text, "url": f"?{query.urlencode()}", "on": value == chosen})
    return row


def go_to_run(identity: str) -> HttpResponse:
    """Redirect rows without a page of their own to their run."""
    run = as_uuid(identity)
    if run is None:
        raise Http404
    return HttpResponseRedirect(page_of(Run(pk=run)))


def as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None
