"""Filter lists of runs."""

import re
from collections.abc import Callable
from datetime import datetime

from jobs.api.filters import NamedFilterSet, QueryFilter, choice, read_uuid
from jobs.validation import instants
from jobs.validation.schema import text
from runs.api.serializers import STATES
from runs.history import RunHistory
from runs.states import Trigger


def read_instant(value: str, field: str) -> datetime:
    # In a query a plus sign that was not escaped arrives as a space.
    return instants.read(re.sub(r" (\d\d:\d\d)$", r"+\1", value), field)


def instant_filter(about: str, method: Callable[[RunHistory, str, datetime], RunHistory]) -> QueryFilter:
    return QueryFilter(about, read=read_instant, schema=text(format="date-time"), method=method)


class RunOfJobFilters(NamedFilterSet):
    state = choice(
        "The state; several are alternatives.",
        STATES,
        "is not a state",
        blank=False,
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


class RunFilters(RunOfJobFilters):
    job = QueryFilter("The job.", read=read_uuid, schema=text(format="uuid"), field_name="job_id")
