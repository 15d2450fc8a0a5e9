"""Fail attempts that no worker works on: their worker is lost, no longer lists them, or missed their time limit."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from runs import transitions
from runs.events import RunsLost, emit
from runs.scheduler.trigger import overlap
from runs.sql import Connection, rows
from runs.transitions import EndedAttempt
from scheduler_project.sdk.ids import EPOCH
from scheduler_project.sdk.outcomes import Outcome, worker_lost
from scheduler_project.sdk.retries import DEAD, DELAYED, max_losses_of, verdict_on

# By the statement that finds such claims.
LINES = {
    "claims_of_lost_workers": "The worker was lost.",
    "unlisted_claims": "The worker no longer listed the run.",
    "overdue_claims": "The worker did not end the run at its time limit.",
}


class LostClaim(NamedTuple):
    """A claim whose worker is lost, with what the verdict on it depends on."""

    run_id: UUID
    seq: int
    worker: UUID
    attempt: int
    losses: int
    retry: str
    job_id: UUID
    gated: bool


def reclaim(connection: Connection, now: datetime, most: int) -> int:
    """Fail all lost attempts, so many of each kind; return their number."""
    lost = 0
    for statement, line in LINES.items():
        if found := rows(connection, statement, {"most": most, "now": now}):
            lost += len(fail(connection, dict(found), line))
    return lost


def fail(connection: Connection, claims: Mapping[UUID, int], line: str) -> dict[UUID, str]:
    """Fail the attempts of these claims, given by run and claim_seq; leave a claim alone that is another by now.

    Gates come before runs, as everywhere. A claim whose job's gate is locked is skipped: its holder may be about to
    release what waits for this run, and the next pass retries.
    """
    outcome = worker_lost(line, EPOCH, EPOCH)
    with connection.transaction():
        found = [LostClaim(*row) for row in rows(connection, "claims_to_decide", {"ids": sorted(claims)})]
        busy = overlap.lock_gates(connection, {claim.job_id: True for claim in found if claim.gated})
        ours = [claim for claim in found if claim.seq == claims[claim.run_id] and claim.job_id not in busy]
        states = transitions.end_attempts(connection, [_decide(claim, outcome) for claim in ours], outcome)
        gated = [claim for claim in ours if claim.gated]
        for claim in gated:
            if states.get(claim.run_id) in (DEAD, DELAYED):
                transitions.note_failure(connection, claim.job_id, claim.run_id)
        transitions.release_next(connection, list({claim.job_id for claim in gated}))
    if states:
        emit(RunsLost(states=states, line=line))
    return states


def _decide(claim: LostClaim, outcome: Outcome) -> EndedAttempt:
    retry = json.loads(claim.retry)
    retry["max_losses"] = max_losses_of(retry, settings.MAX_WORKER_LOSSES)
    verdict = verdict_on(outcome, claim.attempt, retry, losses=claim.losses)
    return EndedAttempt(claim.run_id, claim.seq, claim.worker, verdict.state, verdict.delay)
