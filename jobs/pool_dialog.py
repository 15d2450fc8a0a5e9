"""What the admin asks before tasks of a pool's workers are opened to jobs."""

from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from jobs.known_targets import known_in
from jobs.models import Pool
from jobs.staff import ReasonDialog

NOTHING_LEFT = "Every task that the pool's live workers know is exported."
NOBODY_THERE = "No live worker of the pool can be asked. Write the names into the field instead."


class ExportDialog(ReasonDialog):
    object_id: Any
    tasks = forms.MultipleChoiceField(choices=[], widget=UnfoldAdminCheckboxSelectMultipleWidget())
    field_order = ("tasks", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pool = Pool.objects.get(pk=self.object_id)
        known = known_in(pool)
        left = [task for task in known.tasks if task not in pool.exported_tasks] if known.live else []
        field = self.fields["tasks"]
        assert isinstance(field, forms.MultipleChoiceField)  # noqa: S101 - declared above
        field.choices = [(task, task) for task in left]
        if not left:
            field.help_text = NOTHING_LEFT if known.live else NOBODY_THERE
