"""Why a run waits, ended or never was, and why a queue or a planned time has none: every code, once.

A `reason` column holds a code, or a code and words: `blackout: year end`. Programs go by the code.
"""

from django.db import models

MAX_REASON = 40


class Reason(models.TextChoices):
    """A code, its words for people, and what ends it."""

    unblocked_by: str

    def __new__(cls, code: str, unblocked_by: str = "") -> "Reason":
        member = str.__new__(cls, code)
        member._value_ = code
        member.unblocked_by = unblocked_by
        return member

    # A run is blocked.
    OVERLAP = "overlap", "the end of that run", "waits until the earlier planned run of its job has ended"
    CONCURRENCY = (
        "concurrency",
        "the end of another run, or a higher limit",
        "waits until fewer runs of its job are under way",
    )
    BREAKER = (
        "breaker",
        "a run that succeeds after the cool-down, or closing the breaker",
        "held by the job's breaker: its runs failed in a row, and one will try first",
    )
    RETRY_BUDGET = (
        "retry_budget",
        "time, or a larger budget",
        "waits until the tenant may have its next retry",
    )
    UNKNOWN_TARGET = (
        "unknown_target",
        "a worker of the pool that knows the target",
        "no living worker of the pool knows its target",
    )
    NOT_ALLOWED = (
        "not_allowed",
        "opening the pool to the tenant",
        "the pool is not open to the tenant any more",
    )
    NOT_EXPORTED = (
        "not_exported",
        "exporting the target from the pool",
        "the pool does not export its target any more",
    )
    # A run or a queue is held by a suspension; a planned time fell under it.
    PAUSED = "paused", "resuming the job, or lifting the pause", "held by a pause"
    BLACKOUT = "blackout", "the end of the blackout", "held by a blackout"
    # A run is delayed or was given back.
    FLEXIBLE_WINDOW = "flexible_window", "time", "waits for its moment within the flexible window"
    MOVED = "moved", "time", "moved to another instant"
    REQUESTED_LATER = "requested_later", "time", "requested for a later instant"
    RETRY = "retry", "time", "waits for its next attempt"
    WORKER_LOST = "worker_lost", "time", "the worker of the last attempt was lost"
    GIVEN_BACK = "given_back", "a worker with a free slot", "given back untried by its worker"
    # A run that nothing holds.
    NO_FREE_SLOT = "no_free_slot", "a worker with a free slot", "waits for a free slot of a worker"
    # A queue does not go.
    NO_LIVE_WORKER = "no_live_worker", "a worker of the pool", "no live worker"
    DAILY_QUOTA = "daily_quota", "the next day (UTC), or a higher quota", "daily quota"
    MAX_RUNNING = "max_running", "the end of a run, or a higher limit", "limit of running runs"
    RATE_LIMIT = "rate_limit", "time, or a higher limit", "rate limit"
    # A queue goes more slowly: a notice, which holds nothing up.
    BROKER_AWAY = "broker_away", "the broker", "the broker is away: workers look for runs themselves"
    UNKNOWN_BROKER = (
        "unknown_broker",
        "naming the broker in BEATKEEPER_BROKERS",
        "no broker of that name is set: workers look for runs themselves",
    )
    # A run ended without an attempt that says why.
    CANCELLED = "cancelled", "cancelled on request"
    JOB_ENDED = "job_ended", "its job was cancelled or deleted"
    OVERLAP_SKIPPED = "overlap_skipped", "an earlier planned run of its job was unfinished"
    OVERLAP_ONE_WAITS = "overlap_one_waits", "one run of its job waits already"
    OVERLAP_SUPERSEDED = "overlap_superseded", "a later time took its place"
    SKIPPED = "skipped", "this time was skipped"
    # A planned time got no run.
    DOWNTIME = "downtime", "nobody triggered it in time"
    TOO_OLD = "too_old", "too old to be made up for"
    CATCH_UP_MAX = "catch_up_max", "more than catch_up.max"
    POLICY_CHANGED = "policy_changed", "another catch-up policy"
    UNRUNNABLE = "unrunnable", "the job could not be planned"
    ID_TAKEN = "id_taken", "another job has the id of its run"

    def with_words(self, words: str) -> str:
        """Return the code with the words of a person or program, as a column holds it."""
        return f"{self.value}: {words}" if words else self.value


# For which a run is blocked until the sweep lets it go; the budget of retries has a pass of its own.
BLOCKED = (
    Reason.CONCURRENCY,
    Reason.OVERLAP,
    Reason.BREAKER,
    Reason.UNKNOWN_TARGET,
    Reason.PAUSED,
    Reason.BLACKOUT,
    Reason.NOT_ALLOWED,
    Reason.NOT_EXPORTED,
)
# What a queue shows that nothing holds: no reason, or a notice.
NOT_HELD = ("", Reason.BROKER_AWAY, Reason.UNKNOWN_BROKER)


# Looked up for each run of a page.
WORDS = {reason.value: str(reason.label) for reason in Reason}


def code_of(reason: str) -> str:
    return reason.partition(": ")[0]


def describe(reason: str) -> str:
    """Return the words for a stored reason, with those that were given."""
    code, _, given = reason.partition(": ")
    words = WORDS.get(code, code)
    return f"{words}: {given}" if given else words
