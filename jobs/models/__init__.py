"""What should run and when. Nothing here knows of runs."""

from .access import ApiKey, Membership, Pool, Role, Tenant, slug_validator
from .imported import ImportedTask
from .job import (
    DEFAULT_PRIORITY,
    JOB_SLICES,
    Declaration,
    IdempotentRequest,
    Job,
    JobClock,
    JobStatus,
    JobVersion,
    Overlap,
    RunRequest,
)
from .secrets import Secret
from .time import Calendar, Effect, PlannedChange, Stop, StopKind

__all__ = [
    "DEFAULT_PRIORITY",
    "JOB_SLICES",
    "ApiKey",
    "Calendar",
    "Declaration",
    "Effect",
    "IdempotentRequest",
    "ImportedTask",
    "Job",
    "JobClock",
    "JobStatus",
    "JobVersion",
    "Membership",
    "Overlap",
    "PlannedChange",
    "Pool",
    "Role",
    "RunRequest",
    "Secret",
    "Stop",
    "StopKind",
    "Tenant",
    "slug_validator",
]
