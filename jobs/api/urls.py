"""Route the addresses of jobs, suspensions, calendars, secrets and declarations to their views."""

from django.urls import path

from jobs.api import (
    calendars,
    declarations,
    job_status,
    jobs,
    me,
    overrides,
    schedules,
    secrets,
    suspensions,
    versions,
)
from jobs.models import SuspensionKind

urlpatterns = [
    path("me", me.Me.as_view()),
    path("jobs", jobs.Jobs.as_view()),
    path("jobs/<str:job_id>", jobs.OneJob.as_view()),
    path("jobs/<str:job_id>/pause", job_status.PauseJob.as_view()),
    path("jobs/<str:job_id>/resume", job_status.ResumeJob.as_view()),
    path("jobs/<str:job_id>/cancel", job_status.CancelJob.as_view()),
    path("jobs/<str:job_id>/preview", schedules.JobPreview.as_view()),
    path("jobs/<str:job_id>/versions", versions.Versions.as_view()),
    path("jobs/<str:job_id>/versions/<str:number>", versions.OneVersion.as_view()),
    path("jobs/<str:job_id>/times", overrides.Overrides.as_view()),
    path("jobs/<str:job_id>/times/<str:override_id>", overrides.OneOverride.as_view()),
    *suspensions.urls(
        SuspensionKind.PAUSE,
        "Pause jobs",
        "Nothing of them is handed over; what runs goes on. With `ends_at` they go on by themselves.",
    ),
    *suspensions.urls(
        SuspensionKind.BLACKOUT,
        "Black out a time",
        "What is planned in it is skipped, held or made up for.",
    ),
    path("calendars", calendars.Calendars.as_view()),
    path("calendars/<str:name>", calendars.OneCalendar.as_view()),
    path("secrets", secrets.Secrets.as_view()),
    path("secrets/<str:name>", secrets.OneSecret.as_view()),
    path("declarations", declarations.Declarations.as_view()),
    path("worker/declarations", declarations.WorkerDeclarations.as_view()),
    path("schedules/preview", schedules.SchedulePreview.as_view()),
]
