"""Dialogs of the buttons that redrive and dismiss dead runs."""

from typing import Any

from django import forms
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from jobs.admin.buttons import ReasonDialog
from jobs.admin.forms.inputs import ObjectField
from runs.admin.list_filters import as_uuid
from runs.models import DeadLetter
from runs.services import dead_letters
from runs.services.dead_letters import MAX_COUNTED
from runs.services.redrives import MAX_PACE

DEFAULT_PACE = 60


class InputField(ObjectField):
    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)


class DeadLetterDialog(ReasonDialog):
    form_before_template = "runs/dead_letter_dialog.html"

    def get_before_template_context(self, request: Any, object_id: Any = None) -> dict[str, Any]:
        letter = DeadLetter.objects.filter(pk=as_uuid(str(object_id))).first()
        return {"what": self.describe(letter) if letter else ""}

    def describe(self, letter: DeadLetter) -> str:
        return f"{letter.error_type}: {letter.error_line}"


class RedriveDialog(DeadLetterDialog):
    input = InputField(
        required=False,
        label="New input",
        help_text='Such as {"args": [1], "kwargs": {}}. Empty: the input of the dead run.',
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "spellcheck": "false", "class": "font-mono"}),
    )
    field_order: Any = ("input", "reason")


class RedriveGroupDialog(RedriveDialog):
    per_minute = forms.IntegerField(
        label="Runs per minute",
        initial=DEFAULT_PACE,
        min_value=1,
        max_value=MAX_PACE,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text="Start slowly: the service they call has just recovered.",
    )
    field_order = ("per_minute", "input", "reason")

    def describe(self, letter: DeadLetter) -> str:
        return f"{size_of(letter)} of {super().describe(letter)}"


class DismissDialog(DeadLetterDialog):
    reason = forms.CharField(
        label="Note",
        max_length=500,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Why it is not run again, for those who read it later.",
    )


class DismissGroupDialog(DismissDialog):
    def describe(self, letter: DeadLetter) -> str:
        return f"{size_of(letter)} of {super().describe(letter)}"


def size_of(letter: DeadLetter) -> str:
    found = dead_letters.groups([letter.tenant_id], letter.fingerprint)
    return (
        f"{counted(found[0].size)} dead {'run' if found[0].size == 1 else 'runs'}"
        if found
        else "no dead runs"
    )


def counted(count: int) -> str:
    return f"{count:,} or more" if count >= MAX_COUNTED else f"{count:,}"
