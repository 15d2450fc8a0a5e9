"""States of a run and the moves between them, in the one table that the code reads and the database enforces."""

from django.db import models


class LiveState(models.TextChoices):
    """A state of a run without an outcome."""

    DELAYED = "delayed"
    READY = "ready"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING_CALLBACK = "waiting_callback"
    BLOCKED = "blocked"


class FinalState(models.TextChoices):
    """An outcome of a run. It never changes: a retry of a finished run is a new run that points to it."""

    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Trigger(models.TextChoices):
    SCHEDULE = "schedule"
    CATCH_UP = "catch_up"
    MANUAL = "manual"
    RETRY = "retry"
    REDRIVE = "redrive"


LIVE_MOVES: dict[LiveState, frozenset[LiveState]] = {
    LiveState.DELAYED: frozenset({LiveState.READY, LiveState.BLOCKED}),
    LiveState.READY: frozenset({LiveState.QUEUED, LiveState.BLOCKED}),
    LiveState.QUEUED: frozenset({LiveState.RUNNING, LiveState.READY}),
    LiveState.RUNNING: frozenset({LiveState.DELAYED, LiveState.READY, LiveState.WAITING_CALLBACK}),
    LiveState.WAITING_CALLBACK: frozenset({LiveState.DELAYED}),
    LiveState.BLOCKED: frozenset({LiveState.READY, LiveState.DELAYED}),
}
# Where each outcome may come from. An empty `ended_from` is a run that was created with its outcome.
NEW = ""
FINAL_MOVES: dict[FinalState, frozenset[str]] = {
    FinalState.SUCCEEDED: frozenset({LiveState.RUNNING, LiveState.WAITING_CALLBACK}),
    FinalState.DEAD: frozenset({LiveState.RUNNING, LiveState.WAITING_CALLBACK}),
    FinalState.CANCELLED: frozenset(LiveState.values),
    FinalState.SKIPPED: frozenset({NEW}),
}


def live_moves_sql() -> str:
    """Return `(old, new)` pairs for the trigger on beatkeeper_live_run."""
    pairs = sorted((old, new) for old, news in LIVE_MOVES.items() for new in news)
    return ", ".join(f"('{old}', '{new}')" for old, new in pairs)


def final_moves_sql() -> str:
    """Return the condition that ties an outcome to the state it came from."""
    lines = []
    for final, origins in FINAL_MOVES.items():
        listed = ", ".join(f"'{origin}'" for origin in sorted(origins))
        lines.append(f"(state = '{final}' AND ended_from IN ({listed}))")
    return "state IS NULL OR " + " OR ".join(sorted(lines))


class FiringState(models.TextChoices):
    CLAIMED = "claimed"
    PUBLISHING = "publishing"
    SENT = "sent"
    # Its scheduler died while publishing; whether it arrived, is unknown.
    UNKNOWN = "unknown"
    REFUSED = "refused"
