"""Keep the ledger in PostgreSQL, for workers that may see the database. It works behind a transaction pooler."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg import errors
from psycopg.types.json import Jsonb

from ..declarations.plan import compared_fields
from ..errors import LedgerRefused, LedgerUnavailable
from ..ids import attempt_id
from ..outcomes import Outcome
from ..retries import breaker_failure
from ..secret_values.encryption import box_of_environment
from ..secret_values.references import SecretUnreadable, names_in
from ..sql import statements
from .arrays import with_lists_as_text
from .clock_skew import RoundTrip
from .interface import (
    ALL_TENANTS,
    ANSWER_SECONDS,
    BATCH_SECONDS,
    GIVEN_BACK,
    LOOKS_PER_SECOND,
    MAX_QUIET,
    Beat,
    Claim,
    ClaimRequest,
    CompletedClaim,
    HeartbeatResponse,
    ReportResult,
    WorkerInfo,
    WorkQueue,
)
from .postgres_connection import (
    AWAY,
    NOT_AS_PREPARED,
    SHORT_SILENCE,
    AnsweringConnection,
    Connection,
    connect,
    without_dsn,
)

Row = dict[str, Any]
Ending = tuple[str | None, bool]
# By tenant and name of the secret.
BySecret = dict[tuple[int, str], str]
FRAGMENTS = Path(__file__).with_name("fragments.sql")
SQL = statements(FRAGMENTS, Path(__file__).with_name("postgres.sql"))
# A claim hands back runs that are held; it then tries others, at most so many times.
HELD_IN_A_ROW = 32
# By the report that closes a breaker.
MAX_RELEASED = 200
MAX_QUEUES_WITH_WORK = 200
# The guard ends a run at its time limit; so many seconds later recovery believes that the guard is gone.
OVERTIME = 60.0
MAX_JOB_NAME = 120
OUTCOMES = {"timeout": "timeout", "worker_lost": "lost", "cancelled": "cancelled"}


class StatementLost(LedgerUnavailable):
    """The connection does not keep what is prepared."""


class PostgresLedger:
    """A ledger on one connection, opened when first used, and anew after a fork or a failure."""

    def __init__(
        self,
        dsn: str,
        *,
        of_tenant: int | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        prepares: bool = True,
    ) -> None:
        self._dsn = dsn
        self._answer_seconds = answer_seconds
        # None: a worker of the platform's own, which serves every queue of its pool.
        self._of_tenant = of_tenant
        self._lock = threading.RLock()
        self._connection: AnsweringConnection | None = None
        self._pid = 0
        # False on a connection of somebody else's, and once a prepared statement was not found or its name was taken.
        self._prepares = prepares
        self._known: dict[UUID, list[str]] = {}

    def register(self, info: WorkerInfo) -> list[WorkQueue]:
        with _refusing("the worker", info.name), self._transaction() as connection:
            connection.execute(SHORT_SILENCE)
            values = {**vars(info), "known_targets": list(info.known_targets), "of_tenant": self._of_tenant}
            row = connection.execute(SQL["register"], values).fetchone()
            if row is None:
                raise _not_registered(connection, info)
            self._known[info.incarnation] = values["known_targets"]
            values |= {"pool_id": row["pool_id"], "queues_after": 0}
            return _queues(connection.execute(SQL["queues"], values))

    def heartbeat(self, beat: Beat) -> HeartbeatResponse:
        values = {**vars(beat), "of_tenant": self._of_tenant}
        values |= {"held": list(beat.held), "stopping": list(beat.stopping)}
        values["has_room"] = beat.slots - beat.busy - beat.foreign_busy > 0 and not beat.draining
        values["most_looking"] = int(MAX_QUIET * LOOKS_PER_SECOND)
        # Each by itself: no lock is held between two, and an idle worker needs one.
        with self._connected() as connection:
            if beat.stopping:
                connection.execute(SQL["acknowledge_cancels"], values)
            round_trip = RoundTrip()
            row = connection.execute(SQL["heartbeat"], values).fetchone()
            if row is None:
                return HeartbeatResponse(known=False)
            skew_ms = round_trip.skew_ms(row["last_beat_at"])
            values["pool_id"] = row["pool_id"]
            in_question = connection.execute(SQL["claims_in_hand"], values).fetchall() if beat.held else []
            return HeartbeatResponse(
                known=True,
                cancels=[row["token"] for row in in_question if row["cancelled"]],
                terminates=[row["token"] for row in in_question if row["terminated"]],
                gone=[row["token"] for row in in_question if row["gone"]],
                queues=self._queues_to_hear(connection, row, values),
                work=self._work(connection, beat, values) if row["runs_wait"] else [],
                skew_ms=skew_ms,
                quiet=row["looking"] / LOOKS_PER_SECOND,
            )

    def _queues_to_hear(self, connection: Connection, row: Row, values: Mapping[str, Any]) -> list[WorkQueue]:
        """Return the pool's broker queue, always; for a tenant's worker its queue, if it was made since."""
        if row["pool_queue"] is not None:
            return [WorkQueue(0, row["pool_id"], ALL_TENANTS, row["pool_queue"])]
        return _queues(connection.execute(SQL["queues"], values)) if row["new_queues"] else []

    def _work(self, connection: Connection, beat: Beat, values: dict[str, Any]) -> list[WorkQueue]:
        known = self._known.get(beat.incarnation)
        if known is None:
            row = connection.execute(SQL["known_targets"], {"incarnation": beat.incarnation}).fetchone()
            known = row["known_targets"] if row else []
        values |= {"known": known, "most": MAX_QUEUES_WITH_WORK}
        return _queues(connection.execute(SQL["queues_with_work"], values))

    def claim(self, request: ClaimRequest, again: bool = False) -> list[Claim]:
        try:
            return self._claim(request, again)
        except StatementLost:
            return self._claim(request, again=True)

    def _claim(self, request: ClaimRequest, again: bool) -> list[Claim]:
        with self._connected() as connection, _requested_before():
            if again and (rows := connection.execute(SQL["claim_again"], claim_values(request)).fetchall()):
                return self.with_secrets([_claim(row) for row in rows])
            for _ in range(HELD_IN_A_ROW):
                # One transaction and one round trip with the planner's settings.
                with connection.pipeline():
                    claimed = self._execute_claim(connection, request)
                rows = claimed.fetchall()
                if claims := _claims(rows):
                    return self.with_secrets(claims)
                if not rows:
                    break
            return []

    def report(self, ended: Sequence[CompletedClaim], request: ClaimRequest | None = None) -> ReportResult:
        """Report claims of jobs with a gate one by one, all others by one statement."""
        try:
            return self._report(ended, request)
        except StatementLost:
            # The transaction was rolled back, and what was reported before it may be reported again.
            return self._report(ended, request)

    def _report(self, ended: Sequence[CompletedClaim], request: ClaimRequest | None) -> ReportResult:
        states = {one.claim.token: self._end_gated(one) for one in ended if one.claim.gated}
        plain = [one for one in ended if not one.claim.gated]
        rows: list[Row] = []
        if plain or request:
            with self._connected() as connection, _requested_before():
                ends, rows = self._exchange(connection, report_values(plain), request)
                for one, (state, gated) in zip(plain, ends, strict=True):
                    states[one.claim.token] = state
                    if gated:
                        # The job got its gate after the claim: somebody may have begun to wait for this run.
                        with connection.transaction():
                            _settle(connection, one, state, _lock_gate(connection, one.claim))
        claims = self.with_secrets(_claims(rows))
        if request is not None and rows and not claims:
            claims = self.claim(request)
        return ReportResult([states[one.claim.token] for one in ended], claims)

    def with_secrets(self, claims: list[Claim]) -> list[Claim]:
        """Add the secrets that claims refer to, by one more statement. A name is a secret of the claim's tenant."""
        needed = [names_in(claim.target, claim.input) for claim in claims]
        wanted = {
            (claim.tenant_id, name) for claim, names in zip(claims, needed, strict=True) for name in names
        }
        if not wanted:
            return claims
        tenants, names = zip(*sorted(wanted), strict=True)
        with self._connected() as connection:
            values = {"tenants": list(tenants), "names": list(names)}
            opened, unreadable = _opened(connection.execute(SQL["secrets"], values).fetchall())
        return [
            _with_secrets(claim, names, opened, unreadable)
            for claim, names in zip(claims, needed, strict=True)
        ]

    def _exchange(
        self, connection: Connection, values: dict[str, list[Any]], request: ClaimRequest | None
    ) -> tuple[list[Ending], list[Row]]:
        """Send report and claim together as one transaction: one round trip, and one wait for the disk."""
        with connection.pipeline():
            reported = connection.execute(SQL["end_attempts"], values) if values["run_ids"] else None
            claimed = self._execute_claim(connection, request) if request else None
        ends = _endings(connection, values, reported.fetchall() if reported else [])
        return ends, claimed.fetchall() if claimed else []

    def _execute_claim(self, connection: Connection, request: ClaimRequest) -> psycopg.Cursor[Row]:
        """Execute a claim, prepared unless the connection loses what is prepared (decision 21).

        The end of the caller's pipeline ends the transaction, and with it the planner's settings.
        """
        if self._prepares:
            connection.execute(SQL["plan_generically"], prepare=True)
        values = with_lists_as_text(claim_values(request))
        return connection.execute(_claim_statement(request), values, prepare=self._prepares)

    def _end_gated(self, one: CompletedClaim) -> str | None:
        """End a run under its job's gate, by three statements: each sees what was committed while it waited."""
        with self._transaction() as connection:
            gate = _lock_gate(connection, one.claim)
            [(state, gated)] = _report(connection, report_values([one]))
            # What was reported before has counted in the breaker then.
            _settle(connection, one, state if gated else None, gate)
            return state

    def leave(self, incarnation: UUID) -> None:
        with self._connected() as connection:
            connection.execute(SQL["leave"], {"incarnation": incarnation})

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None:
        """Write all declarations that the ledger can keep; one with a name too long must not cost the others."""
        refused = []
        with self._transaction() as connection:
            connection.execute(SHORT_SILENCE)
            names = {"tenant": tenant, "pool": pool}
            known = connection.execute(SQL["tenant_and_pool"], names).fetchone() or {}
            for kind, name in names.items():
                if not known.get(kind):
                    raise _missing(kind, name)
            # In one order, so that two workers that start at once do not wait for each other.
            for declaration in sorted(declarations, key=lambda one: str(one["name"])):
                try:
                    self._declare(connection, declaration, names)
                except LedgerRefused as refusal:
                    refused.append(str(refusal))
        if refused:
            raise LedgerRefused(" ".join(refused))

    def _declare(self, connection: Connection, declaration: dict[str, Any], names: Mapping[str, str]) -> None:
        name, source = str(declaration["name"]), str(declaration.get("source", ""))
        if len(name) > MAX_JOB_NAME:
            raise LedgerRefused(
                f"The name of the job {_begin(name)} is longer than {MAX_JOB_NAME} characters."
            )
        with _refusing("the job", name), connection.transaction():
            values = {**names, "name": name, "source": source, "spec": Jsonb(compared_fields(declaration))}
            connection.execute(SQL["declare"], {**values, "of_key": self._of_tenant is not None})

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        with self._connected() as connection:
            rows = connection.execute(SQL["declaration_errors"], {"tenant": tenant, "names": list(names)})
            return {row["name"]: row["error"] for row in rows}

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None and self._pid == os.getpid():
                connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._connected() as connection, connection.transaction():
            yield connection

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Report a failed connection as a ledger that is away: the request may have been done, and may be repeated."""
        with self._lock:
            try:
                yield self._open()
            except NOT_AS_PREPARED as error:
                if not self._prepares:
                    raise
                # The transaction is rolled back. What is asked again, with the same tokens, is not prepared.
                self._prepares = False
                self.close()
                raise StatementLost(without_dsn(error)) from error
            except AWAY as error:
                self.close()
                raise LedgerUnavailable(without_dsn(error)) from error

    def _open(self) -> Connection:
        if self._pid != os.getpid():
            # The parent's connection is the parent's: closing it here would end its session.
            self._connection, self._pid = None, os.getpid()
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, self._answer_seconds)
        return self._connection


@contextmanager
def _refusing(kind: str, name: str) -> Iterator[None]:
    """Refuse what the database cannot store: it cannot store it later either, so sending it again is useless."""
    try:
        yield
    except psycopg.DataError as error:
        reason = str(error).partition("\n")[0]
        raise LedgerRefused(f"The ledger cannot keep {kind} {_begin(name)}: {reason}.") from error


def _missing(kind: str, name: str) -> LedgerRefused:
    return LedgerRefused(f"There is no {kind} {name!r}: create it in the admin, or name another.")


def _not_registered(connection: Connection, info: WorkerInfo) -> LedgerRefused:
    if connection.execute("SELECT FROM beatkeeper_pool WHERE slug = %s", [info.pool]).fetchone() is None:
        return _missing("pool", info.pool)
    return LedgerRefused("The incarnation is another worker's: each start of a worker takes a new UUID.")


def _begin(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:59]}…")


@contextmanager
def _requested_before() -> Iterator[None]:
    """Report the ledger as away while an earlier request of these tokens is under way; then they find its claims."""
    try:
        yield
    except errors.UniqueViolation as error:
        raise LedgerUnavailable(without_dsn(error)) from error


def _claim_statement(request: ClaimRequest) -> str:
    return SQL["claim" if request.queue.tenant_id == ALL_TENANTS else "claim_of_queue"]


def claim_values(request: ClaimRequest) -> dict[str, Any]:
    expected = request.expected_ms
    return {
        "timed_tenants": None if expected is None else [int(tenant) for tenant in expected],
        "expected_ms": None if expected is None else list(expected.values()),
        "batch_ms": int(1000 * BATCH_SECONDS),
        "worker": request.incarnation,
        "tokens": request.tokens,
        "most": request.limit,
        "pool_id": request.queue.pool_id,
        "tenant_id": request.queue.tenant_id,
        "known": list(request.known_targets),
        "grace": OVERTIME,
    }


def report_values(ended: Sequence[CompletedClaim]) -> dict[str, list[Any]]:
    outcomes = [one.outcome for one in ended]
    logs = [outcome.log for outcome in outcomes]
    return {
        "run_ids": [one.claim.run_id for one in ended],
        "claim_seqs": [one.claim.claim_seq for one in ended],
        "workers": [one.claim.incarnation for one in ended],
        "attempt_ids": [attempt_id(one.claim.run_id, one.claim.claim_seq) for one in ended],
        "next_states": [one.verdict.state for one in ended],
        "delays": [one.verdict.delay for one in ended],
        "outcomes": [_name_of(outcome) for outcome in outcomes],
        "results": [None if outcome.result is None else Jsonb(outcome.result) for outcome in outcomes],
        "error_classes": [outcome.error_class or "" for outcome in outcomes],
        "error_types": [outcome.error_type or "" for outcome in outcomes],
        "error_lines": [outcome.error_line or "" for outcome in outcomes],
        "fingerprints": [outcome.fingerprint or "" for outcome in outcomes],
        "exit_codes": [outcome.exit_code for outcome in outcomes],
        "log_objects": [log.object if log else "" for log in logs],
        "log_offsets": [log.offset if log else None for log in logs],
        "log_lengths": [log.length if log else None for log in logs],
        "next_inputs": [
            None if outcome.next_input is None else Jsonb(outcome.next_input) for outcome in outcomes
        ],
        "callback_digests": [outcome.callback_digest or None for outcome in outcomes],
        "callback_contents": [outcome.callback_content or None for outcome in outcomes],
    }


def _name_of(outcome: Outcome) -> str:
    if outcome.succeeded or outcome.kind == GIVEN_BACK:
        return outcome.kind
    return OUTCOMES.get(outcome.error_class or "", "failed")


def _report(connection: Connection, values: Mapping[str, list[Any]]) -> list[Ending]:
    return _endings(connection, values, connection.execute(SQL["end_attempts"], values).fetchall())


def _endings(connection: Connection, values: Mapping[str, list[Any]], rows: Sequence[Row]) -> list[Ending]:
    """Return the state after each attempt that was reported, and whether its job has a gate.

    One that did not change may have been reported before.
    """
    found: dict[UUID, Ending] = {row["attempt_id"]: (row["next_state"], row["gated"]) for row in rows}
    if len(found) < len(values["attempt_ids"]):
        for row in connection.execute(SQL["reported_before"], values):
            found.setdefault(row["attempt_id"], (row["next_state"], False))
    return [found.get(attempt, (None, False)) for attempt in values["attempt_ids"]]


def _lock_gate(connection: Connection, claim: Claim) -> Row | None:
    return connection.execute(SQL["lock_gate"], {"job_id": claim.job_id}).fetchone()


def _settle(connection: Connection, one: CompletedClaim, state: str | None, gate: Row | None) -> None:
    """Release what waited for the run that ended. Without a gate nothing does."""
    if gate is None:
        return
    failed = breaker_failure(one.outcome, state) if gate["breaks"] else None
    if failed is not None:
        values = {"job_id": one.claim.job_id, "run_id": one.claim.run_id, "failed": failed}
        noted = connection.execute(SQL["note_breaker"], values).fetchone()
        if noted is not None and noted["state"] == "closed" != noted["was"]:
            # The sweep lets the others go, in batches.
            connection.execute(SQL["release_broken"], {"jobs": [one.claim.job_id], "most": MAX_RELEASED})
    # What waited for the run that ended.
    jobs = {"jobs": [one.claim.job_id]}
    connection.execute(SQL["release_gated"], jobs)
    connection.execute(SQL["release_waiting"], jobs)


def _queues(rows: Any) -> list[WorkQueue]:
    return [WorkQueue(**row) for row in rows]


def _claims(rows: Sequence[Row]) -> list[Claim]:
    return [_claim(row) for row in rows if row["state"] == "running"]


def _claim(row: Row) -> Claim:
    values = {key: value for key, value in row.items() if key not in ("state", "timeout_ms")}
    return Claim(timeout=row["timeout_ms"] / 1000, **values)


def _with_secrets(claim: Claim, names: Iterable[str], opened: BySecret, unreadable: BySecret) -> Claim:
    keys = [(claim.tenant_id, name) for name in names]
    return replace(
        claim,
        secrets={key[1]: opened[key] for key in keys if key in opened},
        unreadable=next((unreadable[key] for key in keys if key in unreadable), ""),
    )


def _opened(sealed: Sequence[Row]) -> tuple[BySecret, BySecret]:
    """Return the secrets by tenant and name, and why others cannot be read here."""
    opened, unreadable = BySecret(), BySecret()
    try:
        box = box_of_environment()
    except ValueError as error:
        return {}, {(row["tenant_id"], row["name"]): str(error) for row in sealed}
    for row in sealed:
        key = (row["tenant_id"], row["name"])
        try:
            opened[key] = box.open(*key, row["ciphertext"])
        except SecretUnreadable as error:
            unreadable[key] = str(error)
    return opened, unreadable
