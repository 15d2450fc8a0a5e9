"""Every write of a state that the platform makes; the worker's own are in scheduler_project/sdk/ledger.sql.

Each is one guarded statement. A row that does not come back was moved by somebody else first, which is a normal
answer. Callers that need gates lock them before; rows are locked by id, and those of others are left alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from runs.queries import Connection, array, change, quoted, rows
from scheduler_project.sdk.ids import attempt_id

CONCURRENCY = "concurrency"
# Waits for the other scheduled runs of its job.
OVERLAP = "overlap"
# The breaker of its job is open, or half open and another run is the probe.
BREAKER = "breaker"
RETRY_BUDGET = "retry budget"
PAUSED = "paused"
BLACKOUT = "blackout"
UNKNOWN_TARGET = "no worker knows the target"
NOT_ALLOWED = "not allowed in the pool"
NOT_EXPORTED = "not exported"


def mark_queued(connection: Connection, ctids: Sequence[str]) -> int:
    """Of rows that `best_ready` locked in this transaction, by where they lie."""
    if not ctids:
        return 0
    return change(connection, "mark_queued", {"ctids": array(ctids, quoted)})


def mark_blocked(connection: Connection, reasons: Mapping[str, str]) -> int:
    """Of rows that `best_ready` locked in this transaction, by where they lie."""
    if not reasons:
        return 0
    values = {"ctids": array(reasons, quoted), "reasons": list(reasons.values())}
    return change(connection, "mark_blocked", values)


class Recalled(NamedTuple):
    tenant_id: int
    runs: int
    # Handed over since midnight.
    of_today: int


def recall(
    connection: Connection, pool: int, counts: Mapping[int, int], midnight: datetime, most: int
) -> list[Recalled]:
    """By tenant so many of the queued runs that nobody has claimed, the least urgent."""
    if not counts:
        return []
    lanes = {"tenants": list(counts), "counts": list(counts.values())}
    values = {"pool": pool, "midnight": midnight, "most": most, **lanes}
    return [Recalled(*row) for row in rows(connection, "recall", values)]


@dataclass(frozen=True)
class Cancelled:
    ended: list[UUID]
    # Running: the worker is told with its next heartbeat, and the report ends the run.
    asked: list[UUID]


def cancel_live_runs(
    connection: Connection, ids: Sequence[UUID], reason: str, *, terminate: bool = False
) -> Cancelled:
    """Of these runs those that are unfinished. An id in neither list had ended before."""
    if not ids:
        return Cancelled([], [])
    values = {"ids": list(ids), "reason": reason, "hard": terminate, "first": min(ids), "last": max(ids)}
    found = rows(connection, "cancel_live_runs", values)
    _note_cancelled_calls(connection, {run: call for run, _, call in found if call}, reason)
    return Cancelled([run for run, ended, _ in found if ended], [run for run, ended, _ in found if not ended])


def _note_cancelled_calls(connection: Connection, calls: Mapping[UUID, str], reason: str) -> None:
    """Nobody works on a run that waits for its callback, so nobody else would write down that attempt."""
    if calls:
        values = {
            "attempt_ids": [attempt_id(run, json.loads(call)["claim_seq"]) for run, call in calls.items()],
            "calls": list(calls.values()),
            "reason": reason,
        }
        change(connection, "note_cancelled_calls", values)


def promote_delayed(connection: Connection, now: datetime, most: int) -> int:
    return change(connection, "promote_delayed", {"now": now, "most": most})


class LostAttempt(NamedTuple):
    run_id: UUID
    claim_seq: int
    next_state: str
    delay: float


def lose_attempts(connection: Connection, lost: Sequence[LostAttempt], line: str) -> dict[UUID, str]:
    """The states the runs got; one that is missing had its claim ended by somebody else."""
    if not lost:
        return {}
    ids = [one.run_id for one in lost]
    values = {
        "ids": ids,
        "seqs": [one.claim_seq for one in lost],
        "attempt_ids": [attempt_id(one.run_id, one.claim_seq) for one in lost],
        "states": [one.next_state for one in lost],
        "delays": [one.delay for one in lost],
        "line": line,
        "first": min(ids),
        "last": max(ids),
    }
    return dict(rows(connection, "lose_attempts", values))


def release_gated(connection: Connection, jobs: Sequence[UUID]) -> int:
    """Dispatch counts again under the gate, so releasing too many here costs a look and nothing else."""
    return change(connection, "release_gated", {"jobs": jobs}) if jobs else 0


def release_unstopped(
    connection: Connection, jobs: Sequence[UUID], reason: str, now: datetime, most: int
) -> int:
    values = {"jobs": jobs, "reason": reason, "now": now, "most": most}
    return change(connection, "release_unstopped", values) if jobs else 0


def release_permitted(connection: Connection, jobs: Sequence[UUID], reason: str, most: int) -> int:
    values = {"jobs": jobs, "reason": reason, "most": most}
    return change(connection, "release_permitted", values) if jobs else 0


def release_waiting(connection: Connection, jobs: Sequence[UUID]) -> int:
    """Of each of these jobs at most one that waits for the others: when none is left. The gates are ours."""
    return len(rows(connection, "release_waiting", {"jobs": list(jobs)})) if jobs else 0


def release_all_waiting(connection: Connection, job: UUID) -> int:
    return change(connection, "release_all_waiting", {"job": job})


def release_next(connection: Connection, jobs: Sequence[UUID]) -> int:
    """What the ended runs of these jobs made room for. The gates are ours."""
    return release_gated(connection, jobs) + release_waiting(connection, jobs)


def note_failure(connection: Connection, job: UUID, run: UUID) -> None:
    """Tells the breaker of a job, if it has one, of an attempt that was lost. The gate is ours."""
    rows(connection, "note_breaker", {"job_id": job, "run_id": run, "failed": True})


def begin_probes(connection: Connection, jobs: Sequence[UUID], now: datetime) -> int:
    return len(rows(connection, "begin_probes", {"jobs": list(jobs), "now": now})) if jobs else 0


def release_broken(connection: Connection, jobs: Sequence[UUID], most: int) -> int:
    """Of jobs whose breaker is closed or gone. The gates are ours."""
    return change(connection, "release_broken", {"jobs": list(jobs), "most": most}) if jobs else 0


def release_known(connection: Connection, jobs: Sequence[UUID], now: datetime, most: int) -> int:
    values = {"jobs": jobs, "now": now, "most": most}
    return change(connection, "release_known", values) if jobs else 0


def withdraw_unknown(connection: Connection, now: datetime, lease: float) -> int:
    return change(connection, "withdraw_unknown", {"now": now, "lease": lease})
