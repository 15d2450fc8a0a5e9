"""A pause or a blackout as a form. The service alone judges it, and its refusals land at the fields."""

from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from jobs import stops
from jobs.database_clock import database_now
from jobs.instants import as_text
from jobs.models import Effect, Stop, StopKind
from jobs.service_form import ServiceForm, choice, line

KINDS = [
    (StopKind.PAUSE.value, "pause: nothing goes until somebody lifts it, or it ends"),
    (StopKind.BLACKOUT.value, "blackout: a span of time, with its end"),
]
EFFECTS = [
    ("", "as usual: skip in a blackout, hold for a paused pool, else catch up"),
    *((effect.value, f"{effect.label.lower()}: {stops.EFFECT_HINTS[effect]}") for effect in Effect),
]
INSTANT = "2026-11-18T12:00:00Z"
GIVEN = ("tag", "effect", "note", "begins_at", "ends_at")


class StopForm(ServiceForm):
    kind = choice(KINDS)
    tag = line("All jobs tagged so: name:value, or the name alone.", placeholder="team:payments")
    everything = forms.BooleanField(
        required=False,
        label="All jobs",
        widget=UnfoldBooleanSwitchWidget(),
        help_text="Of the tenant, or of everybody where no tenant is named; instead of a tag and a pool.",
    )
    effect = choice(EFFECTS)
    begins_at = line("Empty: now.", label="Begins", placeholder=INSTANT)
    ends_at = line("Empty: when somebody lifts it. A blackout needs it.", label="Ends", placeholder=INSTANT)
    note = forms.CharField(
        required=False,
        max_length=stops.LONGEST_NOTE,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        help_text="Shown wherever it stops something, also to the teams it concerns.",
    )

    class Meta:
        model = Stop
        fields = ("tenant", "pool")

    # Set by the admin: whether this person may stop jobs of everybody.
    of_everybody = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        stop = kwargs.get("instance")
        kwargs["initial"] = {**(initial(stop) if stop else {}), **(kwargs.get("initial") or {})}
        super().__init__(*args, **kwargs)
        self.fields["effect"].required = False
        for name in self.fields.keys() & set(fixed(stop) if stop else ()):
            self.fields[name].disabled = True
        if "tenant" in self.fields:
            self.fields["tenant"].required = not self.of_everybody

    def ask_service(self) -> Stop:
        given = self.cleaned_data
        data: dict[str, Any] = {name: given[name] or None for name in GIVEN}
        data["note"] = given["note"]
        if not data["effect"]:
            del data["effect"]
        data["pool"] = given["pool"].slug if given.get("pool") else None
        if given["everything"]:
            data["everything"] = True
        if self.instance.pk:
            return stops.edit_stop(self.instance, data)
        return stops.create_stop(StopKind(given["kind"]), data, tenant=given.get("tenant"))


def fixed(stop: Stop) -> tuple[str, ...]:
    begun = stops.state_of(stop, database_now()) != stops.PLANNED
    return ("kind", "tag", "pool", "everything", "effect", "begins_at") if begun else ("kind",)


def initial(stop: Stop) -> dict[str, Any]:
    return {
        "kind": stop.kind,
        "tag": stops.tag_of(stop) or "",
        "everything": not stop.tag_name and stop.pool_id is None,
        "effect": stop.effect,
        "begins_at": as_text(stop.begins_at),
        "ends_at": as_text(stop.ends_at) if stop.ends_at else "",
        "note": stop.note,
    }
