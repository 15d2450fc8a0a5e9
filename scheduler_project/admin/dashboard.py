"""The dashboard of the admin: the doctor's problems, active suspensions, figures, late jobs and dead runs."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

from django.contrib import admin
from django.db import connection, transaction
from django.db.models import Count, Min, QuerySet, Sum
from django.db.utils import DatabaseError
from django.http import HttpRequest
from django.utils.html import format_html

from jobs.admin.formatting import brief, moment
from jobs.admin.html import WARNING, label, link, list_of, page_of, sentence
from jobs.admin.permissions import is_superuser, own_tenants
from jobs.clock import database_now
from jobs.models import JOB_SLICES, Job, JobStatus, Suspension
from jobs.models.suspensions import SuspensionState
from runs import history
from runs.admin import dead_letter_dialogs
from runs.admin.list_filters import window_of
from runs.admin.schedulers import condition_label, describe_skew, slowest_pass
from runs.models import DeadLetter, LiveRun, Queue, Run, SchedulerNode, WorkerNode
from runs.reasons import NOT_HELD, describe
from runs.scheduler.partitions import lock_session as slices
from runs.services.dead_letters import count_open
from runs.states import FinalState, LiveState
from scheduler_project import doctor
from scheduler_project.admin import broker_status
from scheduler_project.doctor import runs as run_checks
from scheduler_project.doctor import schedulers
from scheduler_project.doctor.findings import Level, counted

# A slower figure is left out: the page must answer when the database is in trouble.
MAX_QUERY_TIME = "2s"
LISTED = 8
# The cells of a row.
Row = tuple[object, ...]
CHECKS = [named.check for named in doctor.CHECKS if named.on_dashboard]


class Figure(NamedTuple):
    name: str
    value: str
    more: str = ""
    url: str = ""
    is_bad: bool = False


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    platform = VisiblePlatform(request)
    return {
        **context,
        "title": "Dashboard",
        "figures": [figure for make in platform.figures() if (figure := bounded(make))],
        "problems": platform.problems(),
        "schedulers": bounded(platform.schedulers) or [],
        "suspensions": bounded(platform.suspensions) or [],
        "late": bounded(platform.late_jobs) or [],
        "queues": bounded(platform.blocked_queues) or [],
        "dead": bounded(platform.newest_dead) or [],
        "now": f"{datetime.now(timezone.utc):%H:%M:%S} UTC",
    }


def bounded(make: Callable[[], Any]) -> Any:
    """Return the result, or None if the database does not answer in time."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [MAX_QUERY_TIME])
            return make()
    except DatabaseError:
        return None


class VisiblePlatform:
    """The part of the platform that a user may see."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.is_operator = is_superuser(request)
        self.now = datetime.now(timezone.utc)

    def own(self, rows: "QuerySet[Any]") -> "QuerySet[Any]":
        return rows if self.is_operator else rows.filter(tenant__in=own_tenants(self.request))

    def figures(self) -> list[Callable[[], Figure]]:
        own = [self.running, self.waiting, self.held_back, self.dead_today, self.dead_letters, self.late]
        return [*own, self.workers, self.coverage] if self.is_operator else own

    def live(self) -> "QuerySet[LiveRun]":
        return self.own(LiveRun.objects.all())

    def running(self) -> Figure:
        count = self.live().filter(state__in=(LiveState.RUNNING, LiveState.WAITING_CALLBACK)).count()
        return Figure("Running now", f"{count:,}", url=list_of(LiveRun, state__exact="running"))

    def waiting(self) -> Figure:
        waiting = self.live().filter(state__in=(LiveState.READY, LiveState.QUEUED))
        found = waiting.aggregate(count=Count("pk"), oldest=Min("available_at"))
        more = f"the oldest for {brief(self.now - found['oldest'])}" if found["oldest"] else "none waits"
        url = list_of(LiveRun, state__exact="queued")
        return Figure("Waiting for a worker", f"{found['count']:,}", more, url)

    def held_back(self) -> Figure:
        states = (LiveState.DELAYED, LiveState.BLOCKED)
        counts = dict(self.live().filter(state__in=states).values_list("state").annotate(Count("pk")))
        delayed, blocked = counts.get(LiveState.DELAYED, 0), counts.get(LiveState.BLOCKED, 0)
        url = list_of(LiveRun, state__exact="delayed")
        return Figure("Waiting for a retry", f"{delayed:,}", f"{blocked:,} blocked", url)

    def dead_today(self) -> Figure:
        count = self.dead().count()
        url = list_of(Run, state="dead", window="24h")
        return Figure("Dead in 24 hours", f"{count:,}", url=url, is_bad=count > 0)

    def dead_letters(self) -> Figure:
        count = count_open(None if self.is_operator else own_tenants(self.request))
        value = dead_letter_dialogs.counted(count)
        more = "to redrive or dismiss" if count else "none to decide"
        return Figure("Dead letters", value, more, list_of(DeadLetter), is_bad=count > 0)

    def late(self) -> Figure:
        count = run_checks.overdue()[0] if self.is_operator else self.late_clocks().count()
        return Figure("Late jobs", f"{count:,}", "due and not triggered", is_bad=count > 0)

    def workers(self) -> Figure:
        total = {"slots": Sum("slots", default=0), "busy": Sum("busy", default=0)}
        found = WorkerNode.objects.living().aggregate(count=Count("pk"), **total)
        more = f"{found['busy']:,} of {found['slots']:,} slots busy"
        url = list_of(WorkerNode, state__exact="active")
        return Figure("Workers alive", f"{found['count']:,}", more, url, is_bad=not found["count"])

    def coverage(self) -> Figure:
        """Count schedulers and slices by their session locks, not by their own reports."""
        covered = JOB_SLICES - len(schedulers.uncovered(slices.JOBS, range(JOB_SLICES)))
        alive = schedulers.count_alive()
        oldest = max((database_now() - at for at in schedulers.watermarks().values()), default=timedelta(0))
        more = f"{covered} of {JOB_SLICES} slices, {brief(oldest)} behind"
        is_bad = not alive or covered < JOB_SLICES
        return Figure("Schedulers alive", f"{alive:,}", more, list_of(SchedulerNode), is_bad)

    def schedulers(self) -> list[Row]:
        """Return the schedulers that have not left, for operators."""
        if not self.is_operator:
            return []
        now = database_now()
        nodes = SchedulerNode.objects.filter(left_at=None).order_by("-last_seen_at")
        return [
            (
                link(page_of(node), node),
                condition_label(node, now),
                counted(node.job_slices, "slice"),
                counted(node.pools, "pool"),
                "recovery" if node.runs_recovery else "",
                f"passes up to {slowest_pass(node)}",
                f"clock {describe_skew(node.skew_ms)}",
            )
            for node in nodes[:LISTED]
        ]

    def dead(self) -> "QuerySet[Run]":
        first, beyond = window_of("24h", self.now)
        return self.own(history.runs().in_states([FinalState.DEAD]).filter(pk__gte=first, pk__lt=beyond))

    def late_clocks(self) -> "QuerySet[Job]":
        due = self.now - timedelta(seconds=run_checks.LATE_SECONDS)
        return self.own(Job.objects.present().filter(clock__next_run_at__lt=due))

    def suspensions(self) -> list[dict[str, Any]]:
        """Return the active suspensions that concern what the user may see."""
        seen: Any = admin.site.get_model_admin(Suspension).get_queryset(self.request)
        found = seen.in_state(SuspensionState.IN_FORCE, self.now).select_related("tenant", "pool")
        return [
            {
                "what": link(page_of(suspension), f"{sentence(suspension.kind)} of {suspension.describe()}"),
                "since": moment(suspension.begins_at),
                "until": moment(suspension.ends_at) if suspension.ends_at else "",
                "by": suspension.maker,
                "reason": suspension.reason,
            }
            for suspension in found.order_by("-begins_at")[:LISTED]
        ]

    def late_jobs(self) -> list[Row]:
        late = self.late_clocks().select_related("tenant", "clock").order_by("clock__next_run_at")
        return [(link(page_of(job), job), job.tenant, moment(job.clock.next_run_at)) for job in late[:LISTED]]

    def blocked_queues(self) -> list[Row]:
        queues = self.own(Queue.objects.exclude(reason__in=NOT_HELD)).select_related("pool", "tenant")
        return [
            (f"{queue.tenant} in {queue.pool}", label(describe(queue.reason), WARNING))
            for queue in queues[:LISTED]
        ]

    def newest_dead(self) -> list[Row]:
        runs = self.dead().order_by("-pk").prefetch_related("job", "tenant")
        return [
            (
                link(page_of(run), f"{run.planned_at:%H:%M:%S}"),
                link(page_of(run.job), run.job),
                run.tenant,
                # The column may cut it off.
                format_html('<span title="{0}">{0}</span>', run.error_line),
            )
            for run in runs[:LISTED]
        ]

    def problems(self) -> list[dict[str, str]]:
        """Return the problems of the platform for operators, those of their own jobs for members."""
        if not self.is_operator:
            return bounded(self.own_problems) or []
        found = [finding for check in CHECKS for finding in bounded(partial(list, check())) or []]
        # Outside of a transaction, which would stay open while the page waits for brokers.
        found += broker_status.status.findings()
        return [{"what": one.what, "do": one.do} for one in found if one.level == Level.PROBLEM]

    def own_problems(self) -> list[dict[str, str]]:
        unrunnable = self.own(Job.objects.present().filter(status=JobStatus.UNRUNNABLE))
        do = "correct what the reason names, then resume it"
        return [
            {"what": f"{job} is unrunnable: {job.status_reason}", "do": do} for job in unrunnable[:LISTED]
        ]
