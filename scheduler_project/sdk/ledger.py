"""What a worker says to the platform and hears from it. One interface, whatever carries it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

from .outcomes import Outcome, now_utc
from .retries import Verdict

# A ledger that has said nothing for so long is away.
ANSWER_SECONDS = 15.0


class LedgerUnavailable(Exception):
    """The ledger gave no answer; what was asked may or may not have happened."""


class LedgerRefused(Exception):
    """The ledger answered that this cannot be, however often it is asked."""


@dataclass(frozen=True)
class WorkerInfo:
    """One incarnation: a new one for every start of a worker, and after every loss."""

    incarnation: UUID
    name: str
    pool: str
    host: str
    pid: int
    slots: int
    known_targets: Sequence[str]
    version: str = ""
    region: str = ""
    # Silent for so long, it is lost; the platform goes by what the guard goes by.
    lease: float = 30.0


@dataclass(frozen=True)
class Lane:
    """Where the runs of one tenant in one pool queue."""

    id: int
    pool_id: int
    tenant_id: int
    queue: str


@dataclass(frozen=True)
class Beat:
    """Beats are serial: a beat is composed after the one before was answered or given up.

    `held` lists the claim token of every slot that asks, works or reports. `answered` is the number of the
    last beat that got its answer: only that one proves that a later list is complete for older claims.
    """

    incarnation: UUID
    number: int
    answered: int
    slots: int
    busy: int
    foreign_busy: int
    held: Sequence[UUID]
    draining: bool
    lanes_after: int = 0
    feed_after: float = 1.0
    # Of them those whose body was asked to stop because the run is cancelled.
    stopping: Sequence[UUID] = ()
    # How far the worker's clock is ahead of the ledger's, as the answer before this beat let it know.
    skew_ms: float | None = None


@dataclass(frozen=True)
class Answer:
    """`known` is False when the incarnation is not ours any more: stop everything, begin a new one.

    `terminates` are those of the cancels that get no time to end by themselves.
    """

    known: bool
    cancels: list[UUID] = field(default_factory=list)
    terminates: list[UUID] = field(default_factory=list)
    gone: list[UUID] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    work: list[Lane] = field(default_factory=list)
    skew_ms: float | None = None


@dataclass(frozen=True)
class Claim:
    """The right to work on a run, and all that is needed to do so."""

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
    # What target and input refer to, by name; never in a slot, the spool, a log. One that could not be decrypted
    # is why.
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    unreadable: str = ""


# As many runs as one claim may take.
MOST_CLAIMS = 64
# What a worker may have, over HTTPS; and what any worker lists in one beat.
MOST_SLOTS = 10_000
MOST_HELD = 20_000
MOST_STOPPING = 5_000
GIVEN_BACK = "given_back"
READY = "ready"


def base_token() -> UUID:
    """Names a batch: the claims of one ask have the tokens that follow, by `token_at`."""
    return UUID(int=uuid4().int >> 8 << 8)


def token_at(base: UUID, index: int) -> UUID:
    return UUID(int=base.int + index)


@dataclass(frozen=True)
class Wanted:
    """An ask for the next runs of a lane, of targets this worker knows: `most` at the most.

    The claims get the tokens of `token` and what follows it, in the order of the runs' ranks.
    """

    incarnation: UUID
    token: UUID
    lane: Lane
    known: Sequence[str]
    most: int = 1

    @property
    def tokens(self) -> list[UUID]:
        return [token_at(self.token, index) for index in range(self.most)]


@dataclass(frozen=True)
class Ended:
    """What came of a claim, and what is to become of its run."""

    claim: Claim
    outcome: Outcome
    verdict: Verdict


def given_back(claim: Claim) -> Ended:
    """The run goes back untried: the attempt does not count, the token is never used again."""
    now = now_utc()
    return Ended(claim, Outcome(GIVEN_BACK, now, now), Verdict(READY))


@dataclass(frozen=True)
class Told:
    """`states` in the order of what was told: the run's new state, also when that was heard before; None: the
    claim was no longer ours."""

    states: list[str | None]
    claims: list[Claim]


class Ledger(Protocol):
    def register(self, info: WorkerInfo) -> list[Lane]:
        """Makes the incarnation known and returns the lanes of its pool."""

    def heartbeat(self, beat: Beat) -> Answer: ...

    def claim(self, wanted: Wanted, again: bool = False) -> list[Claim]:
        """The lane's next runs, by rank; none: it is empty. After a lost answer ask `again` with the same token."""

    def report(self, ended: Sequence[Ended], wanted: Wanted | None = None) -> Told:
        """Tells what came of claims, each by itself, and claims what is wanted in the same round trip.

        After a lost answer the ends may be told again as they are; what was wanted is then asked for `again`.
        """

    def give_back(self, claim: Claim) -> str | None:
        """As a report of `given_back(claim)`; returns its state."""

    def leave(self, incarnation: UUID) -> None:
        """A clean stop: nothing is held any more."""

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None: ...

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        """What was wrong with the declarations that have been looked at and refused."""
