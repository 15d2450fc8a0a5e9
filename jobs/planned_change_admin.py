"""Changed times in the admin, to look at: they are made and taken back on the page of their job."""

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from jobs.display import NOTHING, moment
from jobs.models import PlannedChange
from jobs.staff import BUSY, QUIET, WARNING, LookOnly, OwnRelated, label, link, page_of
from jobs.uncounted_pages import Uncounted


class PlannedChangeAdmin(LookOnly):
    tenant_path = "job__tenant"
    paginator = Uncounted
    list_display = ("planned", "shown_job", "what", "moved", "state", "note", "made_by")
    list_filter = (("job", OwnRelated),)
    list_select_related = ("job",)
    ordering = ("-planned_at", "-id")
    sortable_by = ()
    actions = None

    def tenant_of(self, row: Any) -> int | None:
        found: int = row.job.tenant_id
        return found

    @admin.display(description="planned time")
    def planned(self, change: PlannedChange) -> SafeString | str:
        return moment(change.planned_at)

    @admin.display(description="job")
    def shown_job(self, change: PlannedChange) -> SafeString:
        return link(page_of(change.job), change.job)

    @admin.display(description="what")
    def what(self, change: PlannedChange) -> SafeString:
        return label("moved", BUSY) if change.moved_to else label("skipped", WARNING)

    @admin.display(description="moved to")
    def moved(self, change: PlannedChange) -> SafeString | str:
        return moment(change.moved_to)

    @admin.display(description="state")
    def state(self, change: PlannedChange) -> SafeString | str:
        return label("done", QUIET) if change.done_at else NOTHING
