"""Edit a job in a form. Its inputs follow from the job's fields; the service alone judges what was typed."""

from typing import Any

from django import forms

from auditlog.redaction import redact
from jobs.admin.forms import inputs
from jobs.admin.forms.base import ServiceForm, error_text
from jobs.admin.forms.masked_target import unmasked
from jobs.errors import FieldError
from jobs.models import Job, JobVersion
from jobs.services.definition import create_job, edit_job
from jobs.services.locking import edition
from jobs.spec.field_types import InputKind
from jobs.spec.fields import FIELDS, stored
from jobs.validation.checks import Json

# The inputs that make up each field, by their names.
PARTS = {name: tuple(one.name for one in field.inputs) for name, field in FIELDS.items()}
CONDITIONS = {one.name: one.only_when for field in FIELDS.values() for one in field.inputs if one.only_when}


class JobForm(ServiceForm):
    # The edition of the job the form was filled from: saving a stale one would undo what others changed.
    seen = forms.CharField(required=False, widget=forms.HiddenInput())

    class Meta:
        model = Job
        fields = ("tenant", "pool")

    spec: JobVersion | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        job = kwargs.get("instance")
        self.spec = job.spec if job else None
        kwargs["initial"] = {**initial(job, self.spec), **(kwargs.get("initial") or {})}
        super().__init__(*args, **kwargs)

    def field_for(self, error: FieldError) -> tuple[str | None, str]:
        return at_field(error, self.fields)

    def call_service(self) -> Job:
        if self.spec is None:
            return create_job(self.cleaned_data["tenant"], {name: self._value(name) for name in FIELDS})
        changed = [name for name, parts in PARTS.items() if any(part in self.changed_data for part in parts)]
        data = {name: self._value(name) for name in changed}
        return edit_job(self.instance, data, seen=[self.cleaned_data["seen"]])

    def _value(self, name: str) -> Any:
        field, given = FIELDS[name], self.cleaned_data
        value = field.join({field.part_of(one): inputs.read(one, given[one.name]) for one in field.inputs})
        if field.redacted:
            return unmasked(value, stored(field, self.instance, self.spec) if self.spec else None)
        return value


JobForm.declared_fields |= {
    one.name: inputs.form_field(one, required=field.required)
    for field in FIELDS.values()
    for one in field.inputs
    if one.kind != InputKind.MODEL
}


def initial(job: Job | None, spec: JobVersion | None) -> Json:
    """Fill the form with a job, or with what a new one should have."""
    found: Json = {"seen": edition(job) if job else ""}
    for field in FIELDS.values():
        if job is None or spec is None:
            value = field.default if field.suggested is None else field.suggested
        else:
            value = field.as_json(stored(field, job, spec))
        parts = field.split(redact(value) if field.redacted else value)
        for one in field.inputs:
            if one.kind != InputKind.MODEL and field.part_of(one) in parts:
                found[one.name] = inputs.show(one, parts[field.part_of(one)])
    return found


def at_field(error: FieldError, fields: Any) -> tuple[str | None, str]:
    """Find the input for a path of the spec such as `retry.base`, and the text to show there."""
    message = error_text(error)
    whole, _, part = error.field.partition(".")
    inner, _, innermost = part.partition(".")
    for name in (f"{whole}_{part}", part, innermost, inner, whole, PARTS.get(whole, ("",))[0]):
        if name in fields and name in PARTS.get(whole, (whole,)):
            return name, message if name != "target" or not part else f"{part}: {message}"
    return None, f"{error.field}: {message}" if error.field else message
