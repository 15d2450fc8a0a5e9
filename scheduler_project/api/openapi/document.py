"""Complete the OpenAPI document that drf-spectacular makes of the views: its last hook."""

from typing import Any

from jobs.api.job_status import COMPONENTS as JOB_STATUS
from jobs.api.jobs import COMPONENTS as JOBS
from jobs.api.schedules import COMPONENTS as SCHEDULES
from runs.api.completion import COMPONENTS as COMPLETION
from runs.api.wire_schema import COMPONENTS as WORKER
from scheduler_project.api.openapi import components, examples, operations

CALLBACK_KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "The token of one call, `bkc_…`, which its target got as Beatkeeper-Callback-Token.",
}


def complete(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add to the document whatever follows from it, so that no view needs to say it."""
    given = result.setdefault("components", {})
    given.setdefault("schemas", {}).update({**JOBS, **JOB_STATUS, **SCHEDULES, **COMPLETION, **WORKER})
    given.setdefault("securitySchemes", {})["callback"] = CALLBACK_KEY
    # 3.1 says of a reference too that null is allowed.
    result["openapi"] = "3.1.0"
    result["servers"] = [{"url": "/"}]
    components.name_objects(result)
    components.separate_answers(result, lenient=WORKER)
    components.replace_nullable(result)
    operations.describe(result)
    examples.add(result)
    return result
