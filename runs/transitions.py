"""Move runs from state to state, each move by one guarded statement.

Elsewhere are a worker's own moves (its ledger), retries that their budget releases (recovery/retry_budget.py) and a
back-off that a person ends (services/runs.py). A row that does not come back was moved by another process first, which
is a normal answer. Callers that need gates lock them before; rows are locked by id, and rows locked by others are
skipped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from runs.reasons import Reason
from runs.sql import Connection, Row, array, change, quoted, rows
from runs.states import FinalState, LiveState
from scheduler_project.sdk.ids import EPOCH, attempt_id
from scheduler_project.sdk.ledger.postgres import OUTCOMES
from scheduler_project.sdk.outcomes import CANCELLED, Outcome, stopped_outcome

# The statements for reasons that count runs, workers or pools. The others are the run's own: `held_by` and suspensions
# decide.
RELEASED_BY: dict[str, str] = {
    Reason.CONCURRENCY: "release_gated",
    Reason.UNKNOWN_TARGET: "release_known",
    Reason.NOT_ALLOWED: "release_permitted",
    Reason.NOT_EXPORTED: "release_permitted",
}


def mark_queued(connection: Connection, ctids: Sequence[str], since: datetime) -> int:
    """Mark rows that `next_ready` locked in this transaction as queued, by their position in the table.

    None is queued at an instant before `since`, also if the clock is set back.
    """
    values = {"ctids": array(ctids, quoted), "since": since}
    return change(connection, "mark_queued", values) if ctids else 0


def mark_blocked(connection: Connection, reasons: Mapping[str, str]) -> int:
    """Block rows that `next_ready` locked in this transaction, by their position in the table."""
    values = {"ctids": array(reasons, quoted), "reasons": list(reasons.values())}
    return change(connection, "mark_blocked", values) if reasons else 0


def recall(
    connection: Connection,
    pool: int,
    counts: Mapping[int, int],
    midnight: datetime,
    most: int,
    since: datetime,
) -> list[Row]:
    """Take back the least urgent of a queue's runs that no worker has claimed, so many of each tenant.

    No run that is still queued was queued before `since`. Returns for each tenant how many runs these are, how many of
    them were marked as queued since midnight, and the lowest rank.
    """
    if not counts:
        return []
    queues = {"tenants": list(counts), "counts": list(counts.values())}
    values = {"pool": pool, "midnight": midnight, "most": most, "since": since, **queues}
    return rows(connection, "recall", values)


@dataclass(frozen=True)
class Cancelled:
    ended: list[UUID]
    # Running: the worker learns it with its next heartbeat, and its report ends the run.
    requested: list[UUID]


def cancel_live_runs(
    connection: Connection, ids: Sequence[UUID], reason: str, *, terminate: bool = False
) -> Cancelled:
    """Cancel unfinished runs, in the caller's transaction. An id in neither list had ended before."""
    if not ids:
        return Cancelled([], [])
    values = {"ids": list(ids), "reason": reason, "hard": terminate, "first": min(ids), "last": max(ids)}
    found = rows(connection, "cancel_live_runs", values)
    # No worker has a run that waits for its callback, so its attempt ends here, with the row still locked.
    waiting = [
        EndedAttempt(run, seq, worker, FinalState.CANCELLED, callback_digest=digest)
        for run, state, seq, worker, digest in found
        if state == LiveState.WAITING_CALLBACK
    ]
    end_attempts(connection, waiting, stopped_outcome(CANCELLED, 0, EPOCH, EPOCH))
    requested = [run for run, state, *_ in found if state == LiveState.RUNNING]
    return Cancelled([run for run, *_ in found if run not in set(requested)], requested)


def promote_delayed(connection: Connection, now: datetime, most: int) -> int:
    return change(connection, "promote_delayed", {"now": now, "most": most})


class EndedAttempt(NamedTuple):
    """An attempt that its worker did not report: by its claim, and what becomes of the run."""

    run_id: UUID
    claim_seq: int
    worker: UUID
    next_state: str
    delay: float = 0.0
    callback_digest: str | None = None


def end_attempts(connection: Connection, ended: Sequence[EndedAttempt], outcome: Outcome) -> dict[UUID, str]:
    """Return the states of the runs. One that is missing had its claim ended by another process."""
    if not ended:
        return {}
    runs = {attempt_id(one.run_id, one.claim_seq): one.run_id for one in ended}
    absent = ("results", "exit_codes", "log_offsets", "log_lengths", "next_inputs", "callback_contents")
    values = {
        **dict.fromkeys(absent, [None] * len(ended)),
        "log_objects": [""] * len(ended),
        "run_ids": list(runs.values()),
        "claim_seqs": [one.claim_seq for one in ended],
        "workers": [one.worker for one in ended],
        "attempt_ids": list(runs),
        "next_states": [one.next_state for one in ended],
        "delays": [one.delay for one in ended],
        "outcomes": [OUTCOMES[outcome.error_class or ""]] * len(ended),
        "error_classes": [outcome.error_class] * len(ended),
        "error_types": [outcome.error_type] * len(ended),
        "error_lines": [outcome.error_line] * len(ended),
        "fingerprints": [outcome.fingerprint] * len(ended),
        "callback_digests": [one.callback_digest for one in ended],
    }
    return {runs[attempt]: state for attempt, state, _gated in rows(connection, "end_attempts", values)}


def release_gated(connection: Connection, jobs: Sequence[UUID]) -> int:
    """Release what the limits have room for. Dispatch counts again under the gate: one too many costs a look."""
    return change(connection, "release_gated", {"jobs": list(jobs)}) if jobs else 0


def release_blocked(
    connection: Connection, reason: str, jobs: Sequence[UUID], now: datetime, most: int
) -> int:
    """Release runs of these jobs that this reason holds no more; the breaker and the overlap have their own way."""
    values = {"jobs": list(jobs), "reason": reason, "now": now, "most": most}
    return change(connection, RELEASED_BY.get(reason, "release_held"), values) if jobs else 0


def release_waiting(connection: Connection, jobs: Sequence[UUID]) -> int:
    """Release one run of each job whose other planned runs have ended. The caller holds the gates."""
    return len(rows(connection, "release_waiting", {"jobs": list(jobs)})) if jobs else 0


def release_all_waiting(connection: Connection, job: UUID) -> int:
    return change(connection, "release_all_waiting", {"job": job})


def release_next(connection: Connection, jobs: Sequence[UUID]) -> int:
    """Release what the ended runs of these jobs made room for. The caller holds the gates."""
    return release_gated(connection, jobs) + release_waiting(connection, jobs)


def note_failure(connection: Connection, job: UUID, run: UUID) -> None:
    """Count a lost attempt in the breaker of its job, if it has one. The caller holds the gate."""
    rows(connection, "note_breaker", {"job_id": job, "run_id": run, "failed": True})


def begin_probes(connection: Connection, jobs: Sequence[UUID], now: datetime) -> int:
    return len(rows(connection, "begin_probes", {"jobs": list(jobs), "now": now})) if jobs else 0


def release_broken(connection: Connection, jobs: Sequence[UUID], most: int) -> int:
    """Release runs of jobs whose breaker is closed or gone. The caller holds the gates."""
    return change(connection, "release_broken", {"jobs": list(jobs), "most": most}) if jobs else 0


def withdraw_unknown(connection: Connection, now: datetime, lease: float) -> int:
    return change(connection, "withdraw_unknown", {"now": now, "lease": lease})
