"""Dialogs of the buttons that pause and resume a job and change one of its planned times."""

from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.functional import cached_property
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from jobs.admin.buttons import ReasonDialog
from jobs.admin.html import sentence
from jobs.clock import database_now
from jobs.errors import DomainError, InvalidInput
from jobs.hooks import Missed
from jobs.models import Job
from jobs.services.missed import missed_so_far
from jobs.services.preview import Ahead, look_ahead
from jobs.spec.catch_up import CATCH_UP_POLICIES
from jobs.validation import instants
from jobs.validation.instants import as_text

TIMES_OFFERED = 20
RESULTS = {
    "skip": "none of them is run",
    "last": "the last of them is run",
    "all": "all of them are run, at a limited rate",
}


class InstantInputField(forms.CharField):
    def __init__(self, help_text: str, **kwargs: Any) -> None:
        widget = UnfoldAdminTextInputWidget(attrs={"placeholder": "2026-11-18T12:00:00Z"})
        super().__init__(required=False, widget=widget, help_text=help_text, **kwargs)

    def clean(self, value: Any) -> datetime | None:
        text = super().clean(value)
        try:
            return instants.read(text, "") if text else None
        except InvalidInput as invalid:
            raise ValidationError(f"{sentence(invalid.detail)} ({invalid.hint})") from None


class JobDialog(ReasonDialog):
    """A dialog about one job. The button has checked that the job exists and that the user may change it."""

    @cached_property
    def job(self) -> Job:
        return Job.objects.select_related("pool", "clock").get(pk=self.object_id)


class PauseDialog(JobDialog):
    until = InstantInputField("It is resumed at this time. Empty: when somebody resumes it.")
    field_order = ("reason", "until")


class ResumeDialog(JobDialog):
    form_before_template = "jobs/missed.html"
    catch_up = forms.ChoiceField(
        label="Missed times", required=False, choices=[], widget=UnfoldAdminSelectWidget()
    )
    field_order = ("catch_up", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        policy = self.job.spec.catch_up["policy"]
        others = (name for name in CATCH_UP_POLICIES if name != policy)
        self.fields["catch_up"].choices = [
            ("", f"the job's policy, {policy}: {RESULTS[policy]}"),
            *((name, f"{name}, this time only: {RESULTS[name]}") for name in others),
        ]

    def get_before_template_context(self, request: Any, object_id: Any = None) -> dict[str, Any]:
        return {"missed": describe_missed(missed_so_far(self.job, self.job.spec, database_now()))}


class TimeDialog(JobDialog):
    planned_at = forms.ChoiceField(label="Planned time (UTC)", choices=[], widget=UnfoldAdminSelectWidget())
    what = forms.ChoiceField(
        label="Change",
        choices=[("skip", "skip it"), ("move", "move it"), ("restore", "restore the scheduled time")],
        widget=UnfoldAdminSelectWidget(),
    )
    move_to = InstantInputField("The new time, if it is moved.", label="Move to")
    field_order = ("planned_at", "what", "move_to", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        times = ahead_of(self.job, TIMES_OFFERED)
        self.fields["planned_at"].choices = [(as_text(one.planned_at), in_a_line(one)) for one in times]

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        if given.get("what") == "move" and not given.get("move_to") and "move_to" not in self.errors:
            self.add_error("move_to", "Enter the new time.")
        return given


def ahead_of(job: Job, number: int) -> list[Ahead]:
    """Return the next planned times, none if the schedule is not readable any more."""
    try:
        return look_ahead(job, job.spec, database_now(), number)
    except DomainError:
        return []


def in_a_line(one: Ahead) -> str:
    words = f" ({one.description})" if one.description else ""
    return f"{one.planned_at:%a %-d %b %Y %H:%M:%S}{words}"


def describe_missed(missed: Missed | None) -> str:
    if missed is None:
        return "No planned time was missed."
    times = f"{missed.count:,} planned {'time' if missed.count == 1 else 'times'}"
    more = "" if missed.exact else "more than "
    runs = f"{missed.runs:,} {'run' if missed.runs == 1 else 'runs'}"
    span = f"from {missed.first_at:%-d %b %H:%M:%S} to {missed.last_at:%-d %b %H:%M:%S} UTC"
    return f"Missed {more}{times}, {span}. The catch-up policy {missed.policy} creates {runs} for them."
