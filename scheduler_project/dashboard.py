"""The first page of the admin: is it healthy, what is late, why is this not running. In the doctor's own words."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Count, Min, QuerySet, Sum
from django.db.utils import DatabaseError
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.display import brief, moment
from jobs.models import ApiKey, Declaration, Job, JobStatus, JobVersion, Membership, Pool, Role, Tenant
from jobs.staff import WARNING, is_superuser, label, link, list_of, may_act, own_tenants, page_of
from runs.models import Attempt, Lane, LiveRun, MissedSpan, Run, WorkerNode
from runs.run_lists import window_of
from runs.run_page import state_label, state_of
from runs.states import FinalState, LiveState
from scheduler_project.doctor import schedulers, work
from scheduler_project.doctor.findings import Level
from scheduler_project.doctor.work import LATE_SECONDS, living_workers, overdue

# A figure that takes longer is left out: the page must answer when the database is in trouble.
SLOWEST_FIGURE = "2s"
LISTED = 8
CHECKS = (
    schedulers.alive,
    schedulers.coverage,
    work.due_jobs,
    work.waiting_runs,
    work.queued_runs,
    work.workers,
    work.unrunnable_jobs,
    work.declarations,
)


@dataclass(frozen=True)
class Figure:
    name: str
    value: str
    more: str = ""
    url: str = ""
    tone: str = ""


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    seen = Seen(request)
    return {
        **context,
        "title": "What is going on",
        "figures": [figure for make in seen.figures() if (figure := bounded(make))],
        "problems": bounded(seen.problems) or [],
        "late": bounded(seen.late_jobs) or [],
        "lanes": bounded(seen.stopped_lanes) or [],
        "dead": bounded(seen.newest_dead) or [],
        "now": f"{datetime.now(timezone.utc):%H:%M:%S} UTC",
    }


def bounded(make: Callable[[], Any]) -> Any:
    """None when the database cannot say it in time."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [SLOWEST_FIGURE])
            return make()
    except DatabaseError:
        return None


class Seen:
    """The platform as this member of staff sees it."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.everything = is_superuser(request)
        self.now = datetime.now(timezone.utc)

    def own(self, rows: "QuerySet[Any]") -> "QuerySet[Any]":
        return rows if self.everything else rows.filter(tenant__in=own_tenants(self.request))

    def figures(self) -> list[Callable[[], Figure]]:
        platform = [self.workers] if self.everything else []
        return [self.running, self.waiting, self.held_back, self.dead_today, self.late, *platform]

    def live(self) -> "QuerySet[LiveRun]":
        return self.own(LiveRun.objects.all())

    def running(self) -> Figure:
        count = self.live().filter(state__in=(LiveState.RUNNING, LiveState.WAITING_CALLBACK)).count()
        return Figure(
            "Running now",
            f"{count:,}",
            url=list_of(LiveRun, state__exact="running"),
            tone="good" if count else "",
        )

    def waiting(self) -> Figure:
        waiting = self.live().filter(state__in=(LiveState.READY, LiveState.QUEUED))
        found = waiting.aggregate(count=Count("pk"), oldest=Min("available_at"))
        more = f"the oldest for {brief(self.now - found['oldest'])}" if found["oldest"] else "nothing waits"
        return Figure(
            "Waiting for a worker", f"{found['count']:,}", more, list_of(LiveRun, state__exact="queued")
        )

    def held_back(self) -> Figure:
        states = (LiveState.DELAYED, LiveState.BLOCKED)
        counts = dict(self.live().filter(state__in=states).values_list("state").annotate(Count("pk")))
        delayed, blocked = counts.get(LiveState.DELAYED, 0), counts.get(LiveState.BLOCKED, 0)
        return Figure(
            "Waiting for a retry",
            f"{delayed:,}",
            f"{blocked:,} blocked",
            list_of(LiveRun, state__exact="delayed"),
        )

    def dead_today(self) -> Figure:
        count = self.dead().count()
        url = list_of(Run, state="dead", window="24h")
        return Figure("Dead in 24 hours", f"{count:,}", url=url, tone="bad" if count else "good")

    def late(self) -> Figure:
        count = overdue()[0] if self.everything else self.late_clocks().count()
        return Figure("Late jobs", f"{count:,}", "due and not fired", tone="bad" if count else "good")

    def workers(self) -> Figure:
        found = living_workers().aggregate(
            count=Count("pk"), slots=Sum("slots", default=0), busy=Sum("busy", default=0)
        )
        more = f"{found['busy']:,} of {found['slots']:,} slots busy"
        tone = "good" if found["count"] else "bad"
        return Figure(
            "Workers alive", f"{found['count']:,}", more, list_of(WorkerNode, state__exact="active"), tone
        )

    def dead(self) -> "QuerySet[Run]":
        first, beyond = window_of("24h", self.now)
        return self.own(Run.objects.filter(pk__gte=first, pk__lt=beyond, state=FinalState.DEAD))

    def late_clocks(self) -> "QuerySet[Job]":
        due = self.now - timedelta(seconds=LATE_SECONDS)
        return self.own(Job.objects.present().filter(clock__next_run_at__lt=due))

    def late_jobs(self) -> list[dict[str, Any]]:
        late = self.late_clocks().select_related("tenant", "clock").order_by("clock__next_run_at")
        return [
            {"job": link(page_of(job), job), "tenant": job.tenant, "since": moment(job.clock.next_run_at)}
            for job in late[:LISTED]
        ]

    def stopped_lanes(self) -> list[dict[str, Any]]:
        lanes = self.own(Lane.objects.exclude(reason="")).select_related("pool", "tenant")
        return [
            {"lane": f"{lane.tenant} in {lane.pool}", "reason": label(lane.reason, WARNING)}
            for lane in lanes[:LISTED]
        ]

    def newest_dead(self) -> list[dict[str, Any]]:
        runs = self.dead().order_by("-pk").prefetch_related("job", "tenant")
        return [
            {
                "run": link(page_of(run), f"{run.planned_at:%H:%M:%S}"),
                "job": link(page_of(run.job), run.job),
                "tenant": run.tenant,
                "state": state_label(state_of(run)),
                "error": run.error_line,
            }
            for run in runs[:LISTED]
        ]

    def problems(self) -> list[dict[str, str]]:
        """Of the whole platform for its operators; members read what concerns their own jobs."""
        if not self.everything:
            return self.own_problems()
        found = [finding for check in CHECKS for finding in bounded(lambda c=check: list(c())) or []]  # type: ignore[misc]
        return [{"what": one.what, "do": one.do} for one in found if one.level == Level.PROBLEM]

    def own_problems(self) -> list[dict[str, str]]:
        parked = self.own(Job.objects.present().filter(status=JobStatus.UNRUNNABLE))
        return [
            {
                "what": f"{job} is unrunnable: {job.status_note}",
                "do": "correct what the note names, then resume it",
            }
            for job in parked[:LISTED]
        ]


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    groups: list[tuple[str, list[tuple[str, str, Any]]]] = [
        ("", [("Dashboard", "monitoring", None)]),
        (
            "Work",
            [
                ("Jobs", "schedule", Job),
                ("Runs", "history", Run),
                ("Unfinished runs", "pending_actions", LiveRun),
            ],
        ),
        (
            "Details",
            [
                ("Attempts", "replay", Attempt),
                ("Missed times", "event_busy", MissedSpan),
                ("Versions of jobs", "difference", JobVersion),
                ("Declared in code", "code", Declaration),
            ],
        ),
        (
            "Platform",
            [("Workers", "memory", WorkerNode), ("Lanes", "swap_horiz", Lane), ("Pools", "hub", Pool)],
        ),
        (
            "Access",
            [
                ("Tenants", "groups", Tenant),
                ("API keys", "key", ApiKey),
                ("Memberships", "badge", Membership),
                *([("Users", "person", User)] if is_superuser(request) else []),
                ("Audit trail", "policy", AuditEntry),
            ],
        ),
    ]
    if not may_act(request, None, Role.VIEWER):
        groups = groups[:1]
    return [
        {"title": title, "items": [item(request, *entry) for entry in entries]} for title, entries in groups
    ]


def item(request: HttpRequest, title: str, icon: str, model: Any) -> dict[str, Any]:
    url = list_of(model) if model else reverse("admin:index")
    active = request.path == url if model is None else request.path.startswith(url)
    return {"title": title, "icon": icon, "link": url, "active": active}


def stylesheet(request: HttpRequest) -> str:
    return static("jobs/admin.css")


def favicon(request: HttpRequest) -> str:
    return static("jobs/favicon.svg")
