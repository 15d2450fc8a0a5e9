"""Who may claim a planned time, settled between two sessions; and what becomes of a firing whose scheduler is gone."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection as ours

from runs.celery_beat.due_tasks import read_tasks
from runs.celery_beat.firings import Firings, MovedTask, message_id
from runs.celery_beat.schedules import Disable, Fire, Task, decide
from runs.celery_beat.source import NotServable, prepare
from runs.states import FiringState
from tests.races.staging import meanwhile
from tests.runs.celery_beat.host import HostProject
from tests.runs.celery_beat.rows import HOUR, add, interval, now
from tests.support.waiting import wait_until

Session = psycopg.Connection[Any]


@contextmanager
def session(host: HostProject) -> Iterator[Session]:
    # Whoever waits where nobody should fails the test, and does not hang it.
    patience = "-c lock_timeout=5s"
    with psycopg.connect(host.url, autocommit=True, prepare_threshold=None, options=patience) as connection:
        yield connection


@pytest.fixture
def one(host: HostProject) -> Iterator[Firings]:
    with session(host) as connection:
        prepare(connection)
        yield Firings(connection)


@pytest.fixture
def other(one: Firings, host: HostProject) -> Iterator[Firings]:
    with session(host) as connection:
        yield Firings(connection)


def due(firings: Firings, host: HostProject, task_id: int) -> tuple[Task, Fire]:
    (task,) = read_tasks(firings.connection, [task_id])
    decision = decide(task, now(host))
    assert isinstance(decision, Fire)
    return task, decision


def claim(firings: Firings, host: HostProject, name: str = "settle") -> int:
    (claimed,) = firings.claim([due(firings, host, add(host, name))])
    assert claimed.firing is not None
    return claimed.firing


def test_a_claim_moves_the_row_on_and_leaves_a_firing(one: Firings, host: HostProject) -> None:
    task, fire = due(one, host, add(host, "settle", total_run_count=4))
    (claimed,) = one.claim([(task, fire)])
    (firing,) = host.firings()
    row = host.task("settle")
    assert claimed == MovedTask(task.id, claimed.version, True, fire.planned_at, 5, firing["id"])
    assert (row["last_run_at"], row["total_run_count"], row["enabled"]) == (fire.planned_at, 5, True)
    assert (firing["state"], firing["planned_at"], firing["name"]) == ("claimed", fire.planned_at, "settle")
    assert firing["message_id"] == message_id(host.url.rpartition("/")[2], task, fire.planned_at)
    (again,) = read_tasks(one.connection, [task.id])
    assert again.version == claimed.version


def test_of_two_that_claim_at_once_one_gets_it(one: Firings, other: Firings, host: HostProject) -> None:
    task_id = add(host, "settle")
    first, second = due(one, host, task_id), due(other, host, task_id)
    with one.connection.transaction():
        assert len(one.claim([first])) == 1
        # It does not wait: another row may be due.
        assert other.claim([second]) == []
    assert other.claim([second]) == []
    assert len(host.firings()) == host.task("settle")["total_run_count"] == 1


def test_a_row_that_was_changed_since_it_was_read_is_not_fired(one: Firings, host: HostProject) -> None:
    found = due(one, host, add(host, "settle"))
    host.rows("UPDATE django_celery_beat_periodictask SET enabled = false")
    assert one.claim([found]) == [] and host.firings() == []


def test_a_row_that_somebody_is_editing_is_left_and_then_read_again(one: Firings, host: HostProject) -> None:
    found = due(one, host, add(host, "settle"))
    with session(host) as editor:
        with editor.transaction():
            editor.execute("UPDATE django_celery_beat_periodictask SET args = '[2]'")
            assert one.claim([found]) == []
        assert one.claim([found]) == []
    assert len(one.claim([due(one, host, found[0].id)])) == 1


def test_an_edit_waits_for_a_claim_and_loses_nothing(one: Firings, host: HostProject) -> None:
    found = due(one, host, add(host, "settle"))

    def edit() -> None:
        host.rows("UPDATE django_celery_beat_periodictask SET args = '[2]'")

    one.connection.execute("BEGIN")
    one.claim([found])
    with meanwhile(edit) as editing:
        wait_until(lambda: _waits(host), 10, "the edit to wait")
        one.connection.execute("COMMIT")
    editing.result(10)
    row = host.task("settle")
    assert row["args"] == "[2]" and row["last_run_at"] == found[1].planned_at


def _waits(host: HostProject) -> bool:
    statement = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(host.rows(statement))


def test_a_planned_time_that_has_its_firing_gets_no_other_and_the_row_moves_on(
    one: Firings, host: HostProject
) -> None:
    task, fire = due(one, host, add(host, "settle"))
    one.claim([(task, fire)])
    host.rows(
        "UPDATE django_celery_beat_periodictask SET last_run_at = last_run_at - interval '1 h', total_run_count = 1"
    )
    again = due(one, host, task.id)
    assert again[1] == fire
    (claimed,) = one.claim([again])
    assert claimed.firing is None and claimed.last_run_at == fire.planned_at
    assert len(host.firings()) == 1 and host.task("settle")["total_run_count"] == 1


def test_one_that_runs_once_is_switched_off_as_its_model_does(one: Firings, host: HostProject) -> None:
    (claimed,) = one.claim([due(one, host, add(host, "settle", one_off=True))])
    row = host.task("settle")
    assert claimed.firing is not None and not claimed.enabled
    assert (row["enabled"], row["last_run_at"], row["total_run_count"]) == (False, None, 0)


def test_an_expired_one_is_switched_off_unless_it_was_changed(one: Firings, host: HostProject) -> None:
    at = now(host)
    task_id = add(host, "settle", expires=at - HOUR, total_run_count=3)
    (task,) = read_tasks(one.connection, [task_id])
    assert decide(task, at) == Disable()
    host.rows("UPDATE django_celery_beat_periodictask SET expires = NULL")
    assert one.claim([(task, Disable())]) == []
    host.rows("UPDATE django_celery_beat_periodictask SET expires = now() - interval '1 h'")
    (task,) = read_tasks(one.connection, [task_id])
    (moved,) = one.claim([(task, Disable())])
    assert (moved.task_id, moved.enabled, moved.firing) == (task_id, False, None) and host.firings() == []
    row = host.task("settle")
    assert (row["enabled"], row["last_run_at"], row["total_run_count"]) == (False, None, 3)


def test_what_was_claimed_and_not_publishing_is_taken_over_and_sent_without_a_doubt(
    one: Firings, other: Firings, host: HostProject
) -> None:
    firing = claim(one, host)
    assert other.open(range(16)) == ([], [firing])
    assert other.take_over([firing]) == [firing]
    assert other.take_over([firing]) == []
    assert other.open(range(16)) == ([firing], [])
    # The one that was thought dead wakes up.
    assert one.publish([firing]) == []
    (message,) = other.publish([firing])
    assert (message.id, message.task, message.args) == (firing, "their.witness", "[]")
    other.settle({firing: (FiringState.SENT, "")})
    (row,) = host.firings()
    assert (row["state"], row["error"]) == ("sent", "") and row["sent_at"] is not None


@pytest.mark.parametrize("resend", [True, False])
def test_what_was_publishing_is_sent_again_under_its_id_or_not_as_the_settings_say(
    one: Firings, other: Firings, host: HostProject, resend: bool
) -> None:
    firing = claim(one, host)
    (before,) = one.publish([firing])
    other.resend = resend
    assert other.take_over([firing]) == ([firing] if resend else [])
    # Whoever lost it has nothing to tell any more.
    assert one.settle({firing: (FiringState.SENT, "")}) == 0
    if resend:
        (again,) = other.publish([firing])
        assert again.message_id == before.message_id
        assert other.settle({firing: (FiringState.SENT, "")}) == 1
    (row,) = host.firings()
    assert row["state"] == ("sent" if resend else "unknown")
    assert "may have arrived" in row["error"] if resend else "may not have arrived" in row["error"]


def test_firings_of_slices_that_are_not_ours_are_not_seen(one: Firings, host: HostProject) -> None:
    firing = claim(one, host)
    (row,) = host.firings()
    assert one.open([row["task_id"] % 16]) == ([firing], [])
    assert one.open(set(range(16)) - {row["task_id"] % 16}) == ([], [])


def test_a_firing_whose_row_was_deleted_has_no_message(one: Firings, host: HostProject) -> None:
    firing = claim(one, host)
    host.rows("DELETE FROM django_celery_beat_periodictask")
    assert one.publish([firing]) == []


def test_what_is_settled_is_forgotten_after_a_while_and_what_is_open_is_not(
    one: Firings, host: HostProject
) -> None:
    settled, still_open = claim(one, host), claim(one, host, "other")
    one.publish([settled])
    one.settle({settled: (FiringState.SENT, "")})
    assert one.forget(now(host) - 3 * HOUR) == 0
    assert one.forget(now(host) + HOUR) == 1
    assert [row["id"] for row in host.firings()] == [still_open]


def test_a_row_that_is_refused_is_reported_once_for_each_change(one: Firings, host: HostProject) -> None:
    task_id = add(host, "settle")
    assert one.refuse({task_id: 'no "ephem", \\ and\x00 so on'}) == 1
    assert one.refuse({task_id: "again"}) == 0
    (row,) = host.firings()
    assert (row["state"], row["error"]) == ("refused", 'no "ephem", \\ and so on')
    host.rows("UPDATE django_celery_beat_periodictask SET date_changed = now()")
    assert one.refuse({task_id: "again"}) == 1


def test_the_table_beside_theirs_is_the_one_that_our_migrations_make(
    one: Firings, host: HostProject, db: None
) -> None:
    columns = """
        SELECT column_name, data_type, character_maximum_length, is_nullable, is_identity
        FROM information_schema.columns WHERE table_name = 'beatkeeper_celery_firing' ORDER BY 1
    """
    indexes = """
        SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'beatkeeper_celery_firing'
        AND indexname NOT LIKE '%pkey' ORDER BY 1
    """
    for statement in (columns, indexes):
        with ours.cursor() as cursor:
            cursor.execute(statement)
            made_by_migration = cursor.fetchall()
        added = one.connection.execute(statement.encode()).fetchall()
        assert [_plain(row) for row in added] == [_plain(row) for row in made_by_migration]


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """PostgreSQL writes the same condition down as it was given."""
    return tuple(value.split(" WHERE ")[0] if isinstance(value, str) else value for value in row)


def test_two_that_start_at_once_make_one_table(host: HostProject) -> None:
    with session(host) as one, session(host) as other:
        with meanwhile(lambda: prepare(other)) as preparing:
            prepare(one)
        preparing.result(10)
    assert host.firings() == []


def test_a_database_without_their_tables_is_refused_in_words(host: HostProject) -> None:
    host.rows("ALTER TABLE django_celery_beat_periodictask RENAME TO gone")
    with session(host) as connection, pytest.raises(NotServable, match="run its migrations"):
        prepare(connection)


def test_times_without_a_zone_are_refused_in_words(host: HostProject) -> None:
    host.rows("ALTER TABLE django_celery_beat_periodictask ALTER last_run_at TYPE timestamp")
    with session(host) as connection, pytest.raises(NotServable, match="last_run_at in .* timestamptz"):
        prepare(connection)


def test_who_may_not_make_our_table_learns_what_helps(host: HostProject) -> None:
    with session(host) as connection:
        connection.execute("CREATE SCHEMA closed; SET search_path = closed, public; SET ROLE pg_monitor")
        with pytest.raises(NotServable, match="docs/how-to/celery-beat.md"):
            prepare(connection)


def test_messages_differ_by_database_task_and_time(one: Firings, host: HostProject) -> None:
    task, fire = due(one, host, add(host, "settle", interval_id=interval(host, 5)))
    ids = {
        message_id("one", task, fire.planned_at),
        message_id("other", task, fire.planned_at),
        message_id("one", task, fire.planned_at + timedelta(seconds=5)),
    }
    assert len(ids) == 3
