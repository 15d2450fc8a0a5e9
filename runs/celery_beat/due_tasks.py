"""Keep the periodic tasks of the slices held, as last read, with when there is something to decide about each."""

import heapq
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from runs.celery_beat.schedules import Task, Unservable, times_of, wake_at
from runs.sql import Connection, records, rows

logger = logging.getLogger(__name__)

# As the statements of sql/celery_beat.sql divide them.
SLICES = 16
# A session that is silent for long is ended: what takes time is done in parts.
MAX_READ_AT_ONCE = 2000
# Of the first fields of `Task`, in their order.
COLUMNS = (
    "id version name enabled one_off total_run_count last_run_at date_changed start_time expires".split()
)


def read_tasks(connection: Connection, tasks: Sequence[int]) -> list[Task]:
    return [task_of(row) for row in records(connection, "celery_tasks", {"tasks": list(tasks)})]


def task_of(row: Mapping[str, Any]) -> Task:
    values: list[Any] = [*(row[name] for name in COLUMNS), partial(times_of, dict(row))]
    return Task(*values)


class Tasks:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.known: dict[int, Task] = {}
        # Tasks whose times cannot be calculated, and why; not reported yet.
        self.refused: dict[int, str] = {}
        self._slices: list[int] = []
        # The summary of all schedules at the last read.
        self._schedules: str | None = None
        self._heap: list[tuple[datetime, int, int]] = []

    def hold(self, slices: Collection[int]) -> None:
        """Drop the tasks of other slices, which another scheduler serves from now on."""
        self._slices = sorted(slices)
        self.known = {task.id: task for task in self.known.values() if task.id % SLICES in slices}

    def glance(self) -> int:
        """Read the tasks that others have changed since the last time, and return how many."""
        *numbers, schedules = rows(self.connection, "celery_prints", {"slices": self._slices})[0]
        schedules_changed = schedules != self._schedules
        known = self.known.values()
        # As the statement summarizes the rows.
        sums = [len(known), sum(task.id for task in known), sum(task.id * task.version for task in known)]
        if not schedules_changed and numbers == sums:
            return 0
        versions: dict[int, int] = dict(rows(self.connection, "celery_versions", {"slices": self._slices}))
        for gone in self.known.keys() - versions.keys():
            del self.known[gone]
        wanted = [
            task
            for task, version in versions.items()
            if schedules_changed or task not in self.known or self.known[task].version != version
        ]
        for start in range(0, len(wanted), MAX_READ_AT_ONCE):
            for task in read_tasks(self.connection, wanted[start : start + MAX_READ_AT_ONCE]):
                self.take(task)
        self._schedules = schedules
        # Drop what was kept of rows that are edited over and over, long before they are due.
        if len(self._heap) > 2 * len(self.known) + MAX_READ_AT_ONCE:
            self._heap = [entry for entry in self._heap if self._is_current(*entry)]
            heapq.heapify(self._heap)
        return len(wanted)

    def _is_current(self, _: datetime, task_id: int, version: int) -> bool:
        task = self.known.get(task_id)
        return task is not None and task.version == version

    def take(self, task: Task, until: datetime | None = None) -> None:
        """Keep the task as it is now and drop what was known of it; nothing is to be decided before `until`."""
        self.known[task.id] = task
        with self.refusing(task):
            at = until or wake_at(task)
            if at is not None:
                heapq.heappush(self._heap, (at, task.id, task.version))

    def due(self, now: datetime, most: int) -> list[Task]:
        """Return the tasks to decide about now, the one that waits longest first; each is to be taken again."""
        found: dict[int, Task] = {}
        while self._heap and self._heap[0][0] <= now and len(found) < most:
            entry = heapq.heappop(self._heap)
            if self._is_current(*entry):
                found[entry[1]] = self.known[entry[1]]
        return list(found.values())

    def next_at(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None

    @contextmanager
    def refusing(self, task: Task) -> Iterator[None]:
        """Note and report a task whose schedule raises, which it may do late, and leave it out."""
        try:
            yield
        except Exception as error:  # a schedule that raises is its row's trouble, whatever it raises
            why = str(error)
            if not isinstance(error, Unservable):
                why = f"its next time cannot be reckoned: {error}"
            logger.error("the periodic task %s is not served: %s", task.name, why)
            self.refused[task.id] = why
