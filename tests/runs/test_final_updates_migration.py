"""The index of what went wrong is replaced beside writers; failures that said nothing are found by the new one."""

from importlib import import_module
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from runs import history
from runs.models import Run
from runs.scheduler import day_partitions
from runs.states import FinalState
from tests.races.staging import second_connection
from tests.support.factories import make_finished_run, make_job

pytestmark = pytest.mark.django_db(transaction=True)
MIGRATION: Any = import_module("runs.migrations.0008_final_updates")
OLD, NEW = MIGRATION.OLD, MIGRATION.NEW


def migrate(*, backwards: bool = False) -> None:
    """Do what the migration does to the database; the later ones stay as they are."""
    guard, classes, index, room = MIGRATION.Migration.operations
    [index] = index.database_operations
    operations = [guard, classes, index, room]
    for operation in reversed(operations) if backwards else operations:
        act = operation.reverse_code if backwards else operation.code
        act(None, connection.schema_editor())


def query(statement: str, *values: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        found: list[Any] = cursor.fetchall()
        return found


def indexed_partitions(index: str) -> set[str]:
    """Return the partitions with a valid index that belongs to this one."""
    found = query(
        "SELECT indrelid::regclass::text FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid"
        " WHERE inhparent = to_regclass(%s) AND indisvalid",
        index,
    )
    return {name for (name,) in found}


def partitions() -> set[str]:
    with connection.cursor() as cursor:
        return day_partitions.names(cursor, "beatkeeper_run")


def is_valid(index: str) -> bool:
    return query("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", index) == [(True,)]


def test_a_failure_that_said_nothing_is_found_after_it() -> None:
    job = make_job()
    others = [make_finished_run(job, state).pk for state in FinalState]
    before = dict(Run.objects.values_list("pk", "error_class"))
    migrate(backwards=True)
    try:
        assert indexed_partitions(OLD) == partitions() and is_valid(OLD)
        silent = make_finished_run(job, FinalState.DEAD, error_class="").pk
    finally:
        migrate()
    assert indexed_partitions(NEW) == partitions() and is_valid(NEW)
    assert not query("SELECT to_regclass(%s)", OLD)[0][0]
    dead = {run.pk: run.error_class for run in history.runs().in_states([FinalState.DEAD])}
    assert dead[silent] == "permanent" and len(dead) == 2
    assert dict(Run.objects.filter(pk__in=others).values_list("pk", "error_class")) == before
    # A finished run is as final as before.
    with pytest.raises(Exception, match="a finished run never changes"), transaction.atomic():
        Run.objects.filter(pk=silent).update(error_class="user")


def test_an_interrupted_one_goes_on_where_it_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(backwards=True)
    execute, made = MIGRATION.execute, []

    def interrupted(schema_editor: Any, statement: str) -> list[Any]:
        if statement.startswith("CREATE INDEX CONCURRENTLY"):
            made.append(statement)
            if len(made) == 3:
                # Made, but not attached.
                execute(schema_editor, statement)
                raise KeyboardInterrupt
        return execute(schema_editor, statement)  # type: ignore[no-any-return]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MIGRATION, "execute", interrupted)
        migrate()
    assert is_valid(OLD) and not is_valid(NEW) and len(indexed_partitions(NEW)) == 2
    migrate()
    assert is_valid(NEW) and indexed_partitions(NEW) == partitions()


def test_writers_wait_for_it_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MIGRATION, "TRIES", 1)
    with second_connection() as writer:
        writer.execute("LOCK TABLE beatkeeper_run IN ROW EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            MIGRATION.guard(None, connection.schema_editor())
    MIGRATION.guard(None, connection.schema_editor())
