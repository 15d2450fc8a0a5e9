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
from jobs.catch_up_spec import CATCH_UP_ORDERS, CATCH_UP_POLICIES, DEFAULT_MAKING_UP, MOST_MADE_UP
from jobs.command_target import LIMITS
from jobs.http_target import METHODS, MOST_REDIRECTS
from jobs.models import JobStatus, Overlap
from jobs.schedules.on_calendar import EXCLUDE, ON_CLOSED
from jobs.specs import OVERLAP_IN_WORDS
from scheduler_project.sdk.retries import BACKOFFS, JITTERS, NAMED_CLASSES

ERROR_NAMES = {
    "type": "array",
    "items": text(maxLength=200),
    "maxItems": 50,
    "description": "ValueError, payments.errors.CardDeclined, HTTP 404, HTTP 5xx, exit 3: what the worker names so, or "
    "a class derived from it. The most specific name wins.",
}
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
KEPT = {
    "calendar": obj(
        {
            "name": text("Of a calendar of yours."),
            "on_closed": text(
                "`exclude`: a closed time is left out. `next`, `previous`: it is moved, at the same time on the "
                "clock, to the next (previous) day on which that is open; what falls together is one. An interval "
                "can only exclude.",
                enum=list(ON_CLOSED),
                default=EXCLUDE,
            ),
        },
        required=("name",),
    ),
    "jitter": {
        **DURATION,
        "description": "The flexible window: each run begins so much after its planned time at most, and before the "
        "next one. By how much follows from the job and the planned time. Up to a day.",
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
                **KEPT,
            },
            required=("cron",),
        ),
        obj({"every": DURATION, "start": INSTANT, "end": INSTANT, **KEPT}, required=("every",)),
        obj({"at": INSTANT, **KEPT}, required=("at",)),
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
        "When a time comes while an earlier planned run is unfinished, also between its tries. "
        + ". ".join(f"`{policy}`: {words}" for policy, words in OVERLAP_IN_WORDS.items())
        + ". Manual runs and retries count for nothing here.",
        enum=list(Overlap.values),
        default=Overlap.SKIP.value,
    ),
    "catch_up": obj(
        {
            "policy": text(
                "`last`: the last of them runs. `skip`: none. `all`: every one.",
                enum=list(CATCH_UP_POLICIES),
                default="last",
            ),
            "window": {**DURATION, "description": "Older ones are only noted.", "default": "P1D"},
            "max": number(
                "Of `all`: at most so many for one gap.",
                minimum=1,
                maximum=MOST_MADE_UP,
                default=DEFAULT_MAKING_UP["max"],
            ),
            "per_minute": number(
                "Of `all`: the pace.",
                minimum=1,
                maximum=MOST_MADE_UP,
                default=DEFAULT_MAKING_UP["per_minute"],
            ),
            "order": text(
                "Of `all`: which go first.", enum=list(CATCH_UP_ORDERS), default=DEFAULT_MAKING_UP["order"]
            ),
        },
        description="What becomes of times nobody could trigger.",
    ),
    "retry": obj(
        {
            "max_attempts": number(minimum=1, maximum=100, default=4),
            "backoff": text(enum=list(BACKOFFS), default="exponential"),
            "base": DURATION,
            "cap": DURATION,
            "jitter": text(
                "Full: a random delay up to the back-off; none: the back-off itself.",
                enum=list(JITTERS),
                default="full",
            ),
            "max_losses": number(
                "After so many lost workers the run is dead; they take nothing from its attempts. Unless given: the "
                "platform's number, or 1 of a job with one attempt.",
                minimum=1,
                maximum=100,
            ),
            **dict.fromkeys(NAMED_CLASSES, ERROR_NAMES),
        },
        description="What becomes of a failed attempt. A delay that the target asks for goes before the back-off.",
    ),
    "breaker": obj(
        {
            "failures": number("So many in a row, over all runs of the job.", minimum=1, maximum=1000),
            "cooldown": {**DURATION, "default": "PT5M"},
        },
        required=("failures",),
        nullable=True,
        description="After so many failed attempts in a row the job's runs are held; after the cool-down one tries.",
    ),
    "max_concurrency": number("Runs at once.", minimum=1, maximum=10_000, nullable=True),
    "tags": STRINGS,
}
MISSED_SO_FAR = {
    "allOf": [ref("Missed")],
    "nullable": True,
    "description": "Read alone, while it is paused: what resuming it now would find and do.",
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
            "timeout": {
                **DURATION,
                "description": "Of the call with its redirects; the run's own still holds.",
            },
            "redirects": number(
                "How many are followed. Another host gets neither the job's headers nor its signature nor a body.",
                minimum=0,
                maximum=MOST_REDIRECTS,
                default=0,
            ),
            "sign": obj(
                {
                    "secret": text(
                        "Name of the secret that holds the key; two keys, a line each, while it rotates."
                    )
                },
                required=("secret",),
                description="Adds the header Beatkeeper-Signature.",
            ),
            "callback": obj(
                {"timeout": {**DURATION, "description": "How long the outcome may take. Up to 30 days."}},
                required=("timeout",),
                description="An answer 202 means that the outcome follows by `POST …/runs/{id}/complete`.",
            ),
        },
        required=("kind", "url"),
    ),
    "CommandTarget": obj(
        {
            "kind": text(enum=["command"]),
            "argv": {"type": "array", "items": text(), "minItems": 1},
            "env": STRINGS,
            "limits": obj(
                {name: number(minimum=1, maximum=most) for name, most in LIMITS.items()},
                description="What it may use up; the platform's own maxima hold besides.",
            ),
            "network": {"type": "boolean", "description": "False: it reaches no network at all."},
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
            "paused_until": {**MAYBE_INSTANT, "description": "It goes on by itself then."},
            "missed_so_far": MISSED_SO_FAR,
            "version": number(),
            "warnings": {
                "type": "array",
                "items": text(),
                "description": "In the answer to one job: what was accepted, and will not do much as things are.",
            },
            "schedule_in_words": text(),
            "next_run_at": MAYBE_INSTANT,
            "estimated_start_at": {**MAYBE_INSTANT, "description": "In the answer to a creation."},
            "created_at": INSTANT,
            "updated_at": INSTANT,
            "links": obj({name: text() for name in ("self", "runs", "preview", "times", "explain")}),
        }
    ),
    "Preview": obj(
        {"schedule_in_words": text(), "now": INSTANT, "times": {"type": "array", "items": INSTANT}},
        required=("schedule_in_words", "now", "times"),
    ),
    "Missed": obj(
        {
            "count": number("Planned times without a run."),
            "exact": {"type": "boolean", "description": "False: there are more than were counted."},
            "from": {**INSTANT, "description": "The first of them."},
            "to": {**INSTANT, "description": "The last of them."},
            "policy": text("What decides about them.", enum=list(CATCH_UP_POLICIES)),
            "runs": number("How many runs it makes for them."),
        }
    ),
    "Pausing": obj(
        {
            "reason": text("Kept in the audit trail, and shown with the status.", maxLength=500),
            "until": {**MAYBE_INSTANT, "description": "It goes on by itself then."},
        },
        additionalProperties=False,
    ),
    "Resuming": obj(
        {
            "reason": text("Kept in the audit trail.", maxLength=500),
            "catch_up": text(
                "For this once instead of the job's own.", enum=list(CATCH_UP_POLICIES), nullable=True
            ),
        },
        additionalProperties=False,
    ),
    "ResumedJob": {
        "allOf": [
            ref("Job"),
            obj({"missed": {"allOf": [ref("Missed")], "nullable": True, "description": "Null: nothing."}}),
        ]
    },
    "Reason": obj({"reason": text("Kept in the audit trail.", maxLength=500)}, additionalProperties=False),
}

HELD_BY = ("breaker",)
list_of_jobs = operation(
    "list_jobs",
    "Jobs, newest first",
    tag="jobs",
    gives=page_of("Job"),
    errors=(400,),
    parameters=(
        query("tag", "`key:value`; several must all match.", many=True),
        query("status", "The status.", enum=list(JobStatus.values)),
        query(
            "held_by",
            "What holds their runs now: the breaker of the job, open or half open.",
            enum=list(HELD_BY),
        ),
        query("pool", "The pool."),
        query("calendar", "The name of the calendar they plan by."),
        query("secret", "The name of a secret their targets refer to."),
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


def job_action(
    name: str, summary: str, about: str, *, takes: str = "Reason", gives: str = "Job"
) -> Decorator:
    return operation(
        f"{name}_job",
        summary,
        tag="jobs",
        takes=ref(takes),
        gives=ref(gives),
        errors=(400, 404, 409),
        about=f"{about} Doing it twice changes nothing the second time.",
    )


pause_job = job_action(
    "pause", "Pause a job", "It has no planned times until it is resumed, or `until`.", takes="Pausing"
)
resume_job = job_action(
    "resume",
    "Resume a job",
    "It goes on with the first time after now; its catch-up policy decides about what it missed.",
    takes="Resuming",
    gives="ResumedJob",
)
cancel_job = job_action("cancel", "Cancel a job", "For good; its unfinished runs are cancelled.")
