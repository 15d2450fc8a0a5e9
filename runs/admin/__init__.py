"""The admin of runs and of what is kept beside them, and the page of a job with its runs."""

from django.contrib import admin

from jobs.models import Job
from runs import models
from runs.admin.attempts import AttemptAdmin
from runs.admin.celery_firings import CeleryFiringAdmin
from runs.admin.dead_letters import DeadLetterAdmin
from runs.admin.jobs import JobWithRunsAdmin
from runs.admin.live_runs import LiveRunAdmin
from runs.admin.missed_spans import JobGateAdmin, MissedSpanAdmin
from runs.admin.queues import QueueAdmin
from runs.admin.redrives import RedriveAdmin
from runs.admin.runs import RunAdmin
from runs.admin.schedulers import SchedulerNodeAdmin
from runs.admin.workers import WorkerNodeAdmin

for model, model_admin in (
    (Job, JobWithRunsAdmin),
    (models.Run, RunAdmin),
    (models.LiveRun, LiveRunAdmin),
    (models.Attempt, AttemptAdmin),
    (models.MissedSpan, MissedSpanAdmin),
    (models.DeadLetter, DeadLetterAdmin),
    (models.Redrive, RedriveAdmin),
    (models.JobGate, JobGateAdmin),
    (models.Queue, QueueAdmin),
    (models.WorkerNode, WorkerNodeAdmin),
    (models.SchedulerNode, SchedulerNodeAdmin),
    (models.CeleryFiring, CeleryFiringAdmin),
):
    admin.site.register(model, model_admin)
admin.site.index_template = "admin/dashboard.html"
