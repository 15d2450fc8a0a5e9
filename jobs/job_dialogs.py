"""What the admin asks before a job is paused or resumed, and before one of its planned times is changed."""

from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.functional import cached_property
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from jobs import instants
from jobs.catch_up_spec import CATCH_UP_POLICIES
from jobs.database_clock import database_now
from jobs.forecast import Ahead, look_ahead
from jobs.instants import as_text
from jobs.missed import Missed, missed_so_far
from jobs.models import Job
from jobs.refusals import InvalidInput, Refused
from jobs.staff import ReasonDialog, sentence

TIMES_OFFERED = 20
RESULTS = {
    "skip": "nothing is run for them",
    "last": "the last of them runs",
    "all": "each of them runs, paced",
}


class InstantField(forms.CharField):
    def __init__(self, help_text: str, **kwargs: Any) -> None:
        widget = UnfoldAdminTextInputWidget(attrs={"placeholder": "2026-11-18T12:00:00Z"})
        super().__init__(required=False, widget=widget, help_text=help_text, **kwargs)

    def clean(self, value: Any) -> datetime | None:
        text = super().clean(value)
        try:
            return instants.read(text, "") if text else None
        except InvalidInput as invalid:
            raise ValidationError(f"{sentence(invalid.detail)} ({invalid.hint})") from None


class OfJob(ReasonDialog):
    """The button has made sure that the job is there, and that this person may change it."""

    object_id: Any

    @cached_property
    def job(self) -> Job:
        return Job.objects.select_related("pool", "clock").get(pk=self.object_id)


class PauseDialog(OfJob):
    until = InstantField("It goes on by itself then. Empty: when somebody resumes it.")
    field_order = ("reason", "until")


class ResumeDialog(OfJob):
    form_before_template = "jobs/missed.html"
    catch_up = forms.ChoiceField(
        label="Missed times", required=False, choices=[], widget=UnfoldAdminSelectWidget()
    )
    field_order = ("catch_up", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        policy = self.job.spec.catch_up["policy"]
        field = self.fields["catch_up"]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
        field.choices = [
            ("", f"as the job says, {policy}: {RESULTS[policy]}"),
            *(
                (name, f"{name}, for this once: {RESULTS[name]}")
                for name in CATCH_UP_POLICIES
                if name != policy
            ),
        ]

    def get_before_template_context(self, request: Any, object_id: Any = None) -> dict[str, Any]:
        return {"missed": missed_in_words(missed_so_far(self.job, self.job.spec, database_now()))}


class TimeDialog(OfJob):
    planned_at = forms.ChoiceField(label="Planned time (UTC)", choices=[], widget=UnfoldAdminSelectWidget())
    what = forms.ChoiceField(
        label="What",
        choices=[("skip", "skip it"), ("move", "move it"), ("restore", "leave it as the schedule has it")],
        widget=UnfoldAdminSelectWidget(),
    )
    move_to = InstantField("Where to, if it is moved.", label="Move to")
    field_order = ("planned_at", "what", "move_to", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["planned_at"]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
        field.choices = [
            (as_text(one.planned_at), in_a_line(one)) for one in ahead_of(self.job, TIMES_OFFERED)
        ]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if given.get("what") == "move" and not given.get("move_to") and "move_to" not in self.errors:
            self.add_error("move_to", "Say when it shall run instead.")
        return given


def ahead_of(job: Job, number: int) -> list[Ahead]:
    """Nothing, when the schedule cannot be read any more."""
    try:
        return look_ahead(job, job.spec, database_now(), number)
    except Refused:
        return []


def in_a_line(one: Ahead) -> str:
    words = f" ({one.in_words})" if one.in_words else ""
    return f"{one.planned_at:%a %-d %b %Y %H:%M:%S}{words}"


def missed_in_words(missed: Missed | None) -> str:
    if missed is None:
        return "It has missed no planned time."
    times = f"{missed.count:,} planned {'time' if missed.count == 1 else 'times'}"
    more = "" if missed.exact else "more than "
    runs = f"{missed.runs:,} {'run' if missed.runs == 1 else 'runs'}"
    span = f"from {missed.from_at:%-d %b %H:%M:%S} to {missed.to_at:%-d %b %H:%M:%S} UTC"
    return f"It has missed {more}{times}, {span}. Its policy {missed.policy} makes {runs} for them."
