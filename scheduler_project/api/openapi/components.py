"""Make a component of every object, and another one for answers where they differ from requests.

Generators of clients make a type of a component; of an object inside of another they make what nobody can name.
"""

import json
from collections.abc import Callable, Container
from functools import partial

from jobs.validation.schema import ANSWERED_AS, MAY_LACK, Schema, ref
from scheduler_project.api.openapi.schemas import PREFIX, Use, contents, names_in, rebuilt

NULL = {"type": "null"}


def name_objects(document: Schema) -> None:
    """Turn each object with properties into a component, under its title or by its place."""
    schemas = document["components"]["schemas"]

    def named(schema: Schema, name: str) -> Schema:
        name = schema.get("title", name)
        found = with_named_parts(schema, name)
        if "properties" not in found:
            return found
        beside = {key: found.pop(key) for key in ("title", "nullable", ANSWERED_AS) if key in found}
        if schemas.setdefault(name, found) != found:
            raise ValueError(f"two objects are called {name}: give one of them another title")
        if not beside.get("nullable"):
            return ref(name)
        answered = {ANSWERED_AS: ref(name)} if ANSWERED_AS in beside else {}
        return {"allOf": [ref(name)], "nullable": True, **answered}

    def with_named_parts(schema: Schema, name: str) -> Schema:
        return rebuilt(schema, lambda part, place: named(part, f"{name}{place}"))

    for name in list(schemas):
        schemas[name] = with_named_parts(schemas[name], name)
    for name, _, media in contents(document):
        media["schema"] = named(media["schema"], name)
    _move_null_to_references(schemas)


def separate_answers(document: Schema, lenient: Container[str]) -> None:
    """Write a component anew for answers if it, or one that it refers to, has another form in requests."""
    schemas, uses = document["components"]["schemas"], _uses(document)
    asked = {name for name in uses if uses[name] != {Use.ANSWER}}
    apart: set[str] = set()

    def name_for(name: str, answer: bool) -> str:
        return f"{name}Answer" if answer and name in apart else name

    def written(name: str, answer: bool) -> Schema:
        schema, closed = schemas[name], name in asked and name not in lenient
        form = _of_answer(schema, closed) if answer else _of_request(schema, closed, Use.GIVEN in uses[name])
        return _renamed(form, lambda other: name_for(other, answer))

    shared = {name for name in asked if Use.ANSWER in uses[name]}
    # Until no component is written anew because of those that it refers to.
    while new := {name for name in shared - apart if written(name, True) != written(name, False)}:
        apart |= new
    document["components"]["schemas"] = {
        name_for(name, answer): written(name, answer)
        for name in sorted(uses)
        for answer in ((False, True) if name in apart else (name not in asked,))
    }
    for _, use, media in contents(document):
        media["schema"] = _renamed(media["schema"], partial(name_for, answer=use is Use.ANSWER))


def replace_nullable(document: Schema) -> None:
    """Write `nullable` the way of OpenAPI 3.1."""

    def replaced(schema: Schema, _: str = "") -> Schema:
        found = rebuilt(schema, replaced)
        if not found.pop("nullable", False):
            return found
        if "enum" in found and None not in found["enum"]:
            found["enum"] = [*found["enum"], None]
        if "type" in found:
            return {**found, "type": [found["type"], "null"]}
        if "oneOf" in found:
            return {**found, "oneOf": [*found["oneOf"], NULL]}
        if "allOf" in found:
            found["oneOf"] = [*found.pop("allOf"), NULL]
        # Without a type any JSON is allowed, null too.
        return found

    schemas = document["components"]["schemas"]
    schemas.update({name: replaced(schema) for name, schema in schemas.items()})
    for _, _, media in contents(document):
        media["schema"] = replaced(media["schema"])


def _move_null_to_references(schemas: Schema) -> None:
    """Let references to an object that may be null say so; of the object itself a generator would make two types."""
    objects = {name for name, schema in schemas.items() if "properties" in schema}
    nullable = {name for name in objects if schemas[name].pop("nullable", False)}

    def moved(schema: Schema, _: str = "") -> Schema:
        found = rebuilt(schema, moved)
        if found.get("$ref", "").removeprefix(PREFIX) not in nullable:
            return found
        return {"allOf": [found], "nullable": True}

    schemas.update({name: moved(schema) for name, schema in schemas.items()})


def _uses(document: Schema) -> dict[str, set[Use]]:
    schemas = document["components"]["schemas"]
    uses: dict[str, set[Use]] = {}
    todo = [(name, use) for _, use, media in contents(document) for name in names_in(media["schema"])]
    while todo:
        name, use = todo.pop()
        if use not in uses.setdefault(name, set()):
            uses[name].add(use)
            todo += [(other, use) for other in names_in(schemas[name])]
    return uses


def _of_request(schema: Schema, closed: bool, of_new: bool) -> Schema:
    """Say defaults in words: generated clients would send them, with changes too."""
    found = rebuilt(schema, lambda part, _: _of_request(part, closed, of_new))
    default = found.pop("default", None)
    if default is not None and of_new:
        said = default if isinstance(default, str) else json.dumps(default)
        found["description"] = f"{found.get('description', '')} Default: `{said}`.".strip()
    for mark in (MAY_LACK, ANSWERED_AS):
        found.pop(mark, None)
    return {"additionalProperties": False, **found} if closed and "properties" in found else found


def _of_answer(schema: Schema, closed: bool) -> Schema:
    """Require all but what an answer may lack. What a request does not share may get more properties."""
    if ANSWERED_AS in schema:
        return _of_answer(schema[ANSWERED_AS], closed)
    found = rebuilt(schema, lambda part, _: _of_answer(part, closed))
    if "default" in found:
        found.setdefault("example", found.pop("default"))
    may_lack = found.pop(MAY_LACK, ())
    if "properties" not in found:
        return found
    needed = [name for name in found["properties"] if name not in may_lack]
    found.update({"required": needed} if needed else {})
    return {"additionalProperties": False, **found} if closed else found


def _renamed(schema: Schema, name_for: Callable[[str], str]) -> Schema:
    found = rebuilt(schema, lambda part, _: _renamed(part, name_for))

    def address(old: str) -> str:
        return PREFIX + name_for(old.removeprefix(PREFIX))

    if "$ref" in found:
        found["$ref"] = address(found["$ref"])
    if "discriminator" in found:
        mapping = {value: address(old) for value, old in found["discriminator"]["mapping"].items()}
        found["discriminator"] = {**found["discriminator"], "mapping": mapping}
    return found
