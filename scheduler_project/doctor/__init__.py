"""Says in words what is wrong with an installation, and what to do about it. `manage.py doctor` prints it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from scheduler_project.doctor import broker, database, history, schedulers, secrets, work
from scheduler_project.doctor.findings import Check, Finding, Findings, Level, problem

__all__ = ["CHECKS", "Finding", "Level", "Line", "Named", "examine", "is_healthy"]


@dataclass(frozen=True)
class Line:
    check: str
    finding: Finding


@dataclass(frozen=True)
class Named:
    name: str
    check: Check
    needs: Callable[[], bool] = lambda: True


def _tables() -> bool:
    return database.is_reachable() and database.is_migrated()


def _tables_and_broker() -> bool:
    return _tables() and broker.is_reachable()


# Causes before their effects: the first problem in the list is the one to look at first.
CHECKS = [
    Named("database", database.reachable),
    Named("migrations", database.migrations, database.is_reachable),
    Named("durability", database.durability, database.is_reachable),
    Named("pooler", database.pooler, database.is_reachable),
    Named("clock", database.clock, database.is_reachable),
    Named("transactions", database.long_transactions, database.is_reachable),
    Named("partitions", history.partitions, _tables),
    Named("log store", work.log_store),
    Named("secrets", secrets.keys, _tables),
    Named("broker", broker.reachable),
    Named("brokers of pools", broker.names_of_pools, _tables),
    Named("open files", broker.open_files, _tables_and_broker),
    Named("schedulers", schedulers.alive, _tables),
    Named("slices", schedulers.coverage, _tables),
    Named("loops", schedulers.loops, _tables),
    Named("clocks", schedulers.clocks, _tables),
    Named("watermarks", schedulers.behind, _tables),
    Named("due jobs", work.due_jobs, _tables),
    Named("hand-over", schedulers.hand_over, _tables),
    Named("waiting runs", work.waiting_runs, _tables),
    Named("queued runs", work.queued_runs, _tables),
    Named("workers", work.workers, _tables),
    Named("commands", work.commands, _tables),
    Named("queues", broker.lane_queues, _tables_and_broker),
    Named("dead messages", broker.dead_messages, _tables_and_broker),
    Named("unrunnable jobs", work.unrunnable_jobs, _tables),
    Named("declarations", work.declarations, _tables),
    Named("one state each", history.one_state_each, _tables),
]


def examine(checks: Iterable[Named] | None = None) -> Iterator[Line]:
    """Line by line as they are found. A check whose ground is missing is left out: its cause was told already."""
    for named in CHECKS if checks is None else checks:
        if named.needs():
            yield from (Line(named.name, finding) for finding in _careful(named.check))


def is_healthy(lines: Iterable[Line]) -> bool:
    return not any(line.finding.level == Level.PROBLEM for line in lines)


def _careful(check: Check) -> Findings:
    try:
        yield from check()
    except Exception as error:  # a doctor who faints helps nobody: the other checks go on
        yield problem(
            f"this check failed itself: {type(error).__name__}: {database.first_line(error)}",
            "if nothing above explains it, report it",
        )
