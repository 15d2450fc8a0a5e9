"""Which pages the admin has of runs, and of what is kept beside them."""

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from jobs.display import moment
from jobs.models import Job
from jobs.staff import LookOnly, OwnRelated
from jobs.uncounted_pages import Uncounted
from runs.celery_firing_admin import CeleryFiringAdmin
from runs.dead_letter_admin import DeadLetterAdmin
from runs.job_admin import JobWithRuns
from runs.lane_admin import LaneAdmin
from runs.models import (
    Attempt,
    CeleryFiring,
    DeadLetter,
    JobGate,
    Lane,
    LiveRun,
    MissedSpan,
    Redrive,
    Run,
    SchedulerNode,
    WorkerNode,
)
from runs.redrive_admin import RedriveAdmin
from runs.run_admin import AttemptAdmin, LiveRunAdmin, RunAdmin
from runs.scheduler_admin import SchedulerNodeAdmin
from runs.worker_admin import WorkerNodeAdmin


class MissedSpanAdmin(LookOnly):
    paginator = Uncounted
    list_display = ("from_time", "to_time", "job", "tenant", "reason", "policy", "state", "count")
    list_filter = (("tenant", OwnRelated), ("job", OwnRelated))
    list_select_related = ("job", "tenant")
    ordering = ("-id",)
    sortable_by = ()

    @admin.display(description="from")
    def from_time(self, span: MissedSpan) -> SafeString | str:
        return moment(span.from_at)

    @admin.display(description="until")
    def to_time(self, span: MissedSpan) -> SafeString | str:
        return moment(span.to_at)


class JobGateAdmin(LookOnly):
    tenant_path = "job__tenant"
    paginator = Uncounted
    list_display = ("job", "max_running")
    list_select_related = ("job",)
    ordering = ("pk",)

    def tenant_of(self, row: Any) -> int | None:
        return int(row.job.tenant_id)


admin.site.unregister(Job)
for model, model_admin in (
    (Job, JobWithRuns),
    (Run, RunAdmin),
    (LiveRun, LiveRunAdmin),
    (Attempt, AttemptAdmin),
    (MissedSpan, MissedSpanAdmin),
    (DeadLetter, DeadLetterAdmin),
    (Redrive, RedriveAdmin),
    (JobGate, JobGateAdmin),
    (Lane, LaneAdmin),
    (WorkerNode, WorkerNodeAdmin),
    (SchedulerNode, SchedulerNodeAdmin),
    (CeleryFiring, CeleryFiringAdmin),
):
    admin.site.register(model, model_admin)
admin.site.index_template = "runs/dashboard.html"
