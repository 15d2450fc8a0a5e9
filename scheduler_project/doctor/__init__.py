"""Find out what is wrong with an installation and what to do about it, as `manage.py doctor` prints it."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from django.db import connection

from scheduler_project.doctor import broker, database, partitions, runs, schedulers, secrets
from scheduler_project.doctor.findings import Check, Finding, Level, problem

__all__ = ["CHECKS", "CheckResult", "Finding", "Level", "NamedCheck", "examine", "is_healthy"]


class CheckResult(NamedTuple):
    check: str
    finding: Finding


class NamedCheck(NamedTuple):
    name: str
    check: Check
    needs: Callable[[], bool] = lambda: True
    on_dashboard: bool = False


def _tables() -> bool:
    return database.is_reachable() and "beatkeeper_worker_node" in connection.introspection.table_names()


def _tables_and_broker() -> bool:
    return _tables() and broker.is_reachable()


# Causes before their effects: the first problem in the list is the one to solve first.
CHECKS = [
    NamedCheck("database", database.reachable),
    NamedCheck("migrations", database.migrations, database.is_reachable),
    NamedCheck("durability", database.durability, database.is_reachable),
    NamedCheck("pooler", database.pooler, database.is_reachable),
    NamedCheck("clock", database.clock, database.is_reachable),
    NamedCheck("transactions", database.long_transactions, database.is_reachable),
    NamedCheck("partitions", partitions.partitions, _tables),
    NamedCheck("log store", runs.log_store),
    NamedCheck("secrets", secrets.keys, _tables),
    NamedCheck("broker", broker.reachable),
    NamedCheck("brokers of pools", broker.names_of_pools, _tables, on_dashboard=True),
    NamedCheck("open files", broker.open_files, _tables_and_broker),
    NamedCheck("schedulers", schedulers.alive, _tables, on_dashboard=True),
    NamedCheck("slices", schedulers.coverage, _tables, on_dashboard=True),
    NamedCheck("loops", schedulers.loops, _tables, on_dashboard=True),
    NamedCheck("clocks", schedulers.clocks, _tables, on_dashboard=True),
    NamedCheck("watermarks", schedulers.behind, _tables, on_dashboard=True),
    NamedCheck("due jobs", runs.due_jobs, _tables, on_dashboard=True),
    NamedCheck("waiting queues", schedulers.waiting_queues, _tables),
    NamedCheck("waiting runs", runs.waiting_runs, _tables, on_dashboard=True),
    NamedCheck("queued runs", runs.queued_runs, _tables, on_dashboard=True),
    NamedCheck("workers", runs.workers, _tables, on_dashboard=True),
    NamedCheck("commands", runs.commands, _tables),
    NamedCheck("queues", broker.broker_queues, _tables_and_broker),
    NamedCheck("dead messages", broker.dead_messages, _tables_and_broker),
    NamedCheck("unrunnable jobs", runs.unrunnable_jobs, _tables, on_dashboard=True),
    NamedCheck("declarations", runs.declarations, _tables, on_dashboard=True),
    NamedCheck("one state each", partitions.one_state_each, _tables),
]


def examine(checks: Iterable[NamedCheck] | None = None) -> Iterator[CheckResult]:
    """Yield findings as they are made. Skip a check whose requirement fails: an earlier check reports the cause."""
    for named in CHECKS if checks is None else checks:
        if not named.needs():
            continue
        try:
            for finding in named.check():
                yield CheckResult(named.name, finding)
        except Exception as error:  # one broken check must not hide the others
            failure = f"this check failed itself: {type(error).__name__}: {database.first_line(error)}"
            yield CheckResult(named.name, problem(failure, "if nothing above explains it, report it"))


def is_healthy(results: Iterable[CheckResult]) -> bool:
    return not any(result.finding.level == Level.PROBLEM for result in results)
