from django.urls import path

from jobs.api import calendar_views, declaration_views, secret_views, stop_views, time_views, views

urlpatterns = [
    path("jobs", views.Jobs.as_view()),
    path("jobs/<str:job_id>", views.OneJob.as_view()),
    path("jobs/<str:job_id>/pause", views.PauseJob.as_view()),
    path("jobs/<str:job_id>/resume", views.ResumeJob.as_view()),
    path("jobs/<str:job_id>/cancel", views.CancelJob.as_view()),
    path("jobs/<str:job_id>/preview", time_views.JobPreview.as_view()),
    path("jobs/<str:job_id>/times", time_views.Times.as_view()),
    path("jobs/<str:job_id>/times/<str:change_id>", time_views.OneTime.as_view()),
    path("pauses", stop_views.Pauses.as_view()),
    path("pauses/<str:stop_id>", stop_views.OnePause.as_view()),
    path("pauses/<str:stop_id>/lift", stop_views.LiftPause.as_view()),
    path("blackouts", stop_views.Blackouts.as_view()),
    path("blackouts/<str:stop_id>", stop_views.OneBlackout.as_view()),
    path("blackouts/<str:stop_id>/lift", stop_views.LiftBlackout.as_view()),
    path("calendars", calendar_views.Calendars.as_view()),
    path("calendars/<str:name>", calendar_views.OneCalendar.as_view()),
    path("secrets", secret_views.Secrets.as_view()),
    path("secrets/<str:name>", secret_views.OneSecret.as_view()),
    path("declarations", declaration_views.Declarations.as_view()),
    path("worker/declarations", declaration_views.DeclarationsOfWorker.as_view()),
    path("schedules/preview", views.SchedulePreview.as_view()),
]
