"""Groups of dead runs on their way again, in the admin."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from jobs.display import NOTHING, as_json, moment
from jobs.staff import (
    BUSY,
    GOOD,
    WARNING,
    LookOnly,
    OwnRelated,
    button,
    found_or_missing,
    go_to,
    label,
    link,
    list_of,
    page_of,
    telling,
)
from jobs.uncounted_pages import Uncounted
from runs import redrives
from runs.dead_letter_desk import letters_of
from runs.dead_letters import MOST_COUNTED
from runs.models import Redrive, RedriveState

COLOURS = {RedriveState.WORKING: BUSY, RedriveState.DONE: GOOD, RedriveState.STOPPED: WARNING}


class RedriveAdmin(LookOnly):
    paginator = Uncounted
    list_display = (
        "started",
        "shown_group",
        "tenant",
        "shown_state",
        "made",
        "to_come",
        "refused",
        "pace",
        "by",
    )
    list_filter = (("tenant", OwnRelated),)
    list_select_related = ("tenant",)
    ordering = ("-created_at", "-id")
    sortable_by = ()
    actions = None
    actions_row = ["stop"]
    actions_detail = ["stop"]
    fields = (
        ("fingerprint", "tenant", "shown_state"),
        ("made", "to_come", "refused"),
        "last_refusal",
        ("per_minute", "requested_by", "reason"),
        ("created_at", "ended_at", "ended_by"),
        "shown_input",
    )
    readonly_fields = ("shown_state", "to_come", "shown_input")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        redrive = self.get_object(request, str(object_id))
        over = redrive is None or redrive.state != RedriveState.WORKING
        return [] if over else super().get_actions_detail(request, object_id)  # type: ignore[misc]

    @admin.display(description="started")
    def started(self, redrive: Redrive) -> SafeString | str:
        return link(page_of(redrive), moment(redrive.created_at))

    @admin.display(description="error")
    def shown_group(self, redrive: Redrive) -> SafeString:
        return link(letters_of(redrive), redrive.fingerprint)

    @admin.display(description="state")
    def shown_state(self, redrive: Redrive) -> SafeString:
        return label(redrive.state, COLOURS[RedriveState(redrive.state)])

    @admin.display(description="to come")
    def to_come(self, redrive: Redrive) -> str:
        left = redrives.left(redrive)
        return f"{left:,} or more" if left >= MOST_COUNTED else f"{left:,}"

    @admin.display(description="input")
    def shown_input(self, redrive: Redrive) -> SafeString | str:
        return as_json(redrive.input)

    @admin.display(description="a minute")
    def pace(self, redrive: Redrive) -> str:
        return f"{redrive.per_minute:,}"

    @admin.display(description="by")
    def by(self, redrive: Redrive) -> str:
        return redrive.requested_by or NOTHING

    @button(
        "Stop redrive",
        icon="stop_circle",
        asks="It makes no more runs. Those it has made go on; the rest of the group waits on the desk.",
        variant="danger",
    )
    def stop(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        with telling(request, "It is stopped."):
            redrives.stop(found_or_missing(self.get_object(request, object_id)), form.cleaned_data["reason"])
        return go_to(request, list_of(Redrive))
