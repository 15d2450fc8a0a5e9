"""Runs in OpenAPI."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema

from jobs.api.operations import (
    IDEMPOTENCY_KEY,
    INSTANT,
    MAYBE_INSTANT,
    PAGING,
    REASONS,
    number,
    obj,
    operation,
    page_of,
    query,
    ref,
    text,
)
from runs.callbacks import CLASSES, OUTCOMES
from runs.models import AttemptOutcome, ErrorClass, NodeState
from runs.states import FinalState, LiveState, Trigger

STATES = [*LiveState.values, *FinalState.values]
ERROR = obj(
    {
        "class": text(enum=list(ErrorClass.values)),
        "type": text(),
        "line": text(),
        "fingerprint": text("The same for the same mistake."),
    },
    nullable=True,
)
COMPONENTS = {
    "Run": obj(
        {
            "id": text(format="uuid"),
            "job": text(format="uuid"),
            "job_name": text(),
            "version": number("Of the job: what the run executes."),
            "state": text(enum=STATES),
            "reason": text("Why it is held back, or why it ended so."),
            "reason_in_words": text("As a sentence; `reason` is what a program goes by."),
            "trigger": text(enum=list(Trigger.values)),
            "planned_at": INSTANT,
            "created_at": INSTANT,
            "queued_at": MAYBE_INSTANT,
            "started_at": MAYBE_INSTANT,
            "finished_at": MAYBE_INSTANT,
            "cancel_requested_at": MAYBE_INSTANT,
            "cancel_acknowledged_at": MAYBE_INSTANT,
            "callback_expires_at": {
                **MAYBE_INSTANT,
                "description": "Until then its target may tell the outcome.",
            },
            "next_attempt_at": MAYBE_INSTANT,
            "attempt": number("Tries so far."),
            "priority": number(),
            "input": {"type": "object", "nullable": True},
            "result": {"nullable": True, "description": "Any JSON."},
            "exit_code": number(nullable=True),
            "error": ERROR,
            "retry_of": text(format="uuid", nullable=True),
            "requested_by": text(),
            "links": obj(
                {"self": text(), "job": text(), "attempts": text(), "log": text(), "retry_of": text()}
            ),
        }
    ),
    "Attempt": obj(
        {
            "number": number(),
            "state": text(enum=["running", "waiting_callback", *AttemptOutcome.values]),
            "next_state": text("What the run became by it.", nullable=True),
            "worker": text(),
            "started_at": INSTANT,
            "finished_at": MAYBE_INSTANT,
            "exit_code": number(nullable=True),
            "error": ERROR,
            "links": obj({"log": text()}),
        }
    ),
    "Queue": obj(
        {
            "pool": text(),
            "reason": text("Why nothing goes there; empty: it goes."),
            "limits": obj(
                {
                    "max_running": number("Runs queued or running at once.", nullable=True),
                    "rate_limit": {"type": "number", "nullable": True, "description": "Runs a second."},
                    "daily_quota": number("Runs handed over on a day (UTC).", nullable=True),
                    "retry_budget": number("Retries let go a minute, over all pools.", nullable=True),
                }
            ),
            "weight": number("Of the pool's slots, a share by weight is yours."),
            "handed_over_today": number("Counted while there is a daily quota.", nullable=True),
        }
    ),
    "Worker": obj(
        {
            "id": text("Of this start of it.", format="uuid"),
            "name": text(),
            "pool": text(),
            "state": text(enum=list(NodeState.values)),
            "slots": number(),
            "busy": number("Slots with runs."),
            "foreign_busy": number("Slots with tasks of its own code base."),
            "known_targets": {
                "type": "array",
                "items": text(),
                "description": "Tasks by name, and kinds: `kind:http`.",
            },
            "host": text(),
            "region": text(),
            "version": text(),
            "started_at": INSTANT,
            "last_heartbeat_at": INSTANT,
            "lease_seconds": {"type": "number", "description": "Silent for longer, it is lost."},
            "clock_ahead_ms": {
                "type": "number",
                "nullable": True,
                "description": "How far its clock is ahead of the platform's.",
            },
        }
    ),
    "LogLine": obj({"at": INSTANT, "stream": text(), "level": text(), "text": text()}),
}
FILTERS = (
    query("job", "The job.", OpenApiTypes.UUID),
    query("state", "The state; several are alternatives.", enum=STATES, many=True),
    query("trigger", "What brought it about.", enum=list(Trigger.values)),
    query(
        "planned_after",
        "From this instant on; a run nobody planned counts at its creation.",
        OpenApiTypes.DATETIME,
    ),
    query("planned_before", "Before this instant.", OpenApiTypes.DATETIME),
    *PAGING,
)
INPUT = obj(
    {
        "input": {"type": "object", "nullable": True, "description": "For this run alone."},
        "reason": text(maxLength=500),
    },
    additionalProperties=False,
)

list_queues = operation(
    "list_queues",
    "Where your runs queue, pool by pool",
    tag="queues",
    gives=page_of("Queue"),
    errors=(400,),
    parameters=PAGING,
)
list_workers = operation(
    "list_workers",
    "Workers with your keys, and those of pools of your own, the latest started first",
    tag="workers",
    gives=page_of("Worker"),
    errors=(400,),
    parameters=(
        query("state", "The state; several are alternatives.", enum=list(NodeState.values), many=True),
        query("pool", "The pool."),
        *PAGING,
    ),
)
list_runs = operation(
    "list_runs", "Runs, newest first", tag="runs", gives=page_of("Run"), errors=(400,), parameters=FILTERS
)
list_runs_of_job = operation(
    "list_runs_of_job",
    "Runs of a job, newest first",
    tag="jobs",
    gives=page_of("Run"),
    errors=(400, 404),
    parameters=FILTERS[1:],
)
run_job = operation(
    "run_job",
    "Run a job now",
    tag="jobs",
    takes=INPUT,
    gives=ref("Run"),
    status=201,
    errors=(400, 404, 409, 422),
    parameters=(IDEMPOTENCY_KEY,),
)
read_run = operation("read_run", "Read a run", tag="runs", gives=ref("Run"), errors=(404,))
list_attempts = operation(
    "list_attempts",
    "Its attempts, oldest first",
    tag="runs",
    gives=obj({"results": {"type": "array", "items": ref("Attempt")}}),
    errors=(404,),
)
cancel_run = operation(
    "cancel_run",
    "Cancel a run",
    tag="runs",
    takes=ref("Reason"),
    gives=ref("Run"),
    errors=(400, 404, 409),
    about="One that no worker has ends at once; a running one is stopped by its worker.",
)
complete_run = operation(
    "complete_run",
    "Tell the outcome of a run",
    tag="runs",
    takes=obj(
        {
            "outcome": text(enum=list(OUTCOMES)),
            "result": {"nullable": True, "description": "Of a success: any JSON of at most 10,000 bytes."},
            "error": {
                "oneOf": [
                    text(),
                    obj({"class": text(enum=list(CLASSES)), "type": text(), "message": text()}),
                ],
                "nullable": True,
                "description": "Of a failure. The class and the type are what the job's retry policy goes by.",
            },
            "retry_after": {"type": "number", "nullable": True, "description": "Of a failure: seconds."},
        },
        required=("outcome",),
        additionalProperties=False,
    ),
    gives=obj({"run": text(format="uuid"), "attempt": number(), "state": text("What the run became by it.")}),
    errors=(400, 404, 409),
    about="For the target of a job with `callback` that has answered 202. It takes no key but the token of the call, "
    "`Authorization: Bearer <Beatkeeper-Callback-Token>`, which is good for that one attempt. Told again in the same "
    "words it is answered the same. A token that is not awaited is answered like a run that does not exist.",
)
retry_run = operation(
    "retry_run",
    "Retry a run",
    tag="runs",
    takes=ref("Reason"),
    gives=ref("Run"),
    status=201,
    errors=(400, 404, 409, 422),
    parameters=(IDEMPOTENCY_KEY,),
    about="A finished run stays as it is: the retry is a new run of the same version and input. A run that waits "
    "for its back-off goes now; then the answer is that run, with status 200.",
)
read_log = extend_schema(
    operation_id="read_log",
    summary="What it printed",
    tags=["runs"],
    parameters=[
        query("attempt", "The number of the attempt; the latest unless given.", int),
        OpenApiParameter("format", str, enum=["text", "jsonl"], default="text"),
    ],
    responses={
        (200, "text/plain"): OpenApiTypes.STR,
        (200, "application/x-ndjson"): ref("LogLine"),
        **{
            (code, "application/problem+json"): {**ref("Problem"), "description": REASONS[code]}
            for code in (400, 401, 403, 404)
        },
    },
)
