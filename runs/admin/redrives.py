"""Redrives in the admin: groups of dead runs that are run again."""

from typing import Any

from jobs.admin.base import LongListAdmin, related
from jobs.admin.buttons import button
from jobs.admin.columns import column, json_column, label_column
from jobs.admin.formatting import moment
from jobs.admin.html import BUSY, GOOD, WARNING, link, list_with, page_of
from runs.admin.dead_letter_dialogs import counted
from runs.admin.dead_letter_groups import group_page
from runs.models import Redrive, RedriveState
from runs.services import redrives

COLOURS = {RedriveState.WORKING: BUSY, RedriveState.DONE: GOOD, RedriveState.STOPPED: WARNING}


class RedriveAdmin(LongListAdmin):
    list_display = (
        "started",
        "group_column",
        "tenant",
        "state_column",
        "made",
        "remaining",
        "refused",
        "pace",
        "by",
    )
    list_filter = related("tenant")
    list_select_related = ("tenant",)
    ordering = ("-created_at", "-id")
    actions_row = ["stop"]
    actions_detail = ["stop"]
    more_fields = ("last_refusal", "reason", ("ended_at", "ended_by"), "input_column")

    started = column("started", lambda redrive: link(page_of(redrive), moment(redrive.created_at)))
    group_column = column("error", lambda redrive: link(group_page(redrive), redrive.fingerprint))
    state_column = label_column("state", COLOURS)
    remaining = column("remaining", lambda redrive: counted(redrives.left(redrive)))
    input_column = json_column("input")
    pace = column("per minute", lambda redrive: f"{redrive.per_minute:,}")
    by = column("by", lambda redrive: redrive.requested_by)

    def hidden_buttons(self, row: Any) -> set[str]:
        return set() if row.state == RedriveState.WORKING else {"stop"}

    @button(
        "Stop redrive",
        "stop_circle",
        "It creates no more runs. Those it has created go on; the rest of the group stays among the dead letters.",
        variant="danger",
        then=list_with,
    )
    def stop(self, redrive: Redrive, given: dict[str, Any]) -> str:
        redrives.stop(redrive, given["reason"])
        return "The redrive is stopped."
