"""How a run looks in the API: one state, whether it is under way or has ended."""

from jobs.api.representation import BASE, instant
from jobs.input_checks import Json
from runs import reasons
from runs.models import Attempt, Ending, LiveRun, Run
from runs.states import LiveState

WAITING = LiveState.WAITING_CALLBACK


def run_json(run: Run) -> Json:
    live = live_of(run)
    return {
        "id": str(run.pk),
        "job": str(run.job_id),
        "job_name": run.job.name,
        "version": run.version,
        "state": state_of(run),
        "reason": run.reason or (live.cancel_reason or live.reason if live else ""),
        "reason_in_words": reasons.in_words(live) if live else run.reason,
        "trigger": run.trigger,
        "planned_at": instant(run.planned_at),
        "created_at": instant(run.created_at),
        "queued_at": instant(live.queued_at) if live else None,
        "started_at": instant(live.started_at if live else run.started_at),
        "finished_at": instant(run.finished_at),
        "cancel_requested_at": instant(live.cancel_requested_at) if live else None,
        "cancel_acknowledged_at": instant(live.cancel_acknowledged_at) if live else None,
        "callback_expires_at": instant(live.wake_at) if live and live.state == WAITING else None,
        "next_attempt_at": instant(live.wake_at) if live and live.state == LiveState.DELAYED else None,
        "attempt": live.attempt if live else run.attempts,
        "priority": run.priority,
        "input": run.input,
        "result": run.result,
        "exit_code": run.exit_code,
        "error": error_json(run),
        "retry_of": str(run.retry_of) if run.retry_of else None,
        "requested_by": run.requested_by,
        "links": _links(run),
    }


def state_of(run: Run) -> str:
    live = live_of(run)
    return run.state or (live.state if live else "")


def live_of(run: Run) -> LiveRun | None:
    """Read together with the run, by one statement: between two it could end."""
    live: LiveRun | None = getattr(run, "live", None)
    return None if run.state else live


def attempt_json(attempt: Attempt) -> Json:
    return {
        "number": attempt.number,
        "state": attempt.outcome,
        "next_state": attempt.next_state,
        "worker": attempt.worker_name or str(attempt.worker),
        "started_at": instant(attempt.started_at),
        "finished_at": instant(attempt.finished_at),
        "exit_code": attempt.exit_code,
        "error": error_json(attempt),
        "links": {"log": f"{BASE}/runs/{attempt.run_id}/log?attempt={attempt.number}"},
    }


def running_attempt_json(live: LiveRun, worker: str) -> Json:
    return {
        "number": live.attempt,
        "state": live.state,
        "next_state": None,
        "worker": worker,
        "started_at": instant(live.claimed_at),
        "finished_at": None,
        "exit_code": None,
        "error": None,
        "links": {"log": f"{BASE}/runs/{live.run_id}/log?attempt={live.attempt}"},
    }


def error_json(ending: Ending) -> Json | None:
    if not ending.error_class:
        return None
    return {
        "class": ending.error_class,
        "type": ending.error_type,
        "line": ending.error_line,
        "fingerprint": ending.fingerprint,
    }


def _links(run: Run) -> Json:
    own = f"{BASE}/runs/{run.pk}"
    links = {
        "self": own,
        "job": f"{BASE}/jobs/{run.job_id}",
        "attempts": f"{own}/attempts",
        "log": f"{own}/log",
    }
    if run.retry_of:
        links["retry_of"] = f"{BASE}/runs/{run.retry_of}"
    return links
