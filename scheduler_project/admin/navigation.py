"""The side bar of the admin."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs import models as jobs
from jobs.admin.html import list_of
from jobs.admin.permissions import is_superuser, may_act
from jobs.models import Role
from runs import models as runs

# Title, icon and model; None is the dashboard.
Entry = tuple[str, str, Any]
GROUPS: dict[str, list[Entry]] = {
    "Work": [
        ("Jobs", "schedule", jobs.Job),
        ("Runs", "history", runs.Run),
        ("Unfinished runs", "pending_actions", runs.LiveRun),
        ("Dead letters", "local_post_office", runs.DeadLetter),
        ("Suspensions", "pause_circle", jobs.Suspension),
    ],
    "Details": [
        ("Attempts", "replay", runs.Attempt),
        ("Redrives", "forward", runs.Redrive),
        ("Missed times", "event_busy", runs.MissedSpan),
        ("Job versions", "difference", jobs.JobVersion),
        ("Declared jobs", "code", jobs.Declaration),
        ("Requested runs", "play_circle", jobs.RunRequest),
        ("Calendars", "calendar_month", jobs.Calendar),
    ],
    "Platform": [
        ("Schedulers", "timer", runs.SchedulerNode),
        ("Celery beat firings", "electric_bolt", runs.CeleryFiring),
        ("Workers", "memory", runs.WorkerNode),
        ("Queues", "swap_horiz", runs.Queue),
        ("Pools", "hub", jobs.Pool),
    ],
    "Access": [
        ("Tenants", "groups", jobs.Tenant),
        ("API keys", "key", jobs.ApiKey),
        ("Secrets", "lock", jobs.Secret),
        ("Memberships", "badge", jobs.Membership),
        ("Users", "person", User),
        ("Audit trail", "policy", AuditEntry),
    ],
}
OPERATORS_ONLY = (runs.SchedulerNode, runs.CeleryFiring, User)


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    groups: dict[str, list[Entry]] = {"": [("Dashboard", "monitoring", None)]}
    if may_act(request, None, Role.VIEWER):
        groups |= GROUPS
    hidden: set[type[Model]] = set() if is_superuser(request) else set(OPERATORS_ONLY)
    if not settings.CELERY_BEAT_URL:
        hidden.add(runs.CeleryFiring)
    return [
        {"title": title, "items": [item(request, *entry) for entry in entries if entry[2] not in hidden]}
        for title, entries in groups.items()
    ]


def item(request: HttpRequest, title: str, icon: str, model: Any) -> dict[str, Any]:
    url = list_of(model) if model else reverse("admin:index")
    active = request.path == url if model is None else request.path.startswith(url)
    return {"title": title, "icon": icon, "link": url, "active": active}
