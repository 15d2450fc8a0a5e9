"""The worker's protocol in OpenAPI, drawn from the types that both ends use."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from jobs.api.operations import Decorator, Schema, number, obj, operation, query, ref, text
from scheduler_project.sdk import https, ledger, outcomes, wire

TAG = "worker"
ABOUT = "For keys with the role worker, by the SDK. May be sent again: it is done once."
PLAIN: dict[Any, Schema] = {
    UUID: text(format="uuid"),
    datetime: text(format="date-time"),
    str: text(),
    int: number(),
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}
COMPONENTS: dict[str, Schema] = {}


def schema_of(kind: Any) -> Schema:
    if is_dataclass(kind):
        return component(kind)
    if get_origin(kind) is None:
        return PLAIN[kind]
    kinds = get_args(kind)
    if NoneType in kinds:
        [only] = [schema_of(one) for one in kinds if one is not NoneType]
        return {"nullable": True, "allOf": [only]} if "$ref" in only else {**only, "nullable": True}
    if issubclass(get_origin(kind), Mapping):
        return {"type": "object", "additionalProperties": schema_of(kinds[1])}
    return {"type": "array", "items": schema_of(kinds[0])}


def component(kind: Any) -> Schema:
    name = f"Worker{kind.__name__.removeprefix('Worker')}"
    if name not in COMPONENTS:
        types = get_type_hints(kind)
        needed = [
            field.name
            for field in fields(kind)
            if field.default is MISSING and field.default_factory is MISSING
        ]
        COMPONENTS[name] = obj({name: schema_of(types[name]) for name in types}, required=needed)
    return ref(name)


def exchange(name: str, summary: str, takes: Any, gives: Any, errors: Sequence[int] = (400,)) -> Decorator:
    given = obj({"answer": schema_of(gives)}, required=("answer",))
    return operation(name, summary, tag=TAG, takes=schema_of(takes), gives=given, errors=errors, about=ABOUT)


def brought(name: str, summary: str, content: str, gives: Any, *more: Any) -> Decorator:
    """An operation whose body is no JSON."""
    parameters = [
        query("incarnation", "Of the worker that holds the claim.", OpenApiTypes.UUID, required=True),
        *more,
    ]
    given = obj({"answer": schema_of(gives)}, required=("answer",))
    described = operation(
        name, summary, tag=TAG, gives=given, errors=(400, 404, 409), parameters=parameters, about=ABOUT
    )
    body = extend_schema(request={content: OpenApiTypes.BINARY})
    return lambda view: body(described(view))


register = exchange(
    "worker_register", "Make a worker known", ledger.WorkerInfo, list[ledger.Lane], (400, 409)
)
heartbeat = exchange("worker_heartbeat", "Renew a worker's lease", ledger.Beat, wire.Heard)
claim = exchange("worker_claim", "Claim the next runs", wire.ClaimAsked, list[ledger.Claim])
report = exchange("worker_report", "Tell what came of runs, and claim the next", wire.Reported, ledger.Told)
leave = exchange("worker_leave", "Say that a worker stopped", wire.Left, bool)
declare = exchange("worker_declare", "Declare jobs", wire.Declared, bool, (400, 409))
declaration_errors = exchange(
    "worker_declaration_errors", "What was wrong with declared jobs", wire.Names, dict[str, str], (400, 409)
)
keep_log = brought(
    "worker_keep_log", "Keep the log of an attempt that ended", https.GZIP, outcomes.LogPointer
)
append_log = brought(
    "worker_append_log",
    "Lines of an attempt that runs",
    https.LINES,
    int,
    query("offset", "Where the lines begin.", int, required=True),
)
