"""Models of runs, workers and schedulers, and of what is decided about runs."""

from runs.models.attempts import Attempt, AttemptOutcome
from runs.models.breakers import Breaker, BreakerState, RetryBudget
from runs.models.celery_firings import CeleryFiring
from runs.models.dead_letters import DeadLetter, DeadLetterDecision, Redrive, RedriveState
from runs.models.missed_spans import MissedSpan, SpanState
from runs.models.queues import JobGate, Queue
from runs.models.runs import Ending, ErrorClass, LiveRun, Run
from runs.models.schedulers import SchedulerNode
from runs.models.workers import NodeState, WorkerNode
