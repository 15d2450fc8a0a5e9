"""What happened and is happening."""

from runs.models.lane import JobGate, Lane
from runs.models.missed import MissedSpan, SpanState
from runs.models.node import NodeState, SchedulerNode, WorkerNode
from runs.models.run import Attempt, AttemptOutcome, Ending, ErrorClass, LiveRun, Run

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "Ending",
    "ErrorClass",
    "JobGate",
    "Lane",
    "LiveRun",
    "MissedSpan",
    "NodeState",
    "Run",
    "SchedulerNode",
    "SpanState",
    "WorkerNode",
]
