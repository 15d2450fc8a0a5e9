"""Build OpenAPI schemas from plain dictionaries."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from scheduler_project.sdk.declarations import durations

Schema = dict[str, Any]
# Marks that the finished document does not show: the properties that an answer may lack, and the schema that answers
# have instead of this one.
MAY_LACK, ANSWERED_AS = "x-may-lack", "x-answered-as"
# A character of texts that are printed: in ASCII all but control characters.
PRINTABLE = r"[^\x00-\x1f\x7f]"


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def obj(
    properties: Schema, *, required: Sequence[str] = (), may_lack: Sequence[str] = (), **more: Any
) -> Schema:
    """Describe an object: `required` of a request, all but `may_lack` of an answer. Its title names its component."""
    schema = {"type": "object", "properties": properties, **more}
    if required:
        schema["required"] = list(required)
    return {**schema, MAY_LACK: list(may_lack)} if may_lack else schema


def text(about: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": about} if about else {}), **more}


def number(about: str = "", **more: Any) -> Schema:
    return {"type": "integer", **({"description": about} if about else {}), **more}


def optional(schema: Schema) -> Schema:
    """Let null stand for what is left out; no answer has it."""
    return {**schema, "nullable": True, ANSWERED_AS: schema.get(ANSWERED_AS, schema)}


def duration(about: str, shortest: timedelta, longest: timedelta, **more: Any) -> Schema:
    """Describe a length of time: ISO 8601 or seconds in a request, ISO 8601 in an answer."""
    written = text("ISO 8601: PT30S, PT1H30M, PT0.5S, P1D.", format=DURATION, pattern=DURATION_PATTERN)
    limits = {"minimum": shortest.total_seconds(), "maximum": longest.total_seconds()}
    seconds = {"type": "number", "description": "Seconds.", **limits}
    described = {"description": about} if about else {}
    answered = {**written, **described}
    return {"oneOf": [written, seconds], **described, **more, ANSWERED_AS: answered}


# Not `duration`, which has no fractions of a second (RFC 3339).
DURATION = "iso-8601-duration"
DURATION_PATTERN = f"^(?=P.){durations.DURATION.pattern}$"
INSTANT = text("UTC, whole milliseconds; what is finer is cut off.", format="date-time")
MAYBE_INSTANT = {**INSTANT, "nullable": True}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}


def patch_of(schema: Schema, *, nullable: bool = True) -> Schema:
    """Describe a JSON merge patch of what a schema describes: all may be left out; null deletes."""
    schema = _with_parts_of_variants(schema)
    kept = {name: part for name, part in schema.items() if name not in ("required", "default", "title")}
    if "title" in schema:
        kept["title"] = f"{schema['title']}Changes"
    if "properties" in schema:
        needed = schema.get("required", ())
        kept["properties"] = {
            name: patch_of(part, nullable=name not in needed) for name, part in schema["properties"].items()
        }
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = patch_of(schema["additionalProperties"])
    return {**kept, "nullable": True} if nullable and schema.keys() & {"type", "oneOf"} else kept


def _with_parts_of_variants(schema: Schema) -> Schema:
    """Describe one of several objects as one object with the parts of all: a patch need not say which one it is."""
    variants = schema.get("oneOf", [])
    if not variants or not all("properties" in variant for variant in variants):
        return schema
    parts: Schema = {}
    for name, part in (one for variant in variants for one in variant["properties"].items()):
        words = {"enum": [*parts[name]["enum"], *part["enum"]]} if "enum" in parts.get(name, {}) else {}
        parts[name] = {**part, **words}
    needed = set.intersection(*(set(variant.get("required", ())) for variant in variants))
    return {
        **{name: part for name, part in schema.items() if name != "oneOf"},
        **obj(parts, required=sorted(needed)),
    }
