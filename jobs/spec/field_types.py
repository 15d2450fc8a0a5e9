"""Say everything about one field of a job in one row.

Requests, answers, the OpenAPI document, audit entries and the admin's form are derived from these rows (fields.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from jobs.models import Tenant
from jobs.validation import durations
from jobs.validation import schema as schemas
from jobs.validation.checks import Json, abbreviate, invalid, whole_number
from jobs.validation.schema import Schema, number, text

MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Origin:
    """The tenant who sends a field, and the id of the job that gets it."""

    tenant: Tenant
    job_id: str


# Checks the value of a request and returns what is stored.
Reader = Callable[[Any, Origin], Any]


class InputKind(Enum):
    TEXT = "text"
    NAME = "name"
    AREA = "area"
    NUMBER = "number"
    CHOICE = "choice"
    DURATION = "duration"
    INSTANT = "instant"
    # Names of errors, with commas between.
    NAMES = "names"
    OBJECT = "object"
    CODE = "code"
    # The form has it by its model.
    MODEL = "model"


@dataclass(frozen=True)
class Input:
    """Describe one input of the admin's form. The name is the field's, or the field's and the part's."""

    name: str
    kind: InputKind = InputKind.TEXT
    help: str = ""
    label: str | None = None
    choices: Sequence[tuple[str, str]] = ()
    placeholder: str = ""
    # A condition of the form, such as "catch_up_policy == 'all'"; empty: always.
    only_when: str = ""
    # Stands in the row of this input.
    beside: str = ""


def unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    read: Reader
    schema: Schema
    # As a request would write it; a required field has none.
    default: Any = None
    required: bool = False
    # A versioned field is a column of JobVersion, others are columns of Job; changing either writes the next version.
    versioned: bool = True
    # Where it is stored, if not under its name; a reader for several columns returns a tuple.
    columns: tuple[str, ...] = ()
    # The stored value as an answer has it, and as an audit entry has it.
    as_json: Callable[[Any], Any] = unchanged
    as_audited: Callable[[Any], Any] = unchanged
    # From the value as an answer has it, and a merge patch of it: what the patch is applied to. None: the whole value.
    merges_into: Callable[[Json, Json], Json] | None = None
    # It may hold secrets: those who may not write it see them masked.
    redacted: bool = False
    # How the admin's form shows it: its section and inputs. The value of several inputs is an object of their parts,
    # unless these two say otherwise.
    section: str = "Execution"
    inputs: tuple[Input, ...] = ()
    split_value: Callable[[Any], Json] | None = None
    join_parts: Callable[[Json], Any] | None = None
    # Shown in the form of a new job instead of the default.
    suggested: Any = None
    # The options of `@keeper.job(...)` that give it; None: the option of the same name.
    options: tuple[str, ...] | None = None

    @property
    def column(self) -> str:
        return self.columns[0] if self.columns else self.name

    @property
    def property(self) -> Schema:
        """Describe the field in OpenAPI, with its default."""
        return {**self.schema, **({"default": self.default} if self.default else {})}

    def read_columns(self, value: object, origin: Origin) -> Json:
        found = self.read(value, origin)
        return dict(zip(self.columns, found, strict=True)) if len(self.columns) > 1 else {self.column: found}

    def part_of(self, one: Input) -> str:
        """Name the part of the value that an input holds."""
        return one.name.removeprefix(f"{self.name}_")

    def split(self, value: Any) -> Json:
        """Split a value as answers have it into the parts of its inputs."""
        if self.split_value is not None:
            return self.split_value(value)
        return {self.name: value} if len(self.inputs) == 1 else value

    def join(self, parts: Json) -> Any:
        if self.join_parts is not None:
            return self.join_parts(parts)
        return parts[self.name] if len(self.inputs) == 1 else parts


def integer(name: str, minimum: int, maximum: int, about: str, form_help: str = "", **row: Any) -> Field:
    """Declare a whole number. Without a default it may be null."""
    schema = number(about, minimum=minimum, maximum=maximum)
    shown = Input(name, InputKind.NUMBER, form_help or about, beside=row.pop("beside", ""))
    return _maybe_null(name, lambda value: whole_number(value, name, minimum, maximum), schema, shown, **row)


def duration(
    name: str, minimum: timedelta, maximum: timedelta, about: str, form_help: str = "", **row: Any
) -> Field:
    """Declare a length of time, stored in milliseconds. Without a default it may be null."""
    nullable = row.get("default") is None
    return _maybe_null(
        name,
        lambda value: durations.read(value, name, minimum, maximum) // MILLISECOND,
        schemas.duration(about, minimum, maximum),
        Input(name, InputKind.DURATION, form_help or about, beside=row.pop("beside", "")),
        columns=(f"{name}_ms",),
        as_json=lambda ms: None if ms is None else durations.as_text(ms * MILLISECOND),
        # An input that is left empty stands for null.
        join_parts=lambda parts: None if nullable and parts[name] == "" else parts[name],
        **row,
    )


def _maybe_null(name: str, read: Callable[[object], int], schema: Schema, shown: Input, **row: Any) -> Field:
    nullable = row.get("default") is None
    return Field(
        name=name,
        read=lambda value, _: None if value is None and nullable else read(value),
        schema={**schema, **({"nullable": True} if nullable else {})},
        inputs=(shown,),
        **row,
    )


def choice(
    name: str, noun: str, values: dict[str, str], about: str, form_help: str = "", **row: Any
) -> Field:
    """Declare one of several words, each with its description."""

    def read(value: object, _: Origin) -> str:
        if not isinstance(value, str) or value not in values:
            raise invalid(name, f"{abbreviate(value)} is not {noun}", f"one of {', '.join(values)}")
        return value

    labels = [(value, f"{value.replace('_', ' ')}: {described}") for value, described in values.items()]
    return Field(
        name=name,
        read=read,
        schema=text(about, enum=list(values)),
        inputs=(Input(name, InputKind.CHOICE, form_help or about, choices=labels),),
        **row,
    )
