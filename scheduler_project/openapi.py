"""Puts the named schemas of both apps into the OpenAPI document."""

from typing import Any

from jobs.api.calendar_schema import COMPONENTS as CALENDARS
from jobs.api.declaration_schema import COMPONENTS as DECLARATIONS
from jobs.api.schema import COMPONENTS as JOBS
from jobs.api.secret_schema import COMPONENTS as SECRETS
from jobs.api.stop_schema import COMPONENTS as STOPS
from jobs.api.time_schema import COMPONENTS as TIMES
from runs.api.breaker_views import COMPONENTS as BREAKERS
from runs.api.dead_letter_schema import COMPONENTS as DEAD_LETTERS
from runs.api.explain_views import COMPONENTS as EXPLAIN
from runs.api.request_schema import COMPONENTS as REQUESTS
from runs.api.schema import COMPONENTS as RUNS
from runs.api.worker_schema import COMPONENTS as WORKER


def add_components(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(
        {
            **JOBS,
            **CALENDARS,
            **DECLARATIONS,
            **BREAKERS,
            **DEAD_LETTERS,
            **REQUESTS,
            **SECRETS,
            **STOPS,
            **TIMES,
            **EXPLAIN,
            **RUNS,
            **WORKER,
        }
    )
    return result
