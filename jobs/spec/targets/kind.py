"""Describe a kind of target. Workers import this before Django's apps are loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobs.validation.checks import Json, invalid
from jobs.validation.schema import Schema, obj, ref, text

if TYPE_CHECKING:
    from jobs.models import Pool


class TargetKind(ABC):
    """Everything the platform knows about one kind of target."""

    name: str
    # Of this kind's targets without `kind`; `required` names those that must be given.
    properties: Schema
    required: tuple[str, ...]
    # What a run may be given beside its target, for that run alone.
    input_properties: Schema = {}
    # Those that a stored target may lack.
    may_lack: tuple[str, ...] = ()
    # An example in JSON, for the admin form.
    example: str
    # Dotted name of the callable by which the platform's own workers execute it; empty: code bases register theirs.
    executor = ""
    # The part of a target that exports are compared with, and where a refusal of it is reported.
    exported_field = "target.kind"

    @abstractmethod
    def read(self, given: Json) -> Json:
        """Check a target as it was written and return what is stored, without `kind`."""

    def check_input(self, given: Json, target: Json) -> None:
        """Check what a run of a stored target is given; other names than `input_properties` were refused before."""
        return

    @property
    def component(self) -> str:
        return f"{self.name.title()}Target"

    @property
    def schema(self) -> Schema:
        properties = {"kind": text(enum=[self.name]), **self.properties}
        return obj(properties, required=("kind", *self.required), may_lack=self.may_lack)

    @property
    def input_component(self) -> str:
        return f"{self.name.title()}Input"

    @property
    def input_schema(self) -> Schema:
        return obj(self.input_properties)

    def key(self, target: Json) -> str:
        """Name what a worker must know to be given this target."""
        return f"kind:{self.name}"

    def describe(self, target: Json) -> str:
        return f"{self.name} targets"

    def suggest(self, target: Json, tasks: Iterable[str], pool: Pool) -> str:
        """Suggest targets that live workers know and the pool exports."""
        return ""

    def check_exported(self, target: Json, pool: Pool) -> None:
        if self.name in pool.exported_kinds:
            return
        runs = ", ".join([*pool.exported_kinds, *(["celery"] if pool.exported_tasks else [])])
        hint = f"it runs {runs}" if runs else "it exports nothing yet"
        detail = f"the pool {pool.slug} does not run {self.name} targets"
        raise invalid(self.exported_field, detail, hint, "not_exported")

    def check_secret_places(self, target: Json) -> None:
        """Refuse references to secrets where others could read the value."""
        return

    @abstractmethod
    def recipient(self, target: Json) -> object:
        """Identify who receives the secrets of a target, as written or as stored."""


def targets_schema(kinds: Iterable[TargetKind]) -> Schema:
    """Describe a target of any of these kinds in OpenAPI."""
    components = {kind.name: ref(kind.component) for kind in kinds}
    return {
        "oneOf": list(components.values()),
        "discriminator": {
            "propertyName": "kind",
            "mapping": {name: component["$ref"] for name, component in components.items()},
        },
    }
