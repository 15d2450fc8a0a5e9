"""Puts the named schemas of both apps into the OpenAPI document."""

from typing import Any

from jobs.api.calendar_schema import COMPONENTS as CALENDARS
from jobs.api.schema import COMPONENTS as JOBS
from jobs.api.stop_schema import COMPONENTS as STOPS
from jobs.api.secret_schema import COMPONENTS as SECRETS
from jobs.api.time_schema import COMPONENTS as TIMES
from runs.api.explain_views import COMPONENTS as EXPLAIN
from runs.api.schema import COMPONENTS as RUNS


def add_components(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(
        {**JOBS, **CALENDARS, **DECLARATIONS, **REQUESTS, **SECRETS, **STOPS, **TIMES, **EXPLAIN, **RUNS}
    )
    return result
