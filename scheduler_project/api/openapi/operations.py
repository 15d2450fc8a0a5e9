"""Describe what holds for all operations: refusals, headers of answers, ids in addresses."""

from jobs.api.authentication import CHALLENGE
from jobs.api.openapi import IDEMPOTENCY_KEY, REASONS
from jobs.validation.schema import Schema, number, ref, text
from runs.api.wire_schema import TAG as WORKER_TAG
from scheduler_project.api.openapi.schemas import operations
from scheduler_project.api.problems import PROBLEM_TYPE, problem_body

# Of all operations, of those with a body, and of those with an id or a name in their address.
ALWAYS, WITH_BODY, WITH_ID = (400, 401, 403, 405, 414, 429, 503), (413, 415), (404,)
HEADERS = {
    "X-Request-Id": text("The id of the request: the one that was sent, or a new one."),
    "Location": text("Where it is."),
    "Idempotency-Replayed": text(
        "The answer to an earlier request with this Idempotency-Key.", enum=["true"]
    ),
    "WWW-Authenticate": text("How to send a key.", example=CHALLENGE),
    "Allow": text("The methods of this address.", example="GET, POST, HEAD, OPTIONS"),
    "RateLimit-Policy": text(
        "The limits that the request counts against: requests (`q`) in so many seconds (`w`).",
        example='"tenant";q=30000;w=60, "key";q=15000;w=60',
    ),
    "RateLimit": text(
        "Of each limit, how many requests are left (`r`), for how many seconds (`t`).",
        example='"tenant";r=28800;t=31, "key";r=14200;t=31',
    ),
    "Retry-After": number("Seconds to wait before the next try.", minimum=0, example=5),
}
LIMITS = ("RateLimit-Policy", "RateLimit")
HEADERS_OF = {
    401: ("WWW-Authenticate",),
    405: ("Allow",),
    429: ("Retry-After", *LIMITS),
    503: ("Retry-After",),
}


def describe(document: Schema) -> None:
    stated = {code for _, _, operation in operations(document) for code in _refusals(operation)}
    codes = sorted(stated | {*ALWAYS, *WITH_BODY, *WITH_ID})
    document["components"]["headers"] = {name: _header(schema) for name, schema in HEADERS.items()}
    document["components"]["responses"] = {f"Refused{code}": _response(code) for code in codes}
    for path, method, operation in operations(document):
        if "requestBody" in operation:
            operation["requestBody"]["required"] = _has_required_parts(document, operation["requestBody"])
        for status, response in operation["responses"].items():
            response["headers"] = {
                **response.get("headers", {}),
                **_headers(*_headers_of(operation, f"{method} {status}")),
            }
        of_body = WITH_BODY if "requestBody" in operation else ()
        of_id = WITH_ID if "{" in path else ()
        for code in sorted({*_refusals(operation), *ALWAYS, *of_body, *of_id}):
            operation["responses"][str(code)] = {"$ref": f"#/components/responses/Refused{code}"}


def _refusals(operation: Schema) -> list[int]:
    return [int(status) for status in operation["responses"] if status >= "400"]


def _headers_of(operation: Schema, answered: str) -> tuple[str, ...]:
    given = {parameter["name"] for parameter in operation.get("parameters", ())}
    replayed = ("Idempotency-Replayed",) if IDEMPOTENCY_KEY.name in given else ()
    limits = LIMITS if _is_limited(operation) else ()
    return (*(("Location",) if answered == "post 201" else ()), *replayed, *limits)


def _is_limited(operation: Schema) -> bool:
    """Test whether requests count against a key: not those of the worker's protocol, nor callbacks without one."""
    return operation["tags"] != [WORKER_TAG] and any("key" in scheme for scheme in operation["security"])


def _headers(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)}


def _header(schema: Schema) -> Schema:
    schema = dict(schema)
    return {"description": schema.pop("description"), "schema": schema}


def _response(code: int) -> Schema:
    return {
        "description": REASONS[code],
        "headers": _headers(*HEADERS_OF.get(code, ())),
        "content": {PROBLEM_TYPE: {"schema": ref("Problem"), "example": problem_body(code, REASONS[code])}},
    }


def _has_required_parts(document: Schema, body: Schema) -> bool:
    """Test whether the body must be sent. What is not JSON must."""
    schema = next(iter(body["content"].values()))["schema"]
    name = schema.get("$ref", "").rpartition("/")[2]
    component = document["components"]["schemas"].get(name)
    return component is None or "required" in component or "oneOf" in component
