"""Why a run does not go: what stands on the row, in words for whoever asks."""

from jobs.instants import as_text
from runs import transitions
from runs.models import LiveRun
from runs.states import LiveState
from runs.visits import FLEXIBLE

IN_WORDS = {
    transitions.OVERLAP: "waits until the earlier planned run of its job has ended",
    transitions.CONCURRENCY: "waits until fewer runs of its job are under way",
    transitions.BREAKER: "held by the job's breaker: its runs failed in a row, and one will try first",
    transitions.RETRY_BUDGET: "waits until the tenant may have its next retry",
    transitions.PAUSED: "held by a pause",
    transitions.BLACKOUT: "held by a blackout",
    transitions.UNKNOWN_TARGET: "no living worker of the pool knows its target",
    transitions.NOT_ALLOWED: "the pool is not open to the tenant any more",
    transitions.NOT_EXPORTED: "the pool does not export its target any more",
    FLEXIBLE: "waits for its moment within the flexible window",
    "retry": "waits for its next attempt",
    "worker lost": "waits for its next attempt: the worker of the last one was lost",
    "given back": "given back untried by its worker",
}


def in_words(live: LiveRun) -> str:
    """Empty: nothing holds it back."""
    if live.cancel_requested_at is not None:
        how = "killed" if live.terminate else "asked to stop"
        if live.state == LiveState.RUNNING and live.cancel_acknowledged_at is None:
            how = f"to be {how}, of which its worker has not heard yet"
        return f"{how}: {live.cancel_reason}" if live.cancel_reason else how
    if live.state == LiveState.WAITING_CALLBACK and live.wake_at is not None:
        return f"accepted by its target, which has until {as_text(live.wake_at)} to tell the outcome"
    return IN_WORDS.get(live.reason, live.reason)
