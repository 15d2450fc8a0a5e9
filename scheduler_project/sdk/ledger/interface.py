"""What a worker sends to the platform and receives from it: one interface, whatever carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

from ..outcomes import Outcome, now_utc
from ..retries import Verdict

# A ledger without an answer for so long is unavailable.
ANSWER_SECONDS = 15.0


@dataclass(frozen=True)
class WorkerInfo:
    """One incarnation of a worker: each start makes a new one, and so does each expiry."""

    incarnation: UUID
    name: str
    pool: str
    host: str
    pid: int
    slots: int
    known_targets: Sequence[str]
    version: str = ""
    region: str = ""
    # A worker that is silent for so long has expired; the platform and the guard apply the same value.
    lease: float = 30.0


@dataclass(frozen=True)
class WorkQueue:
    """Where a worker hears of work or claims it: the queue of one tenant in one pool, or of all (ALL_TENANTS)."""

    id: int
    pool_id: int
    tenant_id: int
    broker_queue: str


@dataclass(frozen=True)
class Beat:
    """A heartbeat. Beats are serial: one is made after the one before was answered or given up.

    `held` lists the claim token of every slot that claims, works or reports. `answered` is the number of the last beat
    that was answered: only that proves that a later list is complete for older claims.
    """

    incarnation: UUID
    number: int
    answered: int
    slots: int
    busy: int
    foreign_busy: int
    held: Sequence[UUID]
    draining: bool
    queues_after: int = 0
    feed_after: float = 1.0
    # Those of `held` whose body was signalled to stop because the run is cancelled.
    stopping: Sequence[UUID] = ()
    # How far the worker's clock is ahead of the ledger's, measured with the answer before this beat.
    skew_ms: float | None = None
    # The lease that the worker counts on from this beat on; None, from one of an earlier version: as before.
    lease: float | None = None
    # It has nothing in hand, and wake-ups reach it: the answer says how long it may be silent.
    idle: bool = False


@dataclass(frozen=True)
class HeartbeatResponse:
    """The answer to a beat; `known` is False for an expired incarnation: stop everything and begin a new one.

    `terminates` are the cancels whose body gets no time to end by itself.
    """

    known: bool
    cancels: list[UUID] = field(default_factory=list)
    terminates: list[UUID] = field(default_factory=list)
    gone: list[UUID] = field(default_factory=list)
    queues: list[WorkQueue] = field(default_factory=list)
    work: list[WorkQueue] = field(default_factory=list)
    skew_ms: float | None = None
    # How many seconds an idle worker may be silent; None, from a platform of an earlier version: it has ignored the
    # lease of the beat. 0 for a worker that is not idle.
    quiet: float | None = None


@dataclass(frozen=True)
class Claim:
    """The right to work on a run, and all that is needed for it."""

    run_id: UUID
    claim_seq: int
    token: UUID
    incarnation: UUID
    attempt: int
    job_id: UUID
    job_name: str
    version: int
    tenant_id: int
    tenant: str
    trigger: str
    planned_at: datetime
    claimed_at: datetime
    target: dict[str, Any]
    input: dict[str, Any] | None
    timeout: float
    retry: dict[str, Any]
    gated: bool
    allowed_hosts: list[str]
    traceparent: str = ""
    # How many of the attempts before ended with their worker.
    losses: int = 0
    # The secrets that target and input refer to, by name; never in a slot, the spool or a log.
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    # Why a secret could not be decrypted.
    unreadable: str = ""
    # No more was queued than the worker's other slots take meanwhile. Not set when an answer is requested again.
    none_left: bool = field(default=False, compare=False)


# In the place of a queue's tenant: all that the worker serves.
ALL_TENANTS = 0
# A batch is what one slot carries out in this time.
BATCH_SECONDS = 0.1
# Runs that one claim request may take.
MAX_CLAIMS = 64
# Slots of a worker over HTTPS, and what any worker lists in one beat.
MAX_SLOTS = 10_000
MAX_HELD = 20_000
MAX_STOPPING = 5_000
# The idle workers of a pool together look at the ledger so often a second; none is silent for longer than MAX_QUIET.
LOOKS_PER_SECOND = 20
MAX_QUIET = 20.0
# The lease of an idle worker is at most this: the silence may not make a long lease of a short one.
MAX_IDLE_LEASE = 60.0
GIVEN_BACK = "given_back"
READY = "ready"


def base_token() -> UUID:
    """Make a token that names a batch: the claims of one request have the tokens that follow, by `token_at`."""
    return UUID(int=uuid4().int >> 8 << 8)


def token_at(base: UUID, index: int) -> UUID:
    return UUID(int=base.int + index)


@dataclass(frozen=True)
class ClaimRequest:
    """A request for up to `limit` of the next runs of a queue, or of all queues of its pool that the worker serves.

    Only targets that this worker knows count, and no more than a slot is expected to do in 100 ms. `expected_ms` is how
    long the runs of a tenant took here, by its id; one that is not named goes alone. None, from a worker of an
    earlier version: `limit` says how many are short enough. The claims get the tokens of `token` and what follows it,
    in the order of the runs' ranks.
    """

    incarnation: UUID
    token: UUID
    queue: WorkQueue
    known_targets: Sequence[str]
    limit: int = 1
    expected_ms: Mapping[str, int] | None = None

    @property
    def tokens(self) -> list[UUID]:
        return [token_at(self.token, index) for index in range(self.limit)]


@dataclass(frozen=True)
class CompletedClaim:
    """The outcome of a claim, and the verdict on its run."""

    claim: Claim
    outcome: Outcome
    verdict: Verdict


def given_back(claim: Claim) -> CompletedClaim:
    """Give the run back untried: the attempt does not count, and the token is never used again."""
    now = now_utc()
    return CompletedClaim(claim, Outcome(GIVEN_BACK, now, now), Verdict(READY))


@dataclass(frozen=True)
class ReportResult:
    """The runs' new states in the order of the report, also for a repeated one, and the claims that were requested.

    None in the place of a state: the claim was no longer this worker's.
    """

    states: list[str | None]
    claims: list[Claim]


class Ledger(Protocol):
    def register(self, info: WorkerInfo) -> list[WorkQueue]:
        """Register the incarnation and return the queues of its pool."""

    def heartbeat(self, beat: Beat) -> HeartbeatResponse: ...

    def claim(self, request: ClaimRequest, again: bool = False) -> list[Claim]:
        """Claim the queue's next runs, by rank. After a lost answer, repeat the request as `again`, with its token."""

    def report(self, ended: Sequence[CompletedClaim], request: ClaimRequest | None = None) -> ReportResult:
        """Report the ends of claims, each by itself, and claim the next runs in the same round trip.

        After a lost answer the ends may be reported again as they are; the claims are then requested as `again`.
        """

    def leave(self, incarnation: UUID) -> None:
        """Stop cleanly: nothing is held any more."""

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None: ...

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        """Return the errors of declarations that were processed and refused, by name."""
