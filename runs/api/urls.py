"""Route the addresses of runs, queues, workers and dead letters to their views."""

from django.urls import path

from runs.api.breakers import Breakers
from runs.api.completion import CompleteRun
from runs.api.dead_letter_decisions import Decisions
from runs.api.dead_letters import DeadGroup, DeadGroups
from runs.api.explain import ExplainJob, ExplainRun
from runs.api.logs import Attempts, RunLog
from runs.api.missed_spans import MissedSpans
from runs.api.pools import Pools
from runs.api.queues import Queues
from runs.api.redrives import Redrives
from runs.api.run_requests import RunRequests, WorkerRunRequests
from runs.api.runs import Runs, RunsOfJob
from runs.api.worker_protocol import FinishedLog, OpenLog, WorkerProtocol
from runs.api.workers import Workers

urlpatterns = [
    path("jobs/<str:job_id>/explain", ExplainJob.as_view()),
    path("jobs/<str:job_id>/breaker", Breakers.as_view({"get": "retrieve"})),
    path("jobs/<str:job_id>/breaker/close", Breakers.as_view({"post": "close"})),
    path("jobs/<str:job_id>/missed", MissedSpans.as_view()),
    path("jobs/<str:job_id>/run", RunsOfJob.as_view({"post": "start"})),
    path("jobs/<str:job_id>/runs", RunsOfJob.as_view({"get": "list"})),
    path("dead-letters", DeadGroups.as_view()),
    path("dead-letters/redrive", Decisions.as_view({"post": "redrive"})),
    path("dead-letters/dismiss", Decisions.as_view({"post": "dismiss"})),
    path("dead-letters/<str:fingerprint>", DeadGroup.as_view()),
    path("dead-letters/<str:fingerprint>/redrive", Redrives.as_view({"post": "start"})),
    path("dead-letters/<str:fingerprint>/dismiss", Decisions.as_view({"post": "dismiss_group"})),
    path("redrives", Redrives.as_view({"get": "list"})),
    path("redrives/<str:redrive_id>", Redrives.as_view({"get": "retrieve"})),
    path("redrives/<str:redrive_id>/stop", Redrives.as_view({"post": "stop"})),
    path("pools", Pools.as_view()),
    path("queues", Queues.as_view()),
    path("workers", Workers.as_view()),
    path("run-requests", RunRequests.as_view({"post": "create"})),
    path("run-requests/<str:request_id>", RunRequests.as_view({"get": "retrieve"})),
    path("run-requests/<str:request_id>/cancel", RunRequests.as_view({"post": "cancel"})),
    path("worker/run-requests", WorkerRunRequests.as_view({"post": "create"})),
    path("worker/run-requests/<str:request_id>", WorkerRunRequests.as_view({"get": "retrieve"})),
    path("worker/run-requests/<str:request_id>/cancel", WorkerRunRequests.as_view({"post": "cancel"})),
    path("runs", Runs.as_view({"get": "list"})),
    path("runs/<str:run_id>", Runs.as_view({"get": "retrieve"})),
    path("runs/<str:run_id>/attempts", Attempts.as_view()),
    path("runs/<str:run_id>/cancel", Runs.as_view({"post": "cancel"})),
    path("runs/<str:run_id>/explain", ExplainRun.as_view()),
    path("runs/<str:run_id>/complete", CompleteRun.as_view()),
    path("runs/<str:run_id>/retry", Runs.as_view({"post": "retry"})),
    path("runs/<str:run_id>/log", RunLog.as_view()),
    path("worker/register", WorkerProtocol.as_view({"post": "register"})),
    path("worker/heartbeat", WorkerProtocol.as_view({"post": "heartbeat"})),
    path("worker/claim", WorkerProtocol.as_view({"post": "claim"})),
    path("worker/report", WorkerProtocol.as_view({"post": "report"})),
    path("worker/leave", WorkerProtocol.as_view({"post": "leave"})),
    path("worker/declare", WorkerProtocol.as_view({"post": "declare"})),
    path("worker/declaration-errors", WorkerProtocol.as_view({"post": "declaration_errors"})),
    path("worker/logs/<str:run_id>/<str:claim_seq>", FinishedLog.as_view({"put": "keep"})),
    path("worker/logs/<str:run_id>/<str:claim_seq>/lines", OpenLog.as_view({"post": "append"})),
]
