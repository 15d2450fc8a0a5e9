"""Build the inputs of the job form from the rows of jobs/spec/fields.py."""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from auditlog.redaction import MASK
from jobs.admin.forms.base import choice, line, number
from jobs.spec.field_types import Field, Input, InputKind
from jobs.spec.targets import KINDS
from jobs.validation.checks import unstorable

INSTANT = "2026-11-18T12:00:00Z"
# Added to the help of each input of the kind.
HELP = {
    InputKind.DURATION: "Seconds, or such as PT30S, PT1H, P1D.",
    InputKind.INSTANT: f"Such as {INSTANT}.",
    InputKind.NAMES: (
        "Such as ValueError, payments.errors.CardDeclined, HTTP 404, HTTP 5xx, exit 3; with commas between."
    ),
    InputKind.CODE: "<br>".join(
        [
            "One of " + ",<br>".join(f"<code>{kind.example}</code>" for kind in KINDS.values()) + ".",
            "More fields (signature, redirects, callback, limits …) are in docs/reference/targets.md.",
            f"A value shown as {MASK} is kept as it is, as long as the target goes to the same place.",
        ]
    ),
}


class ObjectField(forms.JSONField):
    """Edit a JSON object with a line for each of its names."""

    def to_python(self, value: Any) -> Any:
        try:
            found = super().to_python(value)
        except (ValueError, RecursionError):
            raise ValidationError(self.error_messages["invalid"], "invalid", {"value": value}) from None
        for error in unstorable(found):
            raise ValidationError(f"{error.field}: {error.detail}".removeprefix(": "))
        return found

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Show text that cannot be read as it was written."""
        try:
            self.to_python(data)
        except ValidationError:
            return InvalidJSONInput(data)
        return super().bound_data(data, initial)

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return super().prepare_value(value)
        names = sorted(value, key=lambda name: name != "kind")
        lines = [f"  {_compact(name)}: {_compact(value[name])}" for name in names]
        return "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"


def form_field(one: Input, *, required: bool) -> Any:
    help_text = f"{one.help} {HELP.get(one.kind, '')}".strip()
    match one.kind:
        case InputKind.NUMBER:
            return number(help_text, label=one.label)
        case InputKind.CHOICE:
            return choice(one.choices, help_text, label=one.label)
        case InputKind.NAME:
            # The service judges spaces at the ends.
            return forms.CharField(strip=False, widget=UnfoldAdminTextInputWidget())
        case InputKind.AREA:
            area = UnfoldAdminTextareaWidget(attrs={"rows": 2})
            return forms.CharField(required=required, help_text=help_text, widget=area)
        case InputKind.OBJECT | InputKind.CODE:
            code = {"rows": 8, "class": "font-mono"} if one.kind == InputKind.CODE else {"rows": 2}
            area = UnfoldAdminTextareaWidget(attrs={**code, "spellcheck": "false"})
            return ObjectField(required=required, help_text=help_text, widget=area)
    placeholder = one.placeholder or (INSTANT if one.kind == InputKind.INSTANT else "")
    return line(help_text, label=one.label, placeholder=placeholder)


def show(one: Input, part: Any) -> Any:
    """Turn a part of a value into what its input shows."""
    return ", ".join(part) if one.kind == InputKind.NAMES else part


def read(one: Input, given: Any) -> Any:
    """Turn what was typed into a part of a request."""
    if one.kind == InputKind.NAMES:
        return [name.strip() for name in given.split(",") if name.strip()]
    if one.kind == InputKind.OBJECT:
        return given or {}
    if one.kind == InputKind.MODEL:
        return given.slug if given else given
    if one.kind == InputKind.DURATION:
        with suppress(ValueError):
            return float(given)
    return given


def layout(fields: Iterable[Field], section: str) -> list[str | tuple[str, ...]]:
    """Arrange the inputs of a section in rows."""
    rows: list[list[str]] = []
    for one in (one for field in fields if field.section == section for one in field.inputs):
        row = next((row for row in rows if one.beside in row), None)
        if row is None:
            rows.append([one.name])
        else:
            row.append(one.name)
    return [tuple(row) if len(row) > 1 else row[0] for row in rows]


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
