"""The first page of the admin: is it healthy, what is late, why is this not running. In the doctor's own words."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from django.contrib import admin
from django.db import connection, transaction
from django.db.models import Count, Min, QuerySet, Sum
from django.db.utils import DatabaseError
from django.http import HttpRequest

from jobs import stops
from jobs.database_clock import database_now
from jobs.display import brief, moment
from jobs.models import JOB_SLICES, Job, JobStatus, Stop
from jobs.staff import WARNING, is_superuser, label, link, list_of, own_tenants, page_of, sentence
from runs import slices
from runs.dead_letters import MOST_COUNTED, open_letters
from runs.models import DeadLetter, Lane, LiveRun, Run, SchedulerNode, WorkerNode
from runs.run_lists import window_of
from runs.run_page import state_label, state_of
from runs.scheduler_admin import condition_label, skew_in_words, slowest_pass
from runs.states import FinalState, LiveState
from scheduler_project import broker_watch
from scheduler_project.doctor import broker, schedulers, work
from scheduler_project.doctor.findings import Level, counted
from scheduler_project.doctor.work import LATE_SECONDS, living_workers, overdue

# A figure that takes longer is left out: the page must answer when the database is in trouble.
SLOWEST_FIGURE = "2s"
LISTED = 8
CHECKS = (
    schedulers.alive,
    schedulers.coverage,
    schedulers.loops,
    schedulers.clocks,
    schedulers.behind,
    work.due_jobs,
    work.waiting_runs,
    work.queued_runs,
    work.workers,
    work.unrunnable_jobs,
    work.declarations,
    broker.names_of_pools,
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
        "problems": seen.problems(),
        "schedulers": bounded(seen.schedulers) or [],
        "stops": bounded(seen.in_force) or [],
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
        platform = [self.workers, self.coverage] if self.everything else []
        own = [self.running, self.waiting, self.held_back, self.dead_today, self.dead_letters, self.late]
        return [*own, *platform]

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

    def dead_letters(self) -> Figure:
        count = open_letters(None if self.everything else own_tenants(self.request))
        shown = f"{count:,} or more" if count >= MOST_COUNTED else f"{count:,}"
        more = "dead runs to decide" if count else "nothing to decide"
        return Figure("Dead letters", shown, more, list_of(DeadLetter), "bad" if count else "good")

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

    def coverage(self) -> Figure:
        """Not as they tell it themselves, but as the locks are."""
        covered = JOB_SLICES - len(schedulers.uncovered(slices.JOBS, range(JOB_SLICES)))
        alive = len(schedulers.held(slices.JOBS + slices.MEMBER))
        oldest = max((database_now() - at for at in schedulers.watermarks().values()), default=timedelta(0))
        more = f"{covered} of {JOB_SLICES} slices, {brief(oldest)} behind"
        tone = "good" if alive and covered == JOB_SLICES else "bad"
        return Figure("Schedulers alive", f"{alive:,}", more, list_of(SchedulerNode), tone)

    def schedulers(self) -> list[dict[str, Any]]:
        """Who schedules what; those that left cleanly are in the list."""
        if not self.everything:
            return []
        now = database_now()
        nodes = SchedulerNode.objects.filter(left_at=None).order_by("-last_seen_at")
        return [
            {
                "name": link(page_of(node), node),
                "state": condition_label(node, now),
                "slices": counted(node.job_slices, "slice"),
                "pools": counted(node.pools, "pool"),
                "rescues": "rescues" if node.rescues else "",
                "slowest": f"passes up to {slowest_pass(node)}",
                "clock": f"clock {skew_in_words(node.skew_ms)}",
            }
            for node in nodes[:LISTED]
        ]

    def dead(self) -> "QuerySet[Run]":
        first, beyond = window_of("24h", self.now)
        return self.own(Run.objects.filter(pk__gte=first, pk__lt=beyond, state=FinalState.DEAD))

    def late_clocks(self) -> "QuerySet[Job]":
        due = self.now - timedelta(seconds=LATE_SECONDS)
        return self.own(Job.objects.present().filter(clock__next_run_at__lt=due))

    def in_force(self) -> list[dict[str, Any]]:
        """In force, of everybody, a tenant, a pool or a tag, as far as they concern those one may see."""
        seen: QuerySet[Any] = admin.site.get_model_admin(Stop).get_queryset(self.request)
        found = seen.filter(stops.in_state(stops.IN_FORCE, self.now)).select_related("tenant", "pool")
        return [
            {
                "what": link(page_of(stop), f"{sentence(stop.kind)} of {stops.in_words(stop)}"),
                "since": moment(stop.begins_at),
                "until": moment(stop.ends_at) if stop.ends_at else "",
                "by": stop.maker,
                "note": stop.note,
            }
            for stop in found.order_by("-begins_at")[:LISTED]
        ]

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
            return bounded(self.own_problems) or []
        found = [finding for check in CHECKS for finding in bounded(lambda c=check: list(c())) or []]  # type: ignore[misc]
        # In no transaction, which would stand open while brokers are waited for.
        found += broker_watch.findings()
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
