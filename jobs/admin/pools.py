"""Pools of workers in the admin: members look at those they may use, operators change them."""

from typing import Any

from django import forms
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from jobs.access import pools
from jobs.admin.access import PlatformAdmin
from jobs.admin.buttons import ReasonDialog, button
from jobs.admin.columns import column
from jobs.admin.html import GOOD, WARNING, fixed_width, label
from jobs.admin.permissions import is_superuser, own_tenants
from jobs.models import Pool
from jobs.spec.targets import KINDS
from jobs.spec.targets.availability import known_in
from jobs.spec.targets.celery import CeleryKind

ALL_EXPORTED = "Every task that the pool's live workers know is exported."
NO_WORKER = "The pool has no live worker. Write the names into the field instead."


class ExportDialog(ReasonDialog):
    tasks = forms.MultipleChoiceField(choices=[], widget=UnfoldAdminCheckboxSelectMultipleWidget())
    field_order = ("tasks", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pool = Pool.objects.get(pk=self.object_id)
        known = known_in(pool)
        left = [task for task in known.tasks if task not in pool.exported_tasks] if known.live else []
        field = self.fields["tasks"]
        field.choices = [(task, task) for task in left]
        if not left:
            field.help_text = ALL_EXPORTED if known.live else NO_WORKER


class PoolAdmin(PlatformAdmin):
    tenant_path = ""
    list_display = ("slug", "description", "state_column", "open_to", "kinds", "tasks")
    search_fields = ("slug", "description")
    ordering = ("slug",)
    autocomplete_fields = ("tenants",)
    actions_detail = ["export", "pause", "resume"]
    readonly_fields = ("known_tasks",)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name != "exported_kinds":
            return super().formfield_for_dbfield(db_field, request, **kwargs)
        # Of Celery tasks each is exported by its name.
        kinds = [(kind, kind) for kind in KINDS if kind != CeleryKind.name]
        widget = UnfoldAdminCheckboxSelectMultipleWidget()
        return forms.MultipleChoiceField(choices=kinds, required=False, widget=widget)

    state_column = column(
        "state", lambda pool: label("paused", WARNING) if pools.pauses(pool).exists() else label("open", GOOD)
    )
    open_to = column("tenants", lambda pool: "all" if pool.shared else "chosen ones")
    kinds = column("kinds", lambda pool: ", ".join(pool.exported_kinds))
    tasks = column("tasks", lambda pool: f"{len(pool.exported_tasks)} exported")
    known_tasks = column("known to its workers", lambda pool: tasks_with_export(pool))

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.filter(Q(shared=True) | Q(tenants__in=own_tenants(request))).distinct()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Hide from members which other tenants use a pool, and which unexported tasks its workers know."""
        everybody = ["slug", "description", "exported_kinds", "exported_tasks", "shared"]
        if not is_superuser(request):
            return everybody
        return [*everybody[:4], *(["known_tasks"] if obj else []), "shared", "tenants", "broker"]

    def hidden_buttons(self, row: Any) -> set[str]:
        return {"pause"} if pools.pauses(row).exists() else {"resume"}

    @button("Export tasks", "add_task", "Jobs may then run them on the pool's workers.", form=ExportDialog)
    def export(self, pool: Pool, given: dict[str, Any]) -> str:
        pools.export_tasks(pool, given["tasks"], given["reason"])
        return f"{pool} exports {', '.join(given['tasks'])} now."

    @button("Pause pool", "pause", "No more runs are dispatched here; running ones go on.", variant="danger")
    def pause(self, pool: Pool, given: dict[str, Any]) -> str:
        pools.pause_pool(pool, given["reason"])
        return f"{pool} is paused."

    @button("Resume pool", "play_arrow", "Runs that became due meanwhile go first.")
    def resume(self, pool: Pool, given: dict[str, Any]) -> str:
        pools.resume_pool(pool, given["reason"])
        return f"{pool} is resumed."


def tasks_with_export(pool: Pool) -> SafeString | str:
    known = known_in(pool)
    if not known.live:
        return "the pool has no live worker"
    lines = [task if task in pool.exported_tasks else f"{task}  (not exported)" for task in known.tasks]
    unknown = sorted(set(pool.exported_tasks) - known.names)
    lines += [f"{task}  (exported, and known to no live worker)" for task in unknown]
    return fixed_width("\n".join(lines)) if lines else "no task"
