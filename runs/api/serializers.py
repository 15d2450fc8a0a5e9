"""Define the fields that answers about runs share."""

from typing import Any

from rest_framework import serializers

from jobs.api.serializers import PlainField
from jobs.validation.checks import Json
from jobs.validation.schema import Schema, obj, text
from runs.models import ErrorClass
from runs.reasons import Reason, code_of, describe

ABOUT_REASON = (
    "Why it is held back, ended or never ran, as a code; empty: nothing to say. Codes: "
    + ", ".join(f"`{reason.value}` ({reason.label})" for reason in Reason)
    + "."
)
ABOUT_REASON_TEXT = "The same in words, with the note of the person or program that caused it."
ERROR = obj(
    {
        "class": text(enum=list(ErrorClass.values)),
        "type": text(),
        "line": text(),
        "fingerprint": text("The same for the same mistake."),
    },
    nullable=True,
)


class ReasonCodeField(serializers.CharField):
    def __init__(self) -> None:
        super().__init__(help_text=ABOUT_REASON)

    def to_representation(self, value: Any) -> str:
        return code_of(value)


class ReasonTextField(serializers.CharField):
    def __init__(self) -> None:
        super().__init__(source="reason", help_text=ABOUT_REASON_TEXT)

    def to_representation(self, value: Any) -> str:
        return describe(value)


class ErrorField(PlainField):
    """Write the error of a row."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, source="*")

    def to_representation(self, value: Any) -> Any:
        return {"class": value.error_class, "type": value.error_type, "line": value.error_line}


class EndErrorField(ErrorField):
    """Write the error of a run or an attempt; null if there is none."""

    def to_representation(self, value: Any) -> Json | None:
        error = {**super().to_representation(value), "fingerprint": value.fingerprint}
        return error if value.error_class else None
