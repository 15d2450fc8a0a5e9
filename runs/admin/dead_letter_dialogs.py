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
from jobs.spec.targets import KINDS
from jobs.validation.checks import MAX_REASON
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
    of_group = False

    def get_before_template_context(self, request: Any, object_id: Any = None) -> dict[str, Any]:
        letter = DeadLetter.objects.filter(pk=as_uuid(str(object_id))).first()
        if letter is None:
            return {"what": ""}
        group = f"{size_of(letter)} of " if self.of_group else ""
        return {"what": f"{group}{letter.error_type}: {letter.error_line}"}


class RedriveDialog(DeadLetterDialog):
    input = InputField(
        required=False,
        label="New input",
        help_text="By the kind of the target: "
        + "; ".join(f"{kind.name}: {', '.join(kind.input_properties)}" for kind in KINDS.values())
        + '. Such as {"args": [1]}. Empty: the input of the dead run.',
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "spellcheck": "false", "class": "font-mono"}),
    )
    field_order: Any = ("input", "reason")


class RedriveGroupDialog(RedriveDialog):
    of_group = True
    per_minute = forms.IntegerField(
        label="Runs per minute",
        initial=DEFAULT_PACE,
        min_value=1,
        max_value=MAX_PACE,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text="Start slowly: the service they call has just recovered.",
    )
    field_order = ("per_minute", "input", "reason")


class DismissDialog(DeadLetterDialog):
    reason = forms.CharField(
        label="Reason",
        max_length=MAX_REASON,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Why it is not run again, for those who read it later.",
    )


class DismissGroupDialog(DismissDialog):
    of_group = True


def size_of(letter: DeadLetter) -> str:
    for group in dead_letters.groups([letter.tenant_id], letter.fingerprint):
        return f"{counted(group.size)} dead {'run' if group.size == 1 else 'runs'}"
    return "no dead runs"


def counted(count: int) -> str:
    return f"{count:,} or more" if count >= MAX_COUNTED else f"{count:,}"
