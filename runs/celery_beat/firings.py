"""Write firings in the database of the periodic tasks, by one statement each."""

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4, uuid5

import psycopg
from psycopg.rows import namedtuple_row

from runs.celery_beat.schedules import Disable, Fire, Task
from runs.sql import SQL, Connection, array, change, instant, quoted, rows
from runs.states import FiringState

NAMESPACE = UUID("0e5cd6a6-6f0a-5d5a-9d0e-6b63656c6572")
MAX_ERROR_LENGTH = 2000
# One that takes the broker, or its scheduler, down with it each time must not keep the others from theirs.
MAX_TRIES = 5
MAYBE_TWICE = "sent again under the same id, it may have arrived before: "
MAYBE_LOST = "not sent again, it may not have arrived: "
GONE = FiringState.REFUSED, "its periodic task was deleted before it was sent"


def message_id(database: str, task: Task, planned_at: datetime) -> UUID:
    """Return the id of a firing's message, the same for every sender: workers and result backends know a repeat."""
    return uuid5(NAMESPACE, f"{database}/{task.id}/{task.name}/{planned_at.isoformat()}")


class MovedTask(NamedTuple):
    """A task as its claim left it."""

    task_id: int
    version: int
    enabled: bool
    last_run_at: datetime | None
    run_count: int
    # None: this planned time had its firing already, or the task was switched off.
    firing: int | None


@dataclass
class Firings:
    """The firings as one session of a scheduler writes them."""

    connection: Connection
    resend: bool = True
    owner: UUID = field(default_factory=uuid4)
    scheduler: str = field(default_factory=lambda: f"{socket.gethostname()} {os.getpid()}")

    def claim(self, decisions: Sequence[tuple[Task, Fire | Disable]]) -> list[MovedTask]:
        """Claim or switch off those that are unchanged; the others were changed, or another scheduler has them."""
        database = self.connection.info.dbname
        values = self._mine(
            tasks=[task.id for task, _ in decisions],
            versions=[task.version for task, _ in decisions],
            planned=array((one.planned_at for _, one in decisions), instant),
            missed=array((one.missed_since for _, one in decisions), instant),
            messages=[
                one.planned_at and message_id(database, task, one.planned_at) for task, one in decisions
            ],
        )
        return [MovedTask(*row) for row in rows(self.connection, "claim_firings", values)]

    def open(self, slices: Iterable[int]) -> tuple[list[int], list[int]]:
        """Return this session's own open firings, and those of others whose slices are held here now."""
        found = rows(self.connection, "open_firings", {"owner": self.owner, "slices": sorted(slices)})
        own = [firing for firing, _, mine in found if mine]
        return own, [firing for firing, _, mine in found if not mine]

    def take_over(self, firings: Sequence[int]) -> list[int]:
        """Take over firings of others and return which of them are to be sent now."""
        note = MAYBE_TWICE if self.resend else MAYBE_LOST
        values = self._mine(firings=list(firings), resend=self.resend, note=note, most_tries=MAX_TRIES)
        found = rows(self.connection, "take_over_firings", values)
        return sorted(firing for firing, state in found if state == FiringState.CLAIMED)

    def publish(self, firings: Sequence[int]) -> list[Any]:
        """Mark firings as publishing and read their messages; the rows of those that do not come back are gone."""
        with psycopg.Cursor(self.connection, row_factory=namedtuple_row) as cursor:
            values = {"firings": list(firings), "owner": self.owner}
            return sorted(cursor.execute(SQL["publish_firings"], values).fetchall())

    def settle(self, results: Mapping[int, tuple[FiringState, str]]) -> int:
        values = {
            "firings": list(results),
            "states": [state.value for state, _ in results.values()],
            "errors": array((storable(error) for _, error in results.values()), quoted),
            "owner": self.owner,
        }
        return change(self.connection, "settle_firings", values)

    def refuse(self, tasks: Mapping[int, str]) -> int:
        values = self._mine(
            tasks=list(tasks),
            messages=[uuid4() for _ in tasks],
            errors=array((storable(why) for why in tasks.values()), quoted),
        )
        return change(self.connection, "refuse_tasks", values)

    def forget(self, before: datetime) -> int:
        return change(self.connection, "forget_firings", {"before": before})

    def _mine(self, **values: Any) -> dict[str, Any]:
        return {**values, "owner": self.owner, "scheduler": self.scheduler}


def storable(text: str) -> str:
    return text.replace("\x00", "")[:MAX_ERROR_LENGTH]
