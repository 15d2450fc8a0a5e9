"""Declared jobs in OpenAPI."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter

from jobs.api.operations import Decorator, obj, operation, query, ref, text

NAMES = {"type": "array", "items": text(maxLength=120)}
OBJECT: dict[str, Any] = {"type": "object"}
FLAG = {"type": "boolean"}
COMPONENTS = {
    "Declared": obj(
        {
            "name": text(),
            "pool": text(),
            "source": text("The code base, by the name of its Celery app."),
            "spec": {**OBJECT, "description": "As it was declared."},
            "applied": {
                **OBJECT,
                "nullable": True,
                "description": "What the job was when this had been applied.",
            },
            "present": {
                **OBJECT,
                "nullable": True,
                "description": "What the job is now. Of one in another pool a worker's key sees only that it is.",
            },
            "status": text("The job's."),
            "error": text("Why it was refused."),
            "waiting": {**FLAG, "description": "To be applied by a scheduler."},
            "withdrawn": {**FLAG, "description": "Its code base has taken it back; the job is cancelled."},
            "edited_by": text("Who wrote the job's present version."),
        }
    ),
    "DeclaredList": obj({"results": {"type": "array", "items": ref("Declared")}}, required=("results",)),
    "Declarations": obj(
        {
            "pool": text("Left out with a worker's key: its own."),
            "declarations": {
                "type": "array",
                "items": ref("JobSpec"),
                "description": "With `source` beside.",
            },
            "again": {**NAMES, "description": "Of these: put back what was edited by hand."},
            "withdraw": {**NAMES, "description": "No longer declared: their jobs are cancelled."},
        },
        additionalProperties=False,
    ),
}


def _operations(of_worker: str, about_pool: str, parameters: tuple[OpenApiParameter, ...]) -> list[Decorator]:
    return [
        operation(
            f"list_declarations{of_worker}",
            "Declared jobs of a pool",
            tag="declarations",
            gives=ref("DeclaredList"),
            errors=(400,),
            parameters=parameters,
            about=about_pool,
        ),
        operation(
            f"declare{of_worker}_jobs",
            "Declare jobs",
            tag="declarations",
            takes=ref("Declarations"),
            gives=ref("DeclaredList"),
            errors=(400,),
            about="What a code base declares becomes jobs by the same rules as `POST /jobs`; a job that is refused "
            f"keeps the reason as its `error`, and the others are made. {about_pool}",
        ),
    ]


list_declarations, declare = _operations("", "", (query("pool", "One that is open to you.", required=True),))
list_declarations_of_worker, declare_of_worker = _operations(
    "_of_worker", "For a worker's key, of its own pool.", (query("pool", "The key's own, if it is named."),)
)
