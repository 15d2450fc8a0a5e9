"""Add the schemas that no serializer describes to the OpenAPI document."""

from typing import Any

from jobs.api.job_status import COMPONENTS as JOB_STATUS
from jobs.api.jobs import COMPONENTS as JOBS
from jobs.api.schedules import COMPONENTS as SCHEDULES
from runs.api.wire_schema import COMPONENTS as WORKER


def add_components(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas.update({**JOBS, **JOB_STATUS, **SCHEDULES, **WORKER})
    return result
