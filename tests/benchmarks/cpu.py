"""CPU time of processes, by what they are for: what a busy machine does not falsify.

On Linux and for processes on this machine only; of servers elsewhere nothing is known and nothing is said.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.benchmarks.stage import Database

BROKER_PROGRAM = "beam.smp"


def seconds_of(pid: int) -> float:
    """Of all its threads, exact, where the usual counts are ticks; nothing of a process that is gone."""
    total = 0
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def sessions_of_scheduler(database: Database) -> dict[str, int]:
    """Its sessions in PostgreSQL, by what they say they are for: "beatkeeper trigger 123" is the trigger's."""
    found = database.rows(
        "SELECT split_part(application_name, ' ', 2), pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND starts_with(application_name, 'beatkeeper ')"
    )
    return {loop: pid for loop, pid in found if Path(f"/proc/{pid}").exists()}


def brokers() -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and (folder / "comm").read_text().strip() == BROKER_PROGRAM:
                found.append(int(folder.name))
    return found


def parts_of(scheduler: int, database: Database) -> dict[str, list[int]]:
    """Everything between a due job and its confirmed wake-up."""
    servers = {f"PostgreSQL {loop}": [pid] for loop, pid in sorted(sessions_of_scheduler(database).items())}
    return {"scheduler": [scheduler], **servers, "RabbitMQ": brokers()}


def meter(parts: Mapping[str, list[int]]) -> Callable[[], dict[str, float]]:
    """Begins to count; called, says the seconds each part has spent since."""

    def seconds() -> dict[str, float]:
        return {part: sum(map(seconds_of, pids)) for part, pids in parts.items()}

    before = seconds()
    return lambda: {part: spent - before[part] for part, spent in seconds().items() if parts[part]}


def sessions_of(database: Database) -> list[int]:
    """All sessions of the database but the one that asks."""
    found = database.rows(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return [pid for (pid,) in found if Path(f"/proc/{pid}").exists()]


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it, also in sessions of their own."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal():
                # The name, in parentheses, may hold spaces.
                _, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def meter_of_changing(find: Callable[[], Mapping[str, list[int]]]) -> Callable[[], dict[str, float]]:
    """Do as `meter` for parts that get new processes; what ends meanwhile is not counted."""
    before = {pid: seconds_of(pid) for pids in find().values() for pid in pids}

    def spent() -> dict[str, float]:
        return {
            part: sum(max(0.0, seconds_of(pid) - before.get(pid, 0.0)) for pid in pids)
            for part, pids in find().items()
            if pids
        }

    return spent
