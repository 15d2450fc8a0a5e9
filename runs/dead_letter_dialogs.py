"""What is asked before dead runs are redriven or dismissed."""

from typing import Any

from django import forms
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from jobs.job_form import ObjectField
from jobs.staff import ReasonDialog
from runs import dead_letters
from runs.dead_letters import Group
from runs.models import DeadLetter
from runs.redrives import FASTEST
from runs.run_lists import as_uuid

DEFAULT_PACE = 60


class InputField(ObjectField):
    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)


class OfLetter(ReasonDialog):
    object_id: Any
    form_before_template = "runs/dead_letter_dialog.html"

    def get_before_template_context(self, request: Any, object_id: Any = None) -> dict[str, Any]:
        letter = DeadLetter.objects.filter(pk=as_uuid(str(object_id))).first()
        return {"what": self.what(letter) if letter else ""}

    def what(self, letter: DeadLetter) -> str:
        return f"{letter.error_type}: {letter.error_line}"


class RedriveDialog(OfLetter):
    input = InputField(
        required=False,
        label="Another input",
        help_text='Such as {"args": [1], "kwargs": {}}. Empty: what the dead run was given.',
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "spellcheck": "false", "class": "font-mono"}),
    )
    field_order: Any = ("input", "reason")


class RedriveGroupDialog(RedriveDialog):
    per_minute = forms.IntegerField(
        label="Runs a minute",
        initial=DEFAULT_PACE,
        min_value=1,
        max_value=FASTEST,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text="Slowly at first: what they call has just been in trouble.",
    )
    field_order = ("per_minute", "input", "reason")

    def what(self, letter: DeadLetter) -> str:
        return f"{size_of(letter)} of {super().what(letter)}"


class DismissDialog(OfLetter):
    reason = forms.CharField(
        label="Note",
        max_length=500,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Why nothing is to be run for it; whoever comes across it later wants to know.",
    )


class DismissGroupDialog(DismissDialog):
    def what(self, letter: DeadLetter) -> str:
        return f"{size_of(letter)} of {super().what(letter)}"


def size_of(letter: DeadLetter) -> str:
    found = dead_letters.groups([letter.tenant_id], letter.fingerprint)
    return f"{counted(found[0])} dead {'run' if found[0].size == 1 else 'runs'}" if found else "no dead runs"


def counted(group: Group) -> str:
    return f"{group.size:,} or more" if group.more else f"{group.size:,}"
