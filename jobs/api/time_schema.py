"""Single planned times, and what stands ahead of a job, in OpenAPI."""

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
from jobs.models import Effect, JobStatus, StopKind
from jobs.stops import LONGEST_NOTE

NUMBER_OF_TIMES = query("n", "How many, 1 to 100.", int, default=10)
GIVEN = {
    "planned_at": {**INSTANT, "description": "One of the job's planned times."},
    "skip": {"type": "boolean", "description": "True: it gets no run. Instead of move_to."},
    "move_to": {**MAYBE_INSTANT, "description": "Its run goes then, earlier or later."},
    "note": text("Shown with the run, or with the row that says why there is none.", maxLength=LONGEST_NOTE),
}
COMPONENTS = {
    "NewChangedTime": obj(GIVEN, required=("planned_at",), additionalProperties=False),
    "ChangedTime": obj(
        {
            "id": number(),
            **GIVEN,
            "made_by": text(),
            "created_at": INSTANT,
            "done_at": {**MAYBE_INSTANT, "description": "Its run was made, or the row that says why not."},
            "run": text("Where it is shown, once it is done.", nullable=True),
            "links": obj({"self": text()}),
        }
    ),
    "JobPreview": obj(
        {
            "schedule_in_words": text(),
            "now": INSTANT,
            "times": {"type": "array", "items": INSTANT},
            "status": text("While it is paused, none of them gets a run.", enum=list(JobStatus.values)),
            "ahead": {"type": "array", "items": ref("Ahead")},
        },
        required=("schedule_in_words", "now", "times", "ahead"),
    ),
    "Ahead": obj(
        {
            "planned_at": INSTANT,
            "starts_at": {
                **MAYBE_INSTANT,
                "description": "When its run may go; null: it gets none, or nobody knows.",
            },
            "window_ends_at": {**MAYBE_INSTANT, "description": "Of a flexible window."},
            "skipped": {"type": "boolean"},
            "moved_to": MAYBE_INSTANT,
            "change": number("Of this planned time.", nullable=True),
            "stop": {
                **obj(
                    {
                        "id": number(),
                        "kind": text(enum=list(StopKind.values)),
                        "effect": text(enum=list(Effect.values)),
                        "note": text(),
                        "ends_at": MAYBE_INSTANT,
                        "held": {"type": "boolean", "description": "Its run waits; false: it gets none."},
                        "link": text(),
                    }
                ),
                "nullable": True,
                "description": "The pause or blackout that it falls under, as far as is known by now.",
            },
            "in_words": text(),
        }
    ),
}
list_times = operation(
    "list_changed_times",
    "Planned times that somebody changed, the latest first",
    tag="times",
    gives=page_of("ChangedTime"),
    errors=(400, 404),
    parameters=PAGING,
)
change_time = operation(
    "change_time",
    "Skip or move one planned time",
    tag="times",
    takes=ref("NewChangedTime"),
    gives=ref("ChangedTime"),
    status=201,
    errors=(400, 404, 409, 422),
    parameters=(IDEMPOTENCY_KEY,),
    about="Asked again for the same planned time, the last word counts. The run of a moved time keeps its planned_at.",
)
read_time = operation(
    "read_changed_time", "One changed time", tag="times", gives=ref("ChangedTime"), errors=(404,)
)
restore_time = operation(
    "restore_time",
    "Take a change back",
    tag="times",
    status=204,
    errors=(404, 409),
    about="As long as its planned time has not come.",
)
preview_job = operation(
    "preview_job",
    "The next planned times, and what will become of each",
    tag="jobs",
    gives=ref("JobPreview"),
    errors=(400, 404),
    parameters=(NUMBER_OF_TIMES,),
)
