"""Kinds of targets that a job may have. Each is one object in a file of its own."""

from itertools import islice

from jobs.errors import MAX_ERRORS, FieldError, InvalidInput, refuse_any
from jobs.spec.targets.celery import CeleryKind
from jobs.spec.targets.command import CommandKind
from jobs.spec.targets.http import HttpKind
from jobs.spec.targets.kind import TargetKind
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, refuse_large, refuse_unknown

KINDS: dict[str, TargetKind] = {kind.name: kind for kind in (CeleryKind(), HttpKind(), CommandKind())}


def read_target(value: object) -> Json:
    given = expect_object(value, "target")
    hint = f"one of {', '.join(KINDS)}"
    if "kind" not in given:
        other = next(
            (other for other, said in given.items() if isinstance(said, str) and said in KINDS), None
        )
        instead = f'"kind": "{given[other]}" instead of {abbreviate(other)}' if other else hint
        raise invalid("target.kind", "kind is required", instead, "required")
    name = given["kind"]
    if not isinstance(name, str) or name not in KINDS:
        raise invalid("target.kind", f"{abbreviate(name)} is not a kind of target", hint)
    refuse_unknown(given, ("kind", *KINDS[name].properties), "target")
    target = {"kind": name, **KINDS[name].read(given)}
    refuse_large(target, "target")
    return target


def check_input(given: Json, target: Json) -> None:
    """Refuse an input that a run of this stored target would not use."""
    kind = kind_of(target)
    unknown = (name for name in given if name not in kind.input_properties)
    detail = f"is no input for {kind.name} targets"
    hint = f"allowed are {', '.join(kind.input_properties)}" if kind.input_properties else "leave it out"
    refuse_any(
        [
            FieldError(f"input.{name[:60]}", f"{abbreviate(name)} {detail}", hint, "unknown_field")
            for name in islice(unknown, MAX_ERRORS)
        ]
    )
    kind.check_input(given, target)


def check_input_of_any_kind(given: Json) -> None:
    """Refuse an input that no kind of target takes, where it is not known which one would get it."""
    refusals = []
    for name in KINDS:
        try:
            return check_input(given, {"kind": name})
        except InvalidInput as refusal:
            refusals.append(refusal)
    # The kind whose names they are says best what is wrong.
    raise min(refusals, key=lambda refusal: refusal.code == "unknown_field")


def kind_of(target: Json) -> TargetKind:
    """Find the kind of a stored target."""
    return KINDS[target["kind"]]


def target_key(target: Json) -> str:
    return kind_of(target).key(target)
