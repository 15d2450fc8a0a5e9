"""Finished attempts of runs in the admin, read only."""

from django.utils.text import Truncator

from jobs.admin.base import LongListAdmin, by_choice, related
from jobs.admin.columns import column, label_column, moment_column
from jobs.admin.html import link, on_one_line, page_of
from runs.admin.list_filters import WindowFilter
from runs.admin.run_detail import COLOURS, took
from runs.models import Run


class AttemptAdmin(LongListAdmin):
    list_display = (
        "started",
        "outcome_column",
        "number",
        "run_column",
        "tenant",
        "worker_name",
        "duration",
        "error",
    )
    list_filter = (WindowFilter, *by_choice("outcome"), *related("tenant"))
    ordering = ("-id",)
    prefetched = ("tenant",)
    more_fields = (
        ("claim_seq", "next_state", "exit_code"),
        ("error_class", "error_type", "fingerprint"),
        "error_line",
    )

    started = moment_column("started_at")
    outcome_column = label_column("outcome", COLOURS, "outcome")
    run_column = column("run", lambda row: link(page_of(Run(pk=row.run_id)), str(row.run_id)[-12:]))
    duration = column("took", lambda row: on_one_line(took(row.started_at, row.finished_at)))
    error = column("error", lambda row: Truncator(row.error_line).chars(90))
