from django.urls import path

from runs.api import explain_views, queue_views, views

urlpatterns = [
    path("jobs/<str:job_id>/explain", explain_views.ExplainJob.as_view()),
    path("jobs/<str:job_id>/run", views.RunJob.as_view()),
    path("jobs/<str:job_id>/runs", views.RunsOfJob.as_view()),
    path("queues", queue_views.Queues.as_view()),
    path("runs", views.Runs.as_view()),
    path("runs/<str:run_id>", views.OneRun.as_view()),
    path("runs/<str:run_id>/attempts", views.Attempts.as_view()),
    path("runs/<str:run_id>/cancel", views.CancelRun.as_view()),
    path("runs/<str:run_id>/retry", views.RetryRun.as_view()),
    path("runs/<str:run_id>/log", views.RunLog.as_view()),
]
