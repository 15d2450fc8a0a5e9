"""The ledger over PostgreSQL, for workers that may see the database. It works behind a transaction pooler."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from .clock_skew import RoundTrip
from .ids import attempt_id
from .ledger import (
    ANSWER_SECONDS,
    GIVEN_BACK,
    Answer,
    Beat,
    Claim,
    Ended,
    Lane,
    LedgerRefused,
    LedgerUnavailable,
    Told,
    Wanted,
    WorkerInfo,
    given_back,
)
from .outcomes import Outcome
from .plan import said
from .references import SecretUnreadable, names_in
from .retries import breakers_failure
from .secret_box import box_of_environment
from .sql import statements

T = TypeVar("T")

SQL = statements(Path(__file__).with_name("ledger.sql"))
# A claim that meets a pause hands the row back; another run of the lane may still go.
HELD_IN_A_ROW = 5
# By the report that closes a breaker.
MOST_RELEASED = 200
MOST_LANES_WITH_WORK = 200
LONGEST_JOB_NAME = 120
OUTCOMES = {"timeout": "timeout", "worker_lost": "lost", "cancelled": "cancelled"}
# When a worker is cut off or stops in the middle of a transaction, the server lets go of what it has locked.
SHORT_SILENCE = "SET LOCAL idle_in_transaction_session_timeout = '5s'"
# Also when only a part of a statement has reached it. Set by a statement, because a pooler takes no options with a
# connection; there it holds for the pooler's own connections, and is right for them too.
SERVER_LOOKS = (
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;"
    " SET tcp_user_timeout = 10000"
)
AWAY = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    # We stood still with a gate in our hands, and it was taken from us.
    errors.IdleInTransactionSessionTimeout,
    # A standby that is about to be promoted, or a primary that is one no more.
    errors.ReadOnlySqlTransaction,
)

Connection = psycopg.Connection[dict[str, Any]]


class AnsweringConnection(psycopg.Connection[dict[str, Any]]):
    """Who does not answer in time is away. The kernel tells of a server that is gone; a pooler or a balancer that goes
    on without its server says nothing for ever, and a heartbeat must not wait beyond the fence."""

    answer_seconds = ANSWER_SECONDS

    def wait(self, gen: PQGen[T], *options: Any, **named: Any) -> T:
        return super().wait(self._in_time(gen), *options, **named)

    def _in_time(self, asked: PQGen[T]) -> PQGen[T]:
        until = time.monotonic() + self.answer_seconds
        try:
            wanted = next(asked)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > until:
                    # Before anybody says goodbye to it, which would wait as long again.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.answer_seconds:g} s")
                wanted = asked.send(ready)
        except StopIteration as answer:
            return cast(T, answer.value)


class PostgresLedger:
    """One connection, opened when first used, and anew after a fork or a failure."""

    def __init__(
        self,
        dsn: str,
        *,
        overtime: float = 60.0,
        of_tenant: int | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._dsn = dsn
        self._answer_seconds = answer_seconds
        # None: a worker of the platform's own, which serves every lane of its pool.
        self._of_tenant = of_tenant
        # The guard ends a run at its time limit; this much later rescue believes that the guard is gone.
        self._overtime = overtime
        self._lock = threading.RLock()
        self._connection: AnsweringConnection | None = None
        self._pid = 0
        self._pools: dict[UUID, tuple[int, list[str]]] = {}

    def __repr__(self) -> str:
        return "PostgresLedger()"

    def register(self, info: WorkerInfo) -> list[Lane]:
        with _refusing("the worker", info.name), self._transaction() as connection:
            connection.execute(SHORT_SILENCE)
            values = {**vars(info), "known_targets": list(info.known_targets), "of_tenant": self._of_tenant}
            row = connection.execute(SQL["register"], values).fetchone()
            if row is None:
                raise LedgerRefused(
                    f"There is no pool {info.pool!r}: create it in the admin, or name another."
                )
            self._pools[info.incarnation] = (row["pool_id"], list(info.known_targets))
            values |= {"pool_id": row["pool_id"], "lanes_after": 0}
            return _lanes(connection.execute(SQL["lanes"], values))

    def heartbeat(self, beat: Beat) -> Answer:
        values = {
            **vars(beat),
            "held": list(beat.held),
            "stopping": list(beat.stopping),
            "of_tenant": self._of_tenant,
        }
        if beat.stopping:
            # By itself: whoever locks runs locks them before workers.
            with self._connected() as connection:
                connection.execute(SQL["acknowledge_cancels"], values)
        with self._transaction() as connection:
            # A lost heartbeat costs nothing, so none waits for the disk.
            connection.execute(f"SET LOCAL synchronous_commit = off; {SHORT_SILENCE}")
            asked = RoundTrip()
            row = connection.execute(SQL["heartbeat"], values).fetchone()
            if row is None:
                return Answer(known=False)
            skew_ms = asked.skew_ms(row["last_beat_at"])
            values["pool_id"] = row["pool_id"]
            in_question = connection.execute(SQL["claims_in_hand"], values).fetchall() if beat.held else []
            return Answer(
                known=True,
                cancels=[row["token"] for row in in_question if row["cancelled"]],
                terminates=[row["token"] for row in in_question if row["terminated"]],
                gone=[row["token"] for row in in_question if row["gone"]],
                lanes=_lanes(connection.execute(SQL["lanes"], values)),
                work=self._work(connection, beat, values),
                skew_ms=skew_ms,
            )

    def _work(self, connection: Connection, beat: Beat, values: dict[str, Any]) -> list[Lane]:
        free = beat.slots - beat.busy - beat.foreign_busy
        if free <= 0 or beat.draining:
            return []
        values["known"] = self._known(connection, beat.incarnation)
        values["most"] = MOST_LANES_WITH_WORK
        return _lanes(connection.execute(SQL["lanes_with_work"], values))

    def _known(self, connection: Connection, incarnation: UUID) -> list[str]:
        if incarnation not in self._pools:
            row = connection.execute(SQL["known_targets"], {"incarnation": incarnation}).fetchone()
            return list(row["known_targets"]) if row else []
        return self._pools[incarnation][1]

    def claim(self, wanted: Wanted, again: bool = False) -> list[Claim]:
        values = claim_values(wanted, self._overtime)
        with self._connected() as connection, _asked_before():
            if again and (rows := connection.execute(SQL["claim_again"], values).fetchall()):
                return self._with_secrets([_claim(row) for row in rows])
            for _ in range(HELD_IN_A_ROW):
                rows = connection.execute(SQL["claim"], values).fetchall()
                if claims := _claims(rows):
                    return self._with_secrets(claims)
                if not rows:
                    break
            return []

    def report(self, ended: Sequence[Ended], wanted: Wanted | None = None) -> Told:
        """Claims of jobs with a gate are told one by one, all others at once."""
        states = {one.claim.token: self._end_gated(one) for one in ended if one.claim.gated}
        plain = [one for one in ended if not one.claim.gated]
        rows: list[dict[str, Any]] = []
        if plain or wanted:
            with self._connected() as connection, _asked_before():
                told, rows = self._exchange(connection, report_values(plain), wanted)
                for one, (state, gated) in zip(plain, told, strict=True):
                    states[one.claim.token] = state
                    if gated:
                        # The job got its gate after the claim: somebody may have begun to wait for this run.
                        with connection.transaction():
                            _settle(connection, one, state, _lock_gate(connection, one.claim))
        claims = self._with_secrets(_claims(rows))
        if wanted is not None and rows and not claims:
            claims = self.claim(wanted)
        return Told([states[one.claim.token] for one in ended], claims)

    def _with_secrets(self, claims: list[Claim]) -> list[Claim]:
        """A statement more only where a run refers to a secret. They are claims of one lane, so of one tenant."""
        names = {claim.token: names_in(claim.target, claim.input) for claim in claims}
        wanted = sorted({name for needed in names.values() for name in needed})
        if not wanted:
            return claims
        with self._connected() as connection:
            values = {"tenant_id": claims[0].tenant_id, "names": wanted}
            sealed = connection.execute(SQL["secrets"], values).fetchall()
        opened, unreadable = _opened(claims[0].tenant_id, sealed)
        return [
            replace(
                claim,
                secrets={name: opened[name] for name in names[claim.token] if name in opened},
                unreadable=next((unreadable[name] for name in names[claim.token] if name in unreadable), ""),
            )
            for claim in claims
        ]

    def _exchange(
        self, connection: Connection, values: dict[str, list[Any]], wanted: Wanted | None
    ) -> tuple[list[_Ending], list[dict[str, Any]]]:
        """Report and claim travel together and are one transaction: one answer, and one wait for the disk."""
        with connection.pipeline():
            reported = connection.execute(SQL["report"], values) if values["run_ids"] else None
            claimed = (
                connection.execute(SQL["claim"], claim_values(wanted, self._overtime)) if wanted else None
            )
        told = _endings(connection, values, reported.fetchall() if reported else [])
        return told, claimed.fetchall() if claimed else []

    def _end_gated(self, one: Ended) -> str | None:
        """Three statements, so that each sees what was committed while it waited for the gate."""
        with self._transaction() as connection:
            gate = _lock_gate(connection, one.claim)
            [told] = _told(connection, report_values([one]))
            # What was heard before has told the breaker then.
            _settle(connection, one, told.state if told.gated else None, gate)
            return told.state

    def give_back(self, claim: Claim) -> str | None:
        return self.report([given_back(claim)]).states[0]

    def leave(self, incarnation: UUID) -> None:
        with self._connected() as connection:
            connection.execute(SQL["leave"], {"incarnation": incarnation})

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None:
        """All that the ledger can keep; one with a name too long must not cost the others."""
        refused = []
        with self._transaction() as connection:
            connection.execute(SHORT_SILENCE)
            names = {"tenant": tenant, "pool": pool}
            known = connection.execute(SQL["tenant_and_pool"], names).fetchone() or {}
            for kind, name in names.items():
                if not known.get(kind):
                    raise LedgerRefused(
                        f"There is no {kind} {name!r}: create it in the admin, or name another."
                    )
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
        if len(name) > LONGEST_JOB_NAME:
            raise LedgerRefused(
                f"The name of the job {_begin(name)} is longer than {LONGEST_JOB_NAME} characters."
            )
        with _refusing("the job", name), connection.transaction():
            values = {**names, "name": name, "source": source, "spec": Jsonb(said(declaration))}
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
        """A failure of the connection says nothing of what it was asked: the caller may ask again."""
        with self._lock:
            try:
                yield self._open()
            except AWAY as error:
                self.close()
                raise LedgerUnavailable(_without_dsn(error)) from error

    def _open(self) -> Connection:
        if self._pid != os.getpid():
            # The parent's connection is the parent's: closing it here would end its session.
            self._connection, self._pid = None, os.getpid()
        if self._connection is None or self._connection.closed:
            self._connection = AnsweringConnection.connect(
                self._dsn,
                autocommit=True,
                row_factory=dict_row,
                prepare_threshold=None,
                connect_timeout=5,
                application_name="beatkeeper-worker",
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=10_000,
            )
            self._connection.answer_seconds = self._answer_seconds
            self._connection.execute(SERVER_LOOKS)
        return self._connection


@contextmanager
def _refusing(kind: str, name: str) -> Iterator[None]:
    """What the database cannot keep it will not keep later either: to ask again would help nobody."""
    try:
        yield
    except psycopg.DataError as error:
        reason = str(error).partition("\n")[0]
        raise LedgerRefused(f"The ledger cannot keep {kind} {_begin(name)}: {reason}.") from error


def _begin(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:59]}…")


@contextmanager
def _asked_before() -> Iterator[None]:
    """An ask whose answer was lost may still be under way; once it is over it can be heard by its tokens."""
    try:
        yield
    except errors.UniqueViolation as error:
        raise LedgerUnavailable(_without_dsn(error)) from error


def claim_values(wanted: Wanted, overtime: float) -> dict[str, Any]:
    return {
        "worker": wanted.incarnation,
        "tokens": wanted.tokens,
        "most": wanted.most,
        "pool_id": wanted.lane.pool_id,
        "tenant_id": wanted.lane.tenant_id,
        "known": list(wanted.known),
        "grace": overtime,
    }


def report_values(ended: Sequence[Ended]) -> dict[str, list[Any]]:
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


class _Ending(NamedTuple):
    state: str | None
    gated: bool


def _told(connection: Connection, values: Mapping[str, list[Any]]) -> list[_Ending]:
    return _endings(connection, values, connection.execute(SQL["report"], values).fetchall())


def _endings(
    connection: Connection, values: Mapping[str, list[Any]], rows: Sequence[dict[str, Any]]
) -> list[_Ending]:
    """Of each that was told; what the statement left alone may have been heard before."""
    found = {row["attempt_id"]: _Ending(row["next_state"], row["gated"]) for row in rows}
    if len(found) < len(values["attempt_ids"]):
        for row in connection.execute(SQL["reported_before"], values):
            found.setdefault(row["attempt_id"], _Ending(row["next_state"], gated=False))
    return [found.get(attempt, _Ending(None, gated=False)) for attempt in values["attempt_ids"]]


def _lock_gate(connection: Connection, claim: Claim) -> dict[str, Any] | None:
    return connection.execute(SQL["lock_gate"], {"job_id": claim.job_id}).fetchone()


def _settle(connection: Connection, one: Ended, state: str | None, gate: Mapping[str, Any] | None) -> None:
    """What follows for the other runs of the job. Without a gate nothing does."""
    if gate is None:
        return
    failed = breakers_failure(one.outcome, state) if gate["breaks"] else None
    if failed is not None:
        values = {"job_id": one.claim.job_id, "run_id": one.claim.run_id, "failed": failed}
        noted = connection.execute(SQL["note_breaker"], values).fetchone()
        if noted is not None and noted["state"] == "closed" != noted["was"]:
            # The sweep lets the others go, in batches.
            connection.execute(SQL["release_broken"], {"jobs": [one.claim.job_id], "most": MOST_RELEASED})
    _release(connection, one.claim, gate)


def _release(connection: Connection, claim: Claim, gate: Mapping[str, Any]) -> None:
    """What waited for the run that ended."""
    values = {"job_id": claim.job_id, "max_running": gate["max_running"]}
    connection.execute(SQL["release_blocked"], values)
    connection.execute(SQL["release_waiting"], {"jobs": [claim.job_id]})


def _lanes(rows: Any) -> list[Lane]:
    return [Lane(**row) for row in rows]


def _claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    return [_claim(row) for row in rows if row["state"] == "running"]


def _claim(row: dict[str, Any]) -> Claim:
    values = {key: value for key, value in row.items() if key not in ("state", "timeout_ms")}
    return Claim(timeout=row["timeout_ms"] / 1000, **values)


def _opened(tenant_id: int, sealed: Sequence[dict[str, Any]]) -> tuple[dict[str, str], dict[str, str]]:
    """The secrets by name, and why others cannot be read here."""
    opened, unreadable = {}, {}
    try:
        box = box_of_environment()
    except ValueError as error:
        return {}, {row["name"]: str(error) for row in sealed}
    for row in sealed:
        try:
            opened[row["name"]] = box.open(tenant_id, row["name"], row["ciphertext"])
        except SecretUnreadable as error:
            unreadable[row["name"]] = str(error)
    return opened, unreadable


def _without_dsn(error: psycopg.Error) -> str:
    """libpq's own words name hosts and users, never passwords; a server's words come with its code."""
    if isinstance(error, errors.Error) and error.sqlstate:
        return f"{type(error).__name__} ({error.sqlstate})"
    return type(error).__name__
