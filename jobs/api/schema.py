"""Jobs in OpenAPI."""

from typing import Any

from jobs.api.operations import (
    DURATION,
    IDEMPOTENCY_KEY,
    INSTANT,
    MAYBE_INSTANT,
    PAGING,
    PROBLEM,
    Decorator,
    number,
    obj,
    operation,
    page_of,
    query,
    ref,
    text,
)
from jobs.models import JobStatus, Overlap
from jobs.specs import BACKOFFS, CATCH_UP_POLICIES
from jobs.targets import METHODS

STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
ANYTHING: dict[str, Any] = {}

TARGET = {
    "oneOf": [ref("CeleryTarget"), ref("HttpTarget"), ref("CommandTarget")],
    "discriminator": {
        "propertyName": "kind",
        "mapping": {
            "celery": "#/components/schemas/CeleryTarget",
            "http": "#/components/schemas/HttpTarget",
            "command": "#/components/schemas/CommandTarget",
        },
    },
}
SCHEDULE = {
    "oneOf": [
        obj(
            {
                "cron": text("Five fields, or six with seconds first; names, L, #, H, @daily."),
                "timezone": text("Of the IANA database.", default="UTC"),
                "start": INSTANT,
                "end": INSTANT,
            },
            required=("cron",),
        ),
        obj({"every": DURATION, "start": INSTANT, "end": INSTANT}, required=("every",)),
        obj({"at": INSTANT}, required=("at",)),
    ],
    "nullable": True,
    "description": "Null: only on demand.",
}
SPEC_PROPERTIES = {
    "name": text("Once in a tenant.", maxLength=120),
    "description": text(maxLength=4000),
    "target": ref("Target"),
    "schedule": ref("Schedule"),
    "priority": number(
        "Higher goes first; a run that waits gains on those behind it.", minimum=0, maximum=1000, default=500
    ),
    "pool": text("The workers that run it.", default="default"),
    "timeout": {**DURATION, "description": "1 second to 30 days.", "default": "PT1H"},
    "overlap": text(
        "When a time comes while a run is unfinished.", enum=list(Overlap.values), default=Overlap.SKIP.value
    ),
    "catch_up": obj(
        {"policy": text(enum=list(CATCH_UP_POLICIES), default="last"), "window": DURATION},
        description="What becomes of times nobody could trigger.",
    ),
    "retry": obj(
        {
            "max_attempts": number(minimum=1, maximum=100, default=4),
            "backoff": text(enum=list(BACKOFFS), default="exponential"),
            "base": DURATION,
            "cap": DURATION,
        }
    ),
    "max_concurrency": number("Runs at once.", minimum=1, maximum=10_000, nullable=True),
    "tags": STRINGS,
}
COMPONENTS = {
    "Problem": PROBLEM,
    "Target": TARGET,
    "CeleryTarget": obj(
        {
            "kind": text(enum=["celery"]),
            "task": text("One of those the pool exports."),
            "args": {"type": "array", "items": ANYTHING},
            "kwargs": {"type": "object"},
        },
        required=("kind", "task"),
    ),
    "HttpTarget": obj(
        {
            "kind": text(enum=["http"]),
            "method": text(enum=list(METHODS)),
            "url": text(format="uri"),
            "headers": STRINGS,
            "body": {"description": "Any JSON.", "nullable": True},
            "expect": {"type": "array", "items": number(minimum=200, maximum=599)},
        },
        required=("kind", "url"),
    ),
    "CommandTarget": obj(
        {
            "kind": text(enum=["command"]),
            "argv": {"type": "array", "items": text(), "minItems": 1},
            "env": STRINGS,
        },
        required=("kind", "argv"),
    ),
    "Schedule": SCHEDULE,
    "JobSpec": obj(SPEC_PROPERTIES, required=("name", "target"), additionalProperties=False),
    "JobChanges": obj(
        SPEC_PROPERTIES,
        additionalProperties=False,
        description="What shall change; nested values are replaced whole.",
    ),
    "Job": obj(
        {
            "id": text(format="uuid"),
            **SPEC_PROPERTIES,
            "status": text(enum=list(JobStatus.values)),
            "status_note": text(),
            "status_at": INSTANT,
            "version": number(),
            "schedule_in_words": text(),
            "next_run_at": MAYBE_INSTANT,
            "estimated_start_at": {**MAYBE_INSTANT, "description": "In the answer to a creation."},
            "created_at": INSTANT,
            "updated_at": INSTANT,
            "links": obj({"self": text(), "runs": text(), "preview": text()}),
        }
    ),
    "Preview": obj(
        {"schedule_in_words": text(), "now": INSTANT, "times": {"type": "array", "items": INSTANT}},
        required=("schedule_in_words", "now", "times"),
    ),
    "Reason": obj({"reason": text("Kept in the audit trail.", maxLength=500)}, additionalProperties=False),
}
NUMBER_OF_TIMES = query("n", "How many, 1 to 100.", int, default=10)

list_of_jobs = operation(
    "list_jobs",
    "Jobs, newest first",
    tag="jobs",
    gives=page_of("Job"),
    errors=(400,),
    parameters=(
        query("tag", "`key:value`; several must all match.", many=True),
        query("status", "The status.", enum=list(JobStatus.values)),
        query("pool", "The pool."),
        query("q", "Part of the name."),
        *PAGING,
    ),
)
create_job = operation(
    "create_job",
    "Create a job",
    tag="jobs",
    takes=ref("JobSpec"),
    gives=ref("Job"),
    status=201,
    errors=(400, 409, 422),
    parameters=(IDEMPOTENCY_KEY,),
)
read_job = operation("read_job", "Read a job", tag="jobs", gives=ref("Job"), errors=(404,))
edit_job = operation(
    "edit_job",
    "Change a job",
    tag="jobs",
    takes=ref("JobChanges"),
    gives=ref("Job"),
    errors=(400, 404, 409),
    about="What is due by now is triggered under the old schedule first; the new one plans from now on.",
)
delete_job = operation(
    "delete_job",
    "Delete a job",
    tag="jobs",
    status=204,
    errors=(404,),
    about="Unfinished runs are cancelled; the runs stay readable and the name is free again.",
)
preview_job = operation(
    "preview_job",
    "The next planned times",
    tag="jobs",
    gives=ref("Preview"),
    errors=(400, 404),
    parameters=(NUMBER_OF_TIMES,),
)
preview_schedule = operation(
    "preview_schedule",
    "The planned times of a schedule nobody has saved",
    tag="schedules",
    takes=obj(
        {"schedule": ref("Schedule"), "n": number(minimum=1, maximum=100, default=10)}, required=("schedule",)
    ),
    gives=ref("Preview"),
    errors=(400,),
)


def job_action(name: str, summary: str, about: str) -> Decorator:
    return operation(
        f"{name}_job",
        summary,
        tag="jobs",
        takes=ref("Reason"),
        gives=ref("Job"),
        errors=(400, 404, 409),
        about=f"{about} Doing it twice changes nothing the second time.",
    )


pause_job = job_action("pause", "Pause a job", "It has no planned times until it is resumed.")
resume_job = job_action("resume", "Resume a job", "It goes on with the first time after now.")
cancel_job = job_action("cancel", "Cancel a job", "For good; its unfinished runs are cancelled.")
