"""What a code base declares beside what the platform has: added, changed, removed, drifted. Pure comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Spec = Mapping[str, Any]

# Within these the platform keeps more than was said, and a later release may keep more than an earlier one wrote down.
FILLED_UP = ("retry", "catch_up", "breaker")
# A pause is what operations do with jobs; it changes nothing that was declared.
NO_DRIFT = ("active", "paused", "finished")


@dataclass(frozen=True)
class Declared:
    """A declared job as the platform has it."""

    name: str
    pool: str
    source: str
    spec: dict[str, Any]
    # What the job was when this had been applied, and what it is now; None: not applied yet, or there is no job.
    applied: dict[str, Any] | None = None
    present: dict[str, Any] | None = None
    status: str = ""
    error: str = ""
    waiting: bool = False
    withdrawn: bool = False
    edited_by: str = ""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Declared:
        """Of a row or an answer; what a later platform adds is left out."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__ if name in row})


@dataclass(frozen=True)
class Difference:
    field: str
    before: Any
    after: Any

    def as_json(self) -> dict[str, Any]:
        return {"field": self.field, "before": self.before, "after": self.after}

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.before)} -> {_shown(self.after)}"


class Kind(str, Enum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    UNCHANGED = "unchanged"


SIGNS = {Kind.ADDED: "+", Kind.CHANGED: "~", Kind.REMOVED: "-", Kind.UNCHANGED: " "}


@dataclass(frozen=True)
class Change:
    """What applying would do to one job. `drift` is what somebody changed by hand since."""

    kind: Kind
    name: str
    differences: list[Difference] = field(default_factory=list)
    drift: list[Difference] = field(default_factory=list)
    edited_by: str = ""
    error: str = ""

    @property
    def to_apply(self) -> bool:
        return self.kind in (Kind.ADDED, Kind.CHANGED) or bool(self.drift) or bool(self.error)

    @property
    def tells(self) -> bool:
        return self.kind != Kind.UNCHANGED or bool(self.drift) or bool(self.error)

    def lines(self) -> list[str]:
        """The job with its sign, and below it what there is to say of it."""
        by = f" by {self.edited_by}" if self.edited_by else ""
        removed = "   no longer declared: apply --prune cancels it" if self.kind == Kind.REMOVED else ""
        return [
            f"{SIGNS[self.kind]} {self.name}{removed}",
            *(f"    {difference}" for difference in self.differences),
            *([f"    was refused: {self.error}"] if self.error else []),
            *(f"    edited by hand{by}: {difference}" for difference in self.drift),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "change": self.kind.value,
            "name": self.name,
            "differences": [one.as_json() for one in self.differences],
            "drift": [one.as_json() for one in self.drift],
            "edited_by": self.edited_by or None,
            "error": self.error or None,
        }


def summary(changes: Sequence[Change]) -> str:
    count = {kind: sum(change.kind == kind for change in changes) for kind in Kind}
    drifted = sum(bool(change.drift) for change in changes)
    return (
        f"{count[Kind.ADDED]} to add, {count[Kind.CHANGED]} to change, {count[Kind.REMOVED]} no longer declared, "
        f"{drifted} drifted, {count[Kind.UNCHANGED]} unchanged."
    )


def plan(wanted: Sequence[Spec], known: Iterable[Declared], *, pool: str, source: str) -> list[Change]:
    """By name. Only what this code base declared before can be removed by it. No pool: the platform knows which."""
    before = {declared.name: declared for declared in known}
    changes = [_change(spec, before.get(str(spec["name"])), pool) for spec in wanted]
    names = {change.name for change in changes}
    gone = [
        Change(Kind.REMOVED, declared.name)
        for declared in before.values()
        if declared.source == source
        and declared.pool == (pool or declared.pool)
        and declared.name not in names
        and not declared.withdrawn
    ]
    return sorted(changes + gone, key=lambda change: change.name)


def _change(spec: Spec, known: Declared | None, pool: str) -> Change:
    name = str(spec["name"])
    if known is None or known.withdrawn:
        return Change(Kind.ADDED, name)
    now = {**said(spec), "pool": pool or known.pool}
    differences = compare({**said(known.spec), "pool": known.pool}, now)
    drift = [] if known.waiting else drift_of(known)
    kind = Kind.CHANGED if differences else Kind.UNCHANGED
    return Change(kind, name, differences, drift, known.edited_by if drift else "", known.error)


def drift_of(declared: Declared) -> list[Difference]:
    """What differs from what was applied; nothing while it waits to be applied, or was refused."""
    if declared.withdrawn or declared.applied is None:
        return []
    if declared.present is None:
        return [Difference("job", "present", "deleted")]
    drift = compare(_without_version(declared.applied), _without_version(declared.present), filled_up=True)
    if declared.status not in NO_DRIFT:
        drift.append(Difference("status", "active", declared.status))
    return drift


def _without_version(facts: Spec) -> dict[str, Any]:
    """Another version alone says nothing: an edit may have been taken back."""
    return {name: value for name, value in facts.items() if name != "version"}


def said(spec: Spec) -> dict[str, Any]:
    """Of a declaration what is compared: not what names it."""
    return {key: value for key, value in spec.items() if key not in ("name", "source")}


def compare(before: Spec, after: Spec, *, filled_up: bool = False) -> list[Difference]:
    """Field by field, `retry.max_attempts` by itself. What only one of them says is None in the other."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if filled_up and name not in before:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            partly = filled_up and name in FILLED_UP
            found += [
                Difference(f"{name}.{inner.field}", inner.before, inner.after)
                for inner in compare(old, new, filled_up=partly)
            ]
        elif old != new:
            found.append(Difference(name, old, new))
    return found


def _shown(value: Any) -> str:
    return "(default)" if value is None else json.dumps(value, ensure_ascii=False)
