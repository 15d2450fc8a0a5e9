"""Requests for runs in OpenAPI."""

from jobs.api.operations import INSTANT, MAYBE_INSTANT, Decorator, obj, operation, ref, text

ID = text(format="uuid", nullable=True)
COMPONENTS = {
    "NewRunRequest": obj(
        {
            "key": text("The same key again is the same request.", maxLength=200),
            "pool": text("Left out with a worker's key: its own."),
            "at": {**INSTANT, "nullable": True, "description": "When; null or left out: at once."},
            "spec": {
                "type": "object",
                "description": "`name` of a declared job and the `input` of one more run of it; or a whole job as "
                "`POST /jobs` takes it, without pool and schedule, that runs once.",
            },
        },
        required=("key", "spec"),
        additionalProperties=False,
    ),
    "RunRequest": obj(
        {
            "id": text(format="uuid"),
            "key": text(),
            "state": text("`requested`, `scheduled`, `refused`, or the state of its run."),
            "at": MAYBE_INSTANT,
            "job": ID,
            "run": {**ID, "description": "Of a run at an instant it is known before the run is made."},
            "result": {"nullable": True},
            "error_line": text(),
            "links": obj({"self": text(), "run": text()}),
        }
    ),
}


ASKING = (
    "`spec` with `name` and `input`: one more run, at once, of a job that is declared in the pool; the role "
    "operator may do so. `spec` with a whole job: a job of its own that runs once, at `at` or at once; for this a "
    "key needs the role admin, and a worker's key may ask for Celery tasks without secrets. Done before it is "
    "answered: 201, and 200 with the same request when the `key` comes again with the same words. 400: `spec`, "
    "`at` (it has passed, or stands beside an `input`) or `pool` is wrong; 404: no such job is declared in the "
    "pool; 409: the job is cancelled, or its target may not go there; 422: the `key` was used for another "
    "request."
)


def _operations(of_worker: str) -> list[Decorator]:
    about = "For a worker's key, in its own pool." if of_worker else ""
    return [
        operation(
            f"request_run{of_worker}",
            "Ask for a run from code",
            tag="run requests",
            takes=ref("NewRunRequest"),
            gives=ref("RunRequest"),
            status=201,
            errors=(400, 404, 409, 422),
            about=f"{ASKING} {about}".strip(),
        ),
        operation(
            f"read_run_request{of_worker}",
            "Read a request",
            tag="run requests",
            gives=ref("RunRequest"),
            errors=(404,),
            about=about,
        ),
        operation(
            f"cancel_run_request{of_worker}",
            "Take a request back",
            tag="run requests",
            gives=ref("RunRequest"),
            errors=(404, 409) if of_worker else (404,),
            about="A run that has not begun ends; of one that runs the worker is told. A finished one stays as it is. "
            + about,
        ),
    ]


request_run, read_request, cancel_request = _operations("")
request_run_of_worker, read_request_of_worker, cancel_request_of_worker = _operations("_of_worker")
