"""Filter lists of runs."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings

from jobs.api.authentication import tenant_of
from jobs.api.filters import NamedFilterSet, QueryFilter, choice, read_uuid
from jobs.clock import database_now
from jobs.validation import instants
from jobs.validation.schema import text
from runs.api.serializers import STATES
from runs.history import RunHistory
from runs.states import Trigger
from scheduler_project.sdk.ids import EPOCH

LATEST = datetime.max.replace(tzinfo=UTC)
# Without an explicit bound of planned times no older partition is read than these allow: before the instant from which
# on the runs finished, and before now for text.
FINISHED_LOOKBACK = timedelta(days=2)
TEXT_LOOKBACK = timedelta(days=7)
ABOUT_LOOKBACK = (
    f"Of the {TEXT_LOOKBACK.days} days before now or `planned_before`, unless `planned_after` is given."
)


def read_instant(value: str, field: str) -> datetime:
    # In a query a plus sign that was not escaped arrives as a space.
    return instants.read(re.sub(r" (\d\d:\d\d)$", r"+\1", value), field)


def moved(instant: datetime, by: timedelta) -> datetime:
    """Move an instant, as far as planned times go."""
    return instant + min(max(by, EPOCH - instant), LATEST - instant)


def instant_filter(about: str, method: Callable[[RunHistory, str, datetime], RunHistory]) -> QueryFilter:
    return QueryFilter(about, read=read_instant, schema=text(format="date-time"), method=method)


class RunOfJobFilters(NamedFilterSet):
    state = choice(
        "The state; several are alternatives.",
        STATES,
        "is not a state",
        many=True,
        method=lambda runs, _, states: runs.in_states(states),
    )
    trigger = choice("What brought it about.", Trigger.values, "is not a trigger")
    planned_after = instant_filter(
        "From this instant on; a run nobody planned counts at its creation.",
        lambda runs, _, after: runs.planned_from(after),
    )
    planned_before = instant_filter(
        "Before this instant.", lambda runs, _, before: runs.planned_before(before)
    )
    finished_after = instant_filter(
        "Finished from this instant on; planned at most "
        f"{FINISHED_LOOKBACK.days} days before it, unless `planned_after` is given.",
        lambda runs, _, after: runs.filter(finished_at__gte=after),
    )
    finished_before = instant_filter(
        "Finished before this instant.", lambda runs, _, before: runs.filter(finished_at__lt=before)
    )
    error = QueryFilter(
        f"Part of the type or the line of the error of a run that did not succeed. {ABOUT_LOOKBACK}",
        method=lambda runs, _, part: runs.with_error(part),
    )

    def filter_queryset(self, runs: RunHistory) -> RunHistory:
        """Bound the planned times by what is given, so that a filter by something else reads few partitions."""
        given: dict[str, Any] = self.form.cleaned_data
        finished_after, finished_before = given["finished_after"], given["finished_before"]
        if finished_before:
            # One that was moved to an earlier instant is planned after it finished.
            runs = runs.planned_before(moved(finished_before, timedelta(days=settings.PARTITIONS_AHEAD_DAYS)))
        if not given["planned_after"]:
            if finished_after:
                runs = runs.planned_from(moved(finished_after, -FINISHED_LOOKBACK))
            elif given["error"] or given.get("job_name"):
                runs = runs.planned_from(moved(given["planned_before"] or database_now(), -TEXT_LOOKBACK))
        filtered: RunHistory = super().filter_queryset(runs)
        return filtered


class RunFilters(RunOfJobFilters):
    job_name = QueryFilter(f"Part of the name of the job. {ABOUT_LOOKBACK}", method="of_jobs_named")
    job = QueryFilter("The job.", read=read_uuid, schema=text(format="uuid"), field_name="job_id")

    def of_jobs_named(self, runs: RunHistory, _: str, part: str) -> RunHistory:
        return runs.of_jobs_named(tenant_of(self.request), part)
