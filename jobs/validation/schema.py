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


def patch_of(schema: Schema, *, nullable: bool = True) -> Schema:
    """Describe a JSON merge patch of what a schema describes: all may be left out, and null deletes."""
    schema = _with_parts_of_variants(schema)
    kept = {name: part for name, part in schema.items() if name not in ("required", "default", "title")}
    if "title" in schema:
        kept["title"] = f"{schema['title']}Changes"
    if "properties" in schema:
        kept["properties"] = {name: patch_of(part) for name, part in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = patch_of(schema["additionalProperties"])
    if "oneOf" in schema:
        first, *others = schema["oneOf"]
        kept["oneOf"] = [patch_of(first), *others]
    return {**kept, "nullable": True} if nullable and "type" in schema else kept


def _with_parts_of_variants(schema: Schema) -> Schema:
    """Describe one of several objects as one object with the parts of all: a patch need not say which one it is."""
    variants = schema.get("oneOf", [])
    if not variants or not all("properties" in variant for variant in variants):
        return schema
    parts: Schema = {}
    for name, part in (one for variant in variants for one in variant["properties"].items()):
        words = {"enum": [*parts[name]["enum"], *part["enum"]]} if "enum" in parts.get(name, {}) else {}
        parts[name] = {**part, **words}
    return {**{name: part for name, part in schema.items() if name != "oneOf"}, **obj(parts)}
