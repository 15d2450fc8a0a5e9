"""What people ask of runs: one more, stop this one, do not wait. Each a guarded write under the row's lock."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection
from psycopg.types.json import Jsonb

from runs.transitions import Cancelled, cancel_live_runs, release_next
from scheduler_project.sdk.sql import statements

SQL = statements(Path(__file__).parent / "sql" / "requests.sql")
Row = dict[str, Any]


def job_for_run(job_id: UUID) -> Row | None:
    return _row("job_for_run", job_id=job_id)


def spec_for_run(job_id: UUID, version: int, tenant_id: int, pool_id: int) -> Row:
    found = _row("spec_for_run", job_id=job_id, version=version, tenant_id=tenant_id, pool_id=pool_id)
    assert found is not None  # noqa: S101 - a version is never deleted while its job is there
    return found


def insert_run(values: Row) -> bool:
    """False when the id is taken."""
    packed = {**values, "input": None if values["input"] is None else Jsonb(values["input"])}
    return _row("insert_requested_run", **packed) is not None


def lock_run(run_id: UUID, job_id: UUID) -> Row | None:
    """The unfinished run; None when it has its outcome."""
    _rows("lock_gate_of_job", job_id=job_id)
    return _row("lock_live_run", id=run_id)


def lock_runs_of(job_id: UUID) -> list[Row]:
    _rows("lock_gate_of_job", job_id=job_id)
    return _rows("lock_live_runs_of_job", job_id=job_id)


def cancel(ids: Sequence[UUID], reason: str) -> Cancelled:
    """Of locked runs: those no worker has end now, the workers of the others are told."""
    connection.ensure_connection()
    return cancel_live_runs(connection.connection, ids, reason)


def let_next_go(job_id: UUID) -> None:
    """After a run of the job ended, in the same transaction, with the gate in hand."""
    connection.ensure_connection()
    release_next(connection.connection, [job_id])


def hurry(run_id: UUID, now: datetime, rank: int) -> bool:
    return _row("hurry", id=run_id, now=now, rank=rank) is not None


def _row(name: str, **values: Any) -> Row | None:
    found = _rows(name, **values)
    return found[0] if found else None


def _rows(name: str, **values: Any) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(SQL[name], values)
        columns = [column.name for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
