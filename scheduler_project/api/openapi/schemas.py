"""Walk through schemas and the places of a document that hold them."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from jobs.validation.schema import Schema

PREFIX = "#/components/schemas/"
CHOICES = ("oneOf", "anyOf", "allOf")


class Use(Enum):
    """How a schema is used: in requests for something new, in requests that change something, in answers."""

    GIVEN = "given"
    CHANGES = "changes"
    ANSWER = "answer"


def operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def contents(document: Schema) -> Iterator[tuple[str, Use, Schema]]:
    """Yield each body with the name of its operation."""
    for _, method, operation in operations(document):
        name = camel(operation["operationId"])
        for media in operation.get("requestBody", {}).get("content", {}).values():
            yield f"{name}Request", Use.CHANGES if method == "patch" else Use.GIVEN, media
        for response in operation["responses"].values():
            for media in response.get("content", {}).values():
                yield f"{name}Answer", Use.ANSWER, media


def rebuilt(schema: Schema, act: Callable[[Schema, str], Schema]) -> Schema:
    """Replace each part of a schema by what `act` makes of it and of what distinguishes it."""
    found = dict(schema)
    if "properties" in found:
        found["properties"] = {name: act(part, camel(name)) for name, part in found["properties"].items()}
    for key in CHOICES:
        if key in found:
            found[key] = [act(part, str(number)) for number, part in enumerate(found[key], 1)]
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = act(found[key], "Item")
    return found


def names_in(schema: Any) -> set[str]:
    """Name the components that a schema refers to."""
    if isinstance(schema, dict):
        own = {schema["$ref"].removeprefix(PREFIX)} if "$ref" in schema else set()
        return own.union(*(names_in(part) for part in schema.values()))
    return set[str]().union(*(names_in(part) for part in schema)) if isinstance(schema, list) else set()


def camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.replace("-", "_").split("_"))
