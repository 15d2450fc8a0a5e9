"""Give each body an example: of the examples and defaults of its parts, else of the simplest value."""

from typing import Any

from jobs.validation.schema import DURATION, Schema
from scheduler_project.api.openapi.schemas import Use, contents

OF_FORMAT = {
    "date-time": "2027-03-01T06:00:00.000Z",
    "date": "2027-03-01",
    DURATION: "PT5M",
    "uri": "https://example.com/",
    "uuid": "0197d2a4-5b00-7c3e-9f3a-2b1c8e5d4f60",
}
OF_TYPE: dict[str | None, Any] = {"string": "", "boolean": False, "number": 0.0, None: None, "null": None}


def add(document: Schema) -> None:
    schemas = document["components"]["schemas"]
    for _, use, media in contents(document):
        found = example(media["schema"], schemas, whole=use is Use.ANSWER)
        # Bodies of text are shown by their schema.
        if isinstance(found, dict):
            media["example"] = found


def example(schema: Schema, schemas: Schema, *, whole: bool = False) -> Any:
    """Build an example; of a request only what must be given or has an example of its own."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas, whole=whole)
    for key in ("example", "default"):
        if key in schema:
            return schema[key]
    if "allOf" in schema:
        parts = [example(part, schemas, whole=whole) for part in schema["allOf"]]
        return {name: value for part in parts for name, value in part.items()}
    if choices := schema.get("oneOf") or schema.get("anyOf"):
        return example(choices[0], schemas, whole=whole)
    if "enum" in schema:
        return schema["enum"][0]
    return _of_type(schema, schemas, whole)


def _of_type(schema: Schema, schemas: Schema, whole: bool) -> Any:
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return _object(schema, schemas, whole)
    if kind == "array":
        return [example(schema["items"], schemas, whole=whole)] if whole or schema.get("minItems") else []
    if kind == "integer":
        return schema.get("minimum", 0)
    return OF_FORMAT.get(schema.get("format", ""), OF_TYPE[kind])


def _object(schema: Schema, schemas: Schema, whole: bool) -> Schema:
    required = schema.get("required", ())
    return {
        name: example(part, schemas, whole=whole)
        for name, part in schema.get("properties", {}).items()
        if name in required or "example" in part
    }
