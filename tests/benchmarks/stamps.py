"""The start of each body, beside its planned time: one short record in a file that all children append to."""

import os
import time
from datetime import datetime
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

FILE = "BENCH_STAMPS"
# The same header on both sides: the worker of ours sets it, and the publisher of plain Celery.
PLANNED_AT = "beatkeeper_planned_at"
RECORD = Struct("dd")


def stamp(request: Any) -> None:
    planned = datetime.fromisoformat(request.get(PLANNED_AT)).timestamp()
    os.write(appended(os.environ[FILE]), RECORD.pack(planned, time.time()))


@cache
def appended(path: str) -> int:
    """Open a file whose short writes do not mix, also of several processes."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class Appended:
    """What was written to such a file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()
        self.seen = 0

    def forget(self) -> None:
        self.seen = self.path.stat().st_size

    def size(self) -> int:
        return self.path.stat().st_size - self.seen

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.seen)
            return file.read()


class Stamps(Appended):
    def count(self) -> int:
        return self.size() // RECORD.size

    def lates(self) -> list[float]:
        """Seconds from planned to started."""
        return [started - planned for planned, started in RECORD.iter_unpack(self.read())]

    def wait(self, count: int, until: float) -> None:
        """Wait until so many have started, or the time of day is that late."""
        while self.count() < count and time.time() < until:
            time.sleep(0.05)
