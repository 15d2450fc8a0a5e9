"""The dead-letter desk in OpenAPI."""

from drf_spectacular.types import OpenApiTypes

from jobs.api.operations import (
    IDEMPOTENCY_KEY,
    INSTANT,
    MAYBE_INSTANT,
    PAGING,
    number,
    obj,
    operation,
    page_of,
    query,
    ref,
    text,
)
from runs.dead_letters import MOST_AT_ONCE, MOST_COUNTED, MOST_DISMISSED, MOST_GROUPS
from runs.models import Decision, ErrorClass, RedriveState
from runs.redrives import FASTEST

ERROR = obj(
    {"class": text(enum=list(ErrorClass.values)), "type": text(), "line": text("Of the latest death.")}
)
JOB = obj({"id": text(format="uuid"), "name": text()})
INPUT = {
    "type": "object",
    "nullable": True,
    "description": "For the new runs, instead of what the dead ones were given; null or left out: the same.",
}
REASON = text("Kept with the decision and in the audit trail.", maxLength=500)
IDS = {"type": "array", "items": text(format="uuid"), "minItems": 1, "maxItems": MOST_AT_ONCE}
COMPONENTS = {
    "DeadGroup": obj(
        {
            "fingerprint": text("The same for the same mistake."),
            "count": number(f"Of its dead runs that wait for a decision, up to {MOST_COUNTED:,}."),
            "more": {"type": "boolean", "description": "There are more than were counted."},
            "first_seen_at": INSTANT,
            "last_seen_at": INSTANT,
            "error": ERROR,
            "jobs": {"type": "array", "items": JOB, "description": "Of the latest deaths."},
            "redrive": {"allOf": [ref("Redrive")], "nullable": True, "description": "On its way now."},
            "links": obj({"self": text(), "redrive": text(), "dismiss": text()}),
        }
    ),
    "DeadGroups": obj(
        {
            "results": {"type": "array", "items": ref("DeadGroup")},
            "more": {"type": "boolean", "description": f"There are more groups than {MOST_GROUPS}."},
        }
    ),
    "DeadLetter": obj(
        {
            "run": text("The dead run.", format="uuid"),
            "job": text(format="uuid"),
            "job_name": text(),
            "fingerprint": text(),
            "died_at": INSTANT,
            "error": ERROR,
            "decision": text("Empty: open.", enum=list(Decision.values)),
            "decided_at": MAYBE_INSTANT,
            "decided_by": text(),
            "note": text(),
            "redriven_as": text("The run that it was redriven as.", format="uuid", nullable=True),
            "links": obj({"run": text(), "redriven_as": text()}),
        }
    ),
    "Redriven": obj(
        {
            "redriven": {
                "type": "array",
                "items": obj({"run": text(format="uuid"), "new_run": text(format="uuid")}),
            },
            "refused": {"type": "array", "items": ref("RefusedRun")},
        }
    ),
    "Dismissed": obj(
        {
            "dismissed": number(),
            "more": {"type": "boolean", "description": "Ask again for the rest of the group."},
            "refused": {"type": "array", "items": ref("RefusedRun")},
        }
    ),
    "RefusedRun": obj({"run": text(format="uuid"), "code": text(), "detail": text(), "hint": text()}),
    "Redrive": obj(
        {
            "id": text(format="uuid"),
            "fingerprint": text(),
            "per_minute": number(),
            "state": text(enum=list(RedriveState.values)),
            "made": number("Runs made so far."),
            "left": number(f"To come, up to {MOST_COUNTED:,}."),
            "refused": number("That could not go, such as those of deleted jobs; they wait on the desk."),
            "last_refusal": text(),
            "input": INPUT,
            "reason": text(),
            "requested_by": text(),
            "created_at": INSTANT,
            "ended_at": MAYBE_INSTANT,
            "ended_by": text(),
            "links": obj({"self": text(), "stop": text(), "group": text()}),
        }
    ),
}

list_groups = operation(
    "list_dead_letters",
    "Dead runs that wait for a decision, by error",
    tag="dead letters",
    gives=ref("DeadGroups"),
    errors=(400,),
    about="The latest death first. Decide by group or by run: redrive it, or dismiss it with a note.",
)
list_letters = operation(
    "list_dead_letters_of_group",
    "The dead runs of a group, the latest first",
    tag="dead letters",
    gives=page_of("DeadLetter"),
    errors=(400, 404),
    parameters=(
        query("decision", "Open unless given.", enum=["open", "redriven", "dismissed"]),
        query("job", "Of this job alone.", OpenApiTypes.UUID),
        *PAGING,
    ),
)
redrive_runs = operation(
    "redrive_runs",
    "Redrive dead runs",
    tag="dead letters",
    takes=obj(
        {"runs": IDS, "input": INPUT, "reason": REASON}, required=("runs",), additionalProperties=False
    ),
    gives=ref("Redriven"),
    errors=(400, 404, 409, 422),
    parameters=(IDEMPOTENCY_KEY,),
    about="Each becomes a new run of the same version that points to it. A dead run is redriven once: asked again, "
    "the answer names the run that it became.",
)
dismiss_runs = operation(
    "dismiss_runs",
    "Dismiss dead runs",
    tag="dead letters",
    takes=obj(
        {"runs": IDS, "note": text(maxLength=500)}, required=("runs", "note"), additionalProperties=False
    ),
    gives=ref("Dismissed"),
    errors=(400, 404),
    about="Nothing is run for them; they leave the desk.",
)
redrive_group = operation(
    "redrive_group",
    "Redrive a group at a pace",
    tag="dead letters",
    takes=obj(
        {"per_minute": number(minimum=1, maximum=FASTEST, default=60), "input": INPUT, "reason": REASON},
        additionalProperties=False,
    ),
    gives=ref("Redrive"),
    status=201,
    errors=(400, 404, 409, 422),
    parameters=(IDEMPOTENCY_KEY,),
    about="All of it that has died by now, the oldest death first. What dies again waits on the desk.",
)
dismiss_group = operation(
    "dismiss_group",
    "Dismiss a group",
    tag="dead letters",
    takes=obj({"note": text(maxLength=500)}, required=("note",), additionalProperties=False),
    gives=ref("Dismissed"),
    errors=(400, 404),
    about=f"What has died by now, {MOST_DISMISSED:,} at a time.",
)
list_redrives = operation(
    "list_redrives",
    "Groups on their way, and those that were, newest first",
    tag="dead letters",
    gives=page_of("Redrive"),
    errors=(400,),
    parameters=PAGING,
)
read_redrive = operation(
    "read_redrive", "How far a redrive has come", tag="dead letters", gives=ref("Redrive"), errors=(404,)
)
stop_redrive = operation(
    "stop_redrive",
    "Stop a redrive",
    tag="dead letters",
    takes=ref("Reason"),
    gives=ref("Redrive"),
    errors=(400, 404, 409),
    about="The runs it has made go on; the rest of the group waits on the desk.",
)
