"""Pauses and blackouts in OpenAPI."""

from typing import Any

from jobs.api.operations import (
    IDEMPOTENCY_KEY,
    INSTANT,
    MAYBE_INSTANT,
    PAGING,
    Decorator,
    number,
    obj,
    operation,
    page_of,
    query,
    ref,
    text,
)
from jobs.models import StopKind
from jobs.stops import EFFECT_HINTS, EFFECTS, LONGEST_NOTE, STATES


def _given(kind: StopKind) -> dict[str, Any]:
    effects = [effect.value for effect in EFFECTS[kind]]
    meanings = "; ".join(f"{effect.value}: {EFFECT_HINTS[effect]}" for effect in EFFECTS[kind])
    return {
        "tag": text("`name:value`, or `name` for every value.", nullable=True),
        "pool": text("Your jobs in this pool.", nullable=True),
        "everything": {"type": "boolean", "description": "All of your jobs; instead of tag and pool."},
        "effect": text(f"{meanings}.", enum=effects, default=effects[0]),
        "note": text("Shown wherever it stops something.", maxLength=LONGEST_NOTE),
        "begins_at": {**INSTANT, "description": "Now, unless it is given."},
        "ends_at": INSTANT if kind == StopKind.BLACKOUT else MAYBE_INSTANT,
    }


def _components(kind: StopKind, name: str) -> dict[str, Any]:
    given = _given(kind)
    required = ("ends_at",) if kind == StopKind.BLACKOUT else ()
    shown = {
        "id": number(),
        **given,
        "concerns": text("In words."),
        "state": text(enum=list(STATES)),
        "lifted_at": MAYBE_INSTANT,
        "lifted_by": text(),
        "created_by": text(),
        "created_at": INSTANT,
        "own": {"type": "boolean", "description": "False: of the platform, to look at only."},
        "links": obj({"self": text()}),
    }
    return {
        f"New{name}": obj(given, required=required, additionalProperties=False),
        f"{name}Changes": obj(
            given,
            additionalProperties=False,
            description="Before it begins anything; from then on `ends_at` and `note`.",
        ),
        name: obj(shown),
    }


COMPONENTS = {**_components(StopKind.PAUSE, "Pause"), **_components(StopKind.BLACKOUT, "Blackout")}
STATE = query("state", "The state.", enum=list(STATES))


def _list(kind: str) -> Decorator:
    return operation(
        f"list_{kind}s",
        f"{kind.capitalize()}s of your jobs, newest first",
        tag=f"{kind}s",
        gives=page_of(kind.capitalize()),
        errors=(400,),
        parameters=(STATE, *PAGING),
        about="Your own, and those of the platform that concern your jobs.",
    )


def _create(kind: str, summary: str, about: str) -> Decorator:
    return operation(
        f"create_{kind}",
        summary,
        tag=f"{kind}s",
        takes=ref(f"New{kind.capitalize()}"),
        gives=ref(kind.capitalize()),
        status=201,
        errors=(400, 409, 422),
        parameters=(IDEMPOTENCY_KEY,),
        about=f"{about} It concerns every job of yours that fits all that it names. Several may overlap.",
    )


def _read(kind: str) -> Decorator:
    name = kind.capitalize()
    return operation(f"read_{kind}", f"One {kind}", tag=f"{kind}s", gives=ref(name), errors=(404,))


def _edit(kind: str) -> Decorator:
    return operation(
        f"edit_{kind}",
        f"Change a {kind}",
        tag=f"{kind}s",
        takes=ref(f"{kind.capitalize()}Changes"),
        gives=ref(kind.capitalize()),
        errors=(400, 404, 409),
    )


def _delete(kind: str) -> Decorator:
    return operation(
        f"delete_{kind}",
        f"Delete a {kind} that has not begun",
        tag=f"{kind}s",
        status=204,
        errors=(404, 409),
        about="One that has begun is lifted instead.",
    )


def _lift(kind: str) -> Decorator:
    return operation(
        f"lift_{kind}",
        f"End a {kind} now",
        tag=f"{kind}s",
        takes=ref("Reason"),
        gives=ref(kind.capitalize()),
        errors=(400, 404),
        about="Doing it twice changes nothing the second time.",
    )


list_pauses, list_blackouts = _list("pause"), _list("blackout")
create_pause = _create(
    "pause",
    "Pause jobs",
    "Nothing of them is handed over; what runs goes on. With `ends_at` they go on by themselves.",
)
create_blackout = _create(
    "blackout", "Black out a time", "What is planned in it is skipped, held or made up for."
)
read_pause, read_blackout = _read("pause"), _read("blackout")
edit_pause, edit_blackout = _edit("pause"), _edit("blackout")
delete_pause, delete_blackout = _delete("pause"), _delete("blackout")
lift_pause, lift_blackout = _lift("pause"), _lift("blackout")
