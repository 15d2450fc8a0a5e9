"""What happened and is happening."""

from runs.models.breaker import Breaker, BreakerState, RetryBudget
from runs.models.celery_firing import CeleryFiring
from runs.models.dead_letter import DeadLetter, Decision, Redrive, RedriveState
from runs.models.lane import JobGate, Lane
from runs.models.missed import MissedSpan, SpanState
from runs.models.node import NodeState, SchedulerNode, WorkerNode
from runs.models.run import Attempt, AttemptOutcome, Ending, ErrorClass, LiveRun, Run

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "Breaker",
    "BreakerState",
    "CeleryFiring",
    "DeadLetter",
    "Decision",
    "Ending",
    "ErrorClass",
    "JobGate",
    "Lane",
    "LiveRun",
    "MissedSpan",
    "NodeState",
    "Redrive",
    "RedriveState",
    "RetryBudget",
    "Run",
    "SchedulerNode",
    "SpanState",
    "WorkerNode",
]
