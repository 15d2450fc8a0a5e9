"""The ledger of workers of the version before, as it was then: they go on working beside a newer platform.

Replaced at each release by what the release before shipped. Only the imports are absolute here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg import errors
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from scheduler_project.sdk.ids import attempt_id
from scheduler_project.sdk.ledger import (
    Answer,
    Beat,
    Claim,
    Lane,
    LedgerRefused,
    LedgerUnavailable,
    WorkerInfo,
)
from scheduler_project.sdk.outcomes import Outcome, now_utc
from scheduler_project.sdk.retries import Verdict
from scheduler_project.sdk.sql import statements

SQL = statements(Path(__file__).with_name("ledger.sql"))
READY = "ready"
GIVEN_BACK = "given_back"
# A claim that meets a pause hands the row back; another run of the lane may still go.
HELD_IN_A_ROW = 5
MOST_LANES_WITH_WORK = 200
LONGEST_JOB_NAME = 120
OUTCOMES = {"timeout": "timeout", "worker_lost": "lost", "cancelled": "cancelled"}

Connection = psycopg.Connection[dict[str, Any]]


class PostgresLedger:
    """One connection, opened when first used, and anew after a fork or a failure."""

    def __init__(self, dsn: str, *, overtime: float = 60.0) -> None:
        self._dsn = dsn
        # The guard ends a run at its time limit; this much later rescue believes that the guard is gone.
        self._overtime = overtime
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._pid = 0
        self._pools: dict[UUID, tuple[int, list[str]]] = {}

    def __repr__(self) -> str:
        return "PostgresLedger()"

    def register(self, info: WorkerInfo) -> list[Lane]:
        with _refusing("the worker", info.name), self._transaction() as connection:
            row = connection.execute(
                SQL["register"], {**vars(info), "known_targets": list(info.known_targets)}
            ).fetchone()
            if row is None:
                raise LedgerRefused(
                    f"There is no pool {info.pool!r}: create it in the admin, or name another."
                )
            self._pools[info.incarnation] = (row["pool_id"], list(info.known_targets))
            return _lanes(connection.execute(SQL["lanes"], {"pool_id": row["pool_id"], "lanes_after": 0}))

    def heartbeat(self, beat: Beat) -> Answer:
        values = {**vars(beat), "held": list(beat.held)}
        with self._transaction() as connection:
            # A lost heartbeat costs nothing, so none waits for the disk.
            connection.execute("SET LOCAL synchronous_commit = off")
            row = connection.execute(SQL["heartbeat"], values).fetchone()
            if row is None:
                return Answer(known=False)
            values["pool_id"] = row["pool_id"]
            in_question = connection.execute(SQL["claims_in_hand"], values).fetchall() if beat.held else []
            return Answer(
                known=True,
                cancels=[row["token"] for row in in_question if row["cancelled"]],
                gone=[row["token"] for row in in_question if row["gone"]],
                lanes=_lanes(connection.execute(SQL["lanes"], values)),
                work=self._work(connection, beat, values),
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

    def claim(
        self, incarnation: UUID, token: UUID, lane: Lane, known: Sequence[str], again: bool = False
    ) -> Claim | None:
        values = {
            "worker": incarnation,
            "token": token,
            "pool_id": lane.pool_id,
            "tenant_id": lane.tenant_id,
            "known": list(known),
            "grace": self._overtime,
        }
        with self._connected() as connection:
            if again:
                row = connection.execute(SQL["claim_again"], values).fetchone()
                if row is not None:
                    return _claim(row)
            for _ in range(HELD_IN_A_ROW):
                row = connection.execute(SQL["claim"], values).fetchone()
                if row is None or row["state"] == "running":
                    break
            return _claim(row) if row is not None and row["state"] == "running" else None

    def report(self, claim: Claim, outcome: Outcome, verdict: Verdict) -> str | None:
        name = "succeeded" if outcome.succeeded else OUTCOMES.get(outcome.error_class or "", "failed")
        return self._end(claim, outcome, name, verdict.state, verdict.delay)

    def give_back(self, claim: Claim) -> str | None:
        now = now_utc()
        return self._end(claim, Outcome(GIVEN_BACK, now, now), GIVEN_BACK, READY, 0.0)

    def _end(self, claim: Claim, outcome: Outcome, name: str, next_state: str, delay: float) -> str | None:
        values = {
            "run_id": claim.run_id,
            "claim_seq": claim.claim_seq,
            "worker": claim.incarnation,
            "job_id": claim.job_id,
            "attempt_id": attempt_id(claim.run_id, claim.claim_seq),
            "next_state": next_state,
            "delay": delay,
            "outcome": name,
            "error_class": outcome.error_class or "",
            "error_type": outcome.error_type or "",
            "error_line": outcome.error_line or "",
            "fingerprint": outcome.fingerprint or "",
            "exit_code": outcome.exit_code,
            "result": None if outcome.result is None else Jsonb(outcome.result),
            "log_object": outcome.log.object if outcome.log else "",
            "log_offset": outcome.log.offset if outcome.log else None,
            "log_length": outcome.log.length if outcome.log else None,
        }
        if claim.gated:
            return self._end_gated(values)
        with self._connected() as connection:
            return _told(connection, values)

    def _end_gated(self, values: dict[str, Any]) -> str | None:
        """Three statements, so that each sees what was committed while it waited for the gate."""
        with self._transaction() as connection:
            gate = connection.execute(SQL["lock_gate"], values).fetchone()
            state = _told(connection, values)
            if gate is not None:
                connection.execute(SQL["release_blocked"], {**values, "max_running": gate["max_running"]})
            return state

    def leave(self, incarnation: UUID) -> None:
        with self._connected() as connection:
            connection.execute(SQL["leave"], {"incarnation": incarnation})

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None:
        """All that the ledger can keep; one with a name too long must not cost the others."""
        refused = []
        with self._transaction() as connection:
            names = {"tenant": tenant, "pool": pool}
            known = connection.execute(SQL["tenant_and_pool"], names).fetchone() or {}
            for kind, name in names.items():
                if not known.get(kind):
                    raise LedgerRefused(
                        f"There is no {kind} {name!r}: create it in the admin, or name another."
                    )
            for declaration in declarations:
                try:
                    self._declare(connection, declaration, names)
                except LedgerRefused as refusal:
                    refused.append(str(refusal))
        if refused:
            raise LedgerRefused(" ".join(refused))

    def _declare(self, connection: Connection, declaration: dict[str, Any], names: Mapping[str, str]) -> None:
        spec = {key: value for key, value in declaration.items() if key != "name"}
        name = str(declaration["name"])
        if len(name) > LONGEST_JOB_NAME:
            raise LedgerRefused(
                f"The name of the job {_begin(name)} is longer than {LONGEST_JOB_NAME} characters."
            )
        with _refusing("the job", name), connection.transaction():
            connection.execute(SQL["declare"], {**names, "name": name, "spec": Jsonb(spec)})

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
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                self.close()
                raise LedgerUnavailable(_without_dsn(error)) from error

    def _open(self) -> Connection:
        if self._pid != os.getpid():
            # The parent's connection is the parent's: closing it here would end its session.
            self._connection, self._pid = None, os.getpid()
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
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


def _told(connection: Connection, values: Mapping[str, Any]) -> str | None:
    row = connection.execute(SQL["report"], values).fetchone()
    if row is None:
        row = connection.execute(SQL["reported_before"], values).fetchone()
    return None if row is None else str(row["next_state"])


def _lanes(rows: Any) -> list[Lane]:
    return [Lane(**row) for row in rows]


def _claim(row: dict[str, Any]) -> Claim:
    values = {key: value for key, value in row.items() if key not in ("state", "timeout_ms")}
    return Claim(timeout=row["timeout_ms"] / 1000, **values)


def _without_dsn(error: psycopg.Error) -> str:
    """libpq's own words name hosts and users, never passwords; a server's words come with its code."""
    if isinstance(error, errors.Error) and error.sqlstate:
        return f"{type(error).__name__} ({error.sqlstate})"
    return type(error).__name__
