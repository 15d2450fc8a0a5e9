"""Describe the worker's protocol in OpenAPI, from the types that both ends use."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from jobs.api.openapi import Decorator, operation, query
from jobs.validation.schema import Schema, number, obj, ref, text
from runs.api.wire_bounds import BOUNDS

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
    """Return the schema of a type; a dataclass becomes a component."""
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
        needed = [one.name for one in fields(kind) if one.default is MISSING is one.default_factory]
        COMPONENTS[name] = obj(
            {name: {**schema_of(types[name]), **BOUNDS.get((kind, name), {})} for name in types},
            required=needed,
        )
    return ref(name)


def exchange(name: str, summary: str, takes: Any, gives: Any, errors: Sequence[int] = (400,)) -> Decorator:
    given = obj({"answer": schema_of(gives)}, required=("answer",))
    return operation(name, summary, tag=TAG, takes=schema_of(takes), gives=given, errors=errors, about=ABOUT)


def upload(name: str, summary: str, content: str, gives: Any, *more: Any) -> Decorator:
    """Describe an operation whose body is no JSON."""
    worker = query("incarnation", "Of the worker that holds the claim.", OpenApiTypes.UUID, required=True)
    given = obj({"answer": schema_of(gives)}, required=("answer",))
    described = operation(
        name, summary, tag=TAG, gives=given, errors=(400, 404, 409), parameters=[worker, *more], about=ABOUT
    )
    body = extend_schema(request={content: text(format="binary", minLength=1)})
    return lambda view: body(described(view))
