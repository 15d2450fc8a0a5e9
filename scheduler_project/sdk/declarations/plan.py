"""Compare what a code base declares with what the platform has: added, changed, removed, drifted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from .job_options import FIELDS

Spec = Mapping[str, Any]

# Within these the platform adds defaults, and a later release may add more than an earlier one stored.
FILLED_UP = [name for name, field in FIELDS.items() if field.filled_up]
# Operators pause jobs; a pause changes nothing that was declared.
NO_DRIFT = ("active", "paused", "finished")


@dataclass(frozen=True)
class DeclaredJob:
    """A declared job as the platform has it."""

    name: str
    pool: str
    source: str
    spec: dict[str, Any]
    # The job right after this was applied, and as it is now; None: not applied yet, or there is no job.
    applied: dict[str, Any] | None = None
    present: dict[str, Any] | None = None
    status: str = ""
    error: str = ""
    waiting: bool = False
    withdrawn: bool = False
    edited_by: str = ""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> DeclaredJob:
        """Read a row or an answer; fields that a later platform adds are left out."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__ if name in row})


@dataclass(frozen=True)
class FieldDifference:
    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.field}: {_describe(self.before)} -> {_describe(self.after)}"


class ChangeKind(str, Enum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    UNCHANGED = "unchanged"


SIGNS = {ChangeKind.ADDED: "+", ChangeKind.CHANGED: "~", ChangeKind.REMOVED: "-", ChangeKind.UNCHANGED: " "}


@dataclass(frozen=True)
class PlannedChange:
    """What applying would do to one job; `drift` lists what was changed by hand since."""

    kind: ChangeKind
    name: str
    differences: list[FieldDifference] = field(default_factory=list)
    drift: list[FieldDifference] = field(default_factory=list)
    edited_by: str = ""
    error: str = ""

    @property
    def to_apply(self) -> bool:
        return self.kind in (ChangeKind.ADDED, ChangeKind.CHANGED) or bool(self.drift) or bool(self.error)

    @property
    def notable(self) -> bool:
        return self.kind != ChangeKind.UNCHANGED or bool(self.drift) or bool(self.error)

    def lines(self) -> list[str]:
        """Describe the job with its sign, and its differences below it."""
        by = f" by {self.edited_by}" if self.edited_by else ""
        removed = "   no longer declared: apply --prune cancels it" if self.kind == ChangeKind.REMOVED else ""
        return [
            f"{SIGNS[self.kind]} {self.name}{removed}",
            *(f"    {difference}" for difference in self.differences),
            *([f"    was refused: {self.error}"] if self.error else []),
            *(f"    edited by hand{by}: {difference}" for difference in self.drift),
        ]

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        texts = {"edited_by": self.edited_by or None, "error": self.error or None}
        return {"change": fields.pop("kind").value, **fields, **texts}


def summary(changes: Sequence[PlannedChange]) -> str:
    count = {kind.value: sum(change.kind == kind for change in changes) for kind in ChangeKind}
    drifted = sum(bool(change.drift) for change in changes)
    return (
        f"{count['added']} to add, {count['changed']} to change, {count['removed']} no longer declared, "
        f"{drifted} drifted, {count['unchanged']} unchanged."
    )


def plan(
    declared: Sequence[Spec], known: Iterable[DeclaredJob], *, pool: str, source: str
) -> list[PlannedChange]:
    """Plan the changes, by name. A code base removes only what it declared. No pool: the platform knows which."""
    before = {one.name: one for one in known}
    changes = [_change(spec, before.get(str(spec["name"])), pool) for spec in declared]
    names = {change.name for change in changes}
    ours = [one for one in before.values() if one.source == source and one.pool == (pool or one.pool)]
    gone = [one.name for one in ours if one.name not in names and not one.withdrawn]
    changes += [PlannedChange(ChangeKind.REMOVED, name) for name in gone]
    return sorted(changes, key=lambda change: change.name)


def _change(spec: Spec, known: DeclaredJob | None, pool: str) -> PlannedChange:
    name = str(spec["name"])
    if known is None or known.withdrawn:
        return PlannedChange(ChangeKind.ADDED, name)
    now = {**compared_fields(spec), "pool": pool or known.pool}
    differences = compare({**compared_fields(known.spec), "pool": known.pool}, now)
    drift = [] if known.waiting else drift_of(known)
    kind = ChangeKind.CHANGED if differences else ChangeKind.UNCHANGED
    return PlannedChange(kind, name, differences, drift, known.edited_by if drift else "", known.error)


def drift_of(declared: DeclaredJob) -> list[FieldDifference]:
    """Compare the job with what was applied; empty while it waits to be applied or was refused."""
    if declared.withdrawn or declared.applied is None:
        return []
    if declared.present is None:
        return [FieldDifference("job", "present", "deleted")]
    # Without the version: an edit may have been undone by another.
    applied, present = _without(declared.applied, "version"), _without(declared.present, "version")
    drift = compare(applied, present, filled_up=True)
    if declared.status not in NO_DRIFT:
        drift.append(FieldDifference("status", "active", declared.status))
    return drift


def compared_fields(spec: Spec) -> dict[str, Any]:
    """Return the fields of a declaration that are compared, without those that name it."""
    return _without(spec, "name", "source")


def _without(spec: Spec, *names: str) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in names}


def compare(before: Spec, after: Spec, *, filled_up: bool = False) -> list[FieldDifference]:
    """Compare field by field, `retry.max_attempts` by itself. A field of only one of them is None in the other."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if filled_up and name not in before:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            partly = filled_up and name in FILLED_UP
            within = compare(old, new, filled_up=partly)
            found += [replace(inner, field=f"{name}.{inner.field}") for inner in within]
        elif old != new:
            found.append(FieldDifference(name, old, new))
    return found


def _describe(value: Any) -> str:
    return "(default)" if value is None else json.dumps(value, ensure_ascii=False)
