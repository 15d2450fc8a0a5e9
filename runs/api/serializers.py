"""Define the fields that answers about runs share."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from rest_framework import serializers

from auditlog.redaction import redact
from jobs.api.jobs import sees_secrets
from jobs.api.serializers import PlainField
from jobs.validation.checks import Json
from jobs.validation.schema import Schema, obj, ref, text
from runs.models import ErrorClass, Run
from runs.reasons import Reason, code_of, describe
from runs.services.explain import live_rows, note_waiting
from runs.states import FinalState, LiveState

STATES = (*LiveState.values, *FinalState.values)
ABOUT_REASON = (
    "Why it waits, is held back, ended or never ran, as a code; empty: nothing to say. Codes: "
    + ", ".join(f"`{reason.value}` ({reason.label})" for reason in Reason)
    + "."
)
ABOUT_REASON_TEXT = "The same in words, with what the person or program that caused it gave as reason."
ERROR = obj(
    {
        "class": text(enum=list(ErrorClass.values)),
        "type": text(),
        "line": text(),
        "fingerprint": text("The same for the same mistake."),
    },
    title="EndError",
    nullable=True,
)


# Of requests; an answer shows what was stored.
RUN_INPUT = {"allOf": [ref("RunInput")], "nullable": True}


class RunInputField(PlainField):
    """Write the input of a run, for those who may not write targets without the values of secret names."""

    def to_representation(self, value: Any) -> Any:
        return value if sees_secrets(self.context["request"]) else redact(value)


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


class RunStateSerializer(serializers.Serializer[Run]):
    id = serializers.UUIDField()
    state = PlainField(text(enum=list(STATES)), source="current_state")
    reason = serializers.SerializerMethodField(help_text=ABOUT_REASON)
    reason_text = serializers.SerializerMethodField(help_text=ABOUT_REASON_TEXT)

    @cached_property
    def _writers(self) -> list[tuple[str, Callable[[Run], Any], Callable[[Any], Any]]]:
        return [(name, field.get_attribute, field.to_representation) for name, field in self.fields.items()]

    def to_representation(self, run: Run) -> Json:
        """Write each field as the framework does, with the list of fields made once."""
        # A list notes it for all of its page at once.
        if self.parent is None:
            note_waiting(live_rows([run]))
        read = ((name, read(run), write) for name, read, write in self._writers)
        return {name: None if value is None else write(value) for name, value, write in read}

    def get_reason(self, run: Run) -> str:
        live = run.live_or_none
        return code_of(live.cancel_reason or live.waits_for or live.reason if live else run.reason)

    def get_reason_text(self, run: Run) -> str:
        live = run.live_or_none
        return live.describe_reason() if live else describe(run.reason)


class ErrorField(PlainField):
    """Write the error of a row."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, source="*")

    def to_representation(self, value: Any) -> Any:
        return {"class": value.error_class, "type": value.error_type, "line": value.error_line}


class EndErrorField(ErrorField):
    """Write the error of a run or an attempt; null if there is none."""

    def to_representation(self, value: Any) -> Json | None:
        # What was cancelled before it failed has a class by which it is found, and no error.
        cancelled_alone = value.error_class == ErrorClass.CANCELLED and not value.error_type
        if not value.error_class or cancelled_alone:
            return None
        return {**super().to_representation(value), "fingerprint": value.fingerprint}
