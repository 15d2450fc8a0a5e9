"""Read runs and their attempts, for the API, the services and the pages of one run.

What reads the two tables without this module is listed in CONTRIBUTING.md under "Archiving runs to Parquet".
"""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

from django.db.models import Case, Q, QuerySet, Value, When

from jobs.models import Job, Tenant
from runs.models import Attempt, Run, WorkerNode
from runs.models.runs import SAYS_WHY
from runs.states import FinalState, LiveState
from scheduler_project.sdk.ids import MAX_MS, milliseconds

CLAIMED = (LiveState.RUNNING, LiveState.WAITING_CALLBACK)
NOT_SUCCEEDED = (FinalState.DEAD, FinalState.CANCELLED, FinalState.SKIPPED)
NEAR_MS = 2 * 24 * 3600 * 1000
# The bits of an id below its milliseconds.
BELOW_INSTANT = (1 << 80) - 1
# Columns that no list shows. A page has 51 rows, so what it does not read is felt.
UNLISTED = (
    "traceparent", "log_object", "log_offset", "log_length", "live__version", "live__planned_at", "live__priority",
    "live__input", "live__traceparent", "live__available_at", "live__rank", "live__target_key", "live__gated",
    "live__losses", "live__budget_tenant", "live__claim_seq", "live__claim_token", "live__claimed_at", "live__worker",
    "live__callback_digest", "live__log_object", "live__log_offset", "live__log_length",
)  # fmt: skip


class RunHistory(QuerySet[Run]):
    """Runs with their jobs and live rows. Callers filter by these methods, page by id and slice."""

    def of(self, tenant: Tenant) -> Self:
        return self.filter(tenant=tenant)

    def in_states(self, states: Collection[str]) -> Self:
        final = [state for state in states if state in FinalState.values]
        live = [state for state in states if state in LiveState.values]
        # An OR over both tables costs the planner its indexes, so it is written only when both are needed.
        if not live:
            return self.filter(ended_as(final))
        if not final:
            return self.filter(live__state__in=live)
        return self.filter(Q(state__in=final) | Q(live__state__in=live))

    # The bounds of planned times are ids, so the planner prunes partitions.
    def planned_from(self, after: datetime) -> Self:
        return self.filter(id__gte=first_id_of(after))

    def planned_before(self, before: datetime) -> Self:
        return self.filter(id__lt=first_id_of(before))

    def of_jobs_named(self, tenant: Tenant, part: str) -> Self:
        return self.filter(job__in=Job.objects.filter(tenant=tenant, name__icontains=part).values("pk"))

    def with_error(self, part: str) -> Self:
        # Only these have one, and an index of their own.
        named = Q(error_line__icontains=part) | Q(error_type__icontains=part)
        return self.filter(named, ended_as(NOT_SUCCEEDED))


def ended_as(states: Collection[str]) -> Q:
    """Match the runs with these outcomes, in the words of the index of what went wrong if it has them all."""
    ended = Q(state__in=states)
    if FinalState.SUCCEEDED in states:
        return ended
    # As a CASE, of which the planner has no statistics. It would multiply how few runs have the state with how few say
    # why, expect one, and sort all failures of a day for a page.
    return SAYS_WHY & Q(Case(When(ended, then=Value(True)), default=Value(False)))


def first_id_of(instant: datetime) -> UUID:
    return UUID(int=milliseconds(instant) << 80)


def read_page(ordered: RunHistory, count: int, start: UUID | None, backwards: bool) -> list[Run]:
    """Read the runs that follow a run, or the latest ones; look near it first.

    Without a bound the planner opens all partitions, which takes longer than reading the page.
    """
    # Runs of a page share jobs: each is read once, instead of being joined to every run.
    ordered = ordered.select_related(None).select_related("live").prefetch_related("job").defer(*UNLISTED)
    near = (start.int >> 80) if start else milliseconds(datetime.now(UTC))
    # A cursor comes from outside: its id may be the first or the last there is.
    if backwards:
        bounded = ordered.filter(id__lt=UUID(int=min(near + NEAR_MS, MAX_MS) << 80))
    else:
        bounded = ordered.filter(id__gte=UUID(int=max(near - NEAR_MS, 0) << 80))
    found = list(bounded[:count])
    return found if len(found) == count else list(ordered[:count])


def runs() -> RunHistory:
    """Return all runs. The live row is joined: read by a second statement it could be gone."""
    return RunHistory(Run).select_related("job", "live")


def find(run: UUID) -> Run | None:
    return runs().filter(pk=run).first()


def attempts_of(run: UUID) -> list[Attempt]:
    """Return the finished attempts, oldest first. Their ids begin with the run's instant: one partition is read."""
    first, last = UUID(int=run.int & ~BELOW_INSTANT), UUID(int=run.int | BELOW_INSTANT)
    found = Attempt.objects.filter(run_id=run, id__gte=first, id__lte=last)
    return list(found.order_by("claim_seq"))


def attempts_with_open(run: Run) -> list[Attempt]:
    """Return the finished attempts, and the one under way as an unsaved one without an end."""
    finished, live = attempts_of(run.pk), run.live_or_none
    # The finished ones were read later, and it may be among them.
    if live is None or live.state not in CLAIMED or live.claim_seq in {one.claim_seq for one in finished}:
        return finished
    worker = WorkerNode.objects.filter(pk__in=[live.worker]).first()
    claim: dict[str, Any] = {"run_id": live.run_id, "number": live.attempt, "started_at": live.claimed_at}
    claim |= {"worker": live.worker, "worker_name": worker.name if worker else ""}
    claim |= {"outcome": live.state, "next_state": None, "error_class": "", "error_line": ""}
    return [*finished, Attempt(**claim)]
