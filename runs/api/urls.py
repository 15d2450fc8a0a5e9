from django.urls import path

from runs.api import breaker_views, explain_views, queue_views, request_views, views, worker_views

urlpatterns = [
    path("jobs/<str:job_id>/explain", explain_views.ExplainJob.as_view()),
    path("jobs/<str:job_id>/breaker", breaker_views.OneBreaker.as_view()),
    path("jobs/<str:job_id>/breaker/close", breaker_views.CloseBreaker.as_view()),
    path("jobs/<str:job_id>/run", views.RunJob.as_view()),
    path("jobs/<str:job_id>/runs", views.RunsOfJob.as_view()),
    path("queues", queue_views.Queues.as_view()),
    path("run-requests", request_views.RunRequests.as_view()),
    path("run-requests/<str:request_id>", request_views.OneRunRequest.as_view()),
    path("run-requests/<str:request_id>/cancel", request_views.CancelRunRequest.as_view()),
    path("worker/run-requests", request_views.RunRequestsOfWorker.as_view()),
    path("worker/run-requests/<str:request_id>", request_views.OneRunRequestOfWorker.as_view()),
    path("worker/run-requests/<str:request_id>/cancel", request_views.CancelRunRequestOfWorker.as_view()),
    path("runs", views.Runs.as_view()),
    path("runs/<str:run_id>", views.OneRun.as_view()),
    path("runs/<str:run_id>/attempts", views.Attempts.as_view()),
    path("runs/<str:run_id>/cancel", views.CancelRun.as_view()),
    path("runs/<str:run_id>/complete", views.CompleteRun.as_view()),
    path("runs/<str:run_id>/retry", views.RetryRun.as_view()),
    path("runs/<str:run_id>/log", views.RunLog.as_view()),
    path("worker/register", worker_views.Register.as_view()),
    path("worker/heartbeat", worker_views.Heartbeat.as_view()),
    path("worker/claim", worker_views.Claims.as_view()),
    path("worker/report", worker_views.Report.as_view()),
    path("worker/leave", worker_views.Leave.as_view()),
    path("worker/declare", worker_views.Declare.as_view()),
    path("worker/declaration-errors", worker_views.DeclarationErrors.as_view()),
    path("worker/logs/<str:run_id>/<str:claim_seq>", worker_views.FinishedLog.as_view()),
    path("worker/logs/<str:run_id>/<str:claim_seq>/lines", worker_views.OpenLog.as_view()),
]
