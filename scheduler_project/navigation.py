"""The side bar of the admin, and what every page of it loads."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Model
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.models import (
    ApiKey,
    Calendar,
    Declaration,
    Job,
    JobVersion,
    Membership,
    Pool,
    Role,
    RunRequest,
    Secret,
    Stop,
    Tenant,
)
from jobs.staff import is_superuser, list_of, may_act
from runs.models import (
    Attempt,
    CeleryFiring,
    DeadLetter,
    Lane,
    LiveRun,
    MissedSpan,
    Redrive,
    Run,
    SchedulerNode,
    WorkerNode,
)

# Title, icon and page; no page stands for the dashboard.
Entry = tuple[str, str, Any]
OF_ALL: list[tuple[str, list[Entry]]] = [
    (
        "Work",
        [
            ("Jobs", "schedule", Job),
            ("Runs", "history", Run),
            ("Unfinished runs", "pending_actions", LiveRun),
            ("Dead letters", "local_post_office", DeadLetter),
            ("Pauses and blackouts", "pause_circle", Stop),
        ],
    ),
    (
        "Details",
        [
            ("Attempts", "replay", Attempt),
            ("Redrives", "forward", Redrive),
            ("Missed times", "event_busy", MissedSpan),
            ("Versions of jobs", "difference", JobVersion),
            ("Declared in code", "code", Declaration),
            ("Runs asked for in code", "play_circle", RunRequest),
            ("Calendars", "calendar_month", Calendar),
        ],
    ),
    (
        "Platform",
        [
            ("Schedulers", "timer", SchedulerNode),
            ("Celery beat firings", "electric_bolt", CeleryFiring),
            ("Workers", "memory", WorkerNode),
            ("Lanes", "swap_horiz", Lane),
            ("Pools", "hub", Pool),
        ],
    ),
    (
        "Access",
        [
            ("Tenants", "groups", Tenant),
            ("API keys", "key", ApiKey),
            ("Secrets", "lock", Secret),
            ("Memberships", "badge", Membership),
            ("Users", "person", User),
            ("Audit trail", "policy", AuditEntry),
        ],
    ),
]
OF_OPERATORS = (SchedulerNode, CeleryFiring, User)


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    groups: list[tuple[str, list[Entry]]] = [("", [("Dashboard", "monitoring", None)])]
    if may_act(request, None, Role.VIEWER):
        groups += OF_ALL
    hidden: set[type[Model]] = set() if is_superuser(request) else set(OF_OPERATORS)
    if not settings.CELERY_BEAT_URL:
        hidden.add(CeleryFiring)
    return [
        {"title": title, "items": [item(request, *entry) for entry in entries if entry[2] not in hidden]}
        for title, entries in groups
    ]


def item(request: HttpRequest, title: str, icon: str, model: Any) -> dict[str, Any]:
    url = list_of(model) if model else reverse("admin:index")
    active = request.path == url if model is None else request.path.startswith(url)
    return {"title": title, "icon": icon, "link": url, "active": active}


def stylesheet(request: HttpRequest) -> str:
    return static("jobs/admin.css")


def favicon(request: HttpRequest) -> str:
    return static("jobs/favicon.svg")
