"""Build OpenAPI schemas from plain dictionaries."""

from collections.abc import Sequence
from typing import Any

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def obj(properties: Schema, *, required: Sequence[str] = (), **more: Any) -> Schema:
    schema = {"type": "object", "properties": properties, **more}
    return {**schema, "required": list(required)} if required else schema


def text(about: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": about} if about else {}), **more}


def number(about: str = "", **more: Any) -> Schema:
    return {"type": "integer", **({"description": about} if about else {}), **more}


INSTANT = text("UTC, whole milliseconds; what is finer is cut off.", format="date-time")
MAYBE_INSTANT = {**INSTANT, "nullable": True}
DURATION = {
    "oneOf": [
        text("ISO 8601: PT30S, PT1H30M, P1D.", format="duration"),
        {"type": "number", "description": "Seconds."},
    ]
}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
