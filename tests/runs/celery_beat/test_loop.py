"""Pass over another code base's rows, with a publisher that records what it is given or fails on request."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from celery import Celery

from runs.celery_beat import due_tasks as rows_module
from runs.celery_beat.firings import MAX_TRIES
from runs.celery_beat.loop import PUBLISHING_SECONDS, CeleryBeatLoop
from runs.celery_beat.publisher import Away, Undelivered, Unsendable
from runs.celery_beat.source import Source
from runs.scheduler.partitions.lock_session import LockSession
from tests.runs.celery_beat.host import HostProject
from tests.runs.celery_beat.rows import HOUR, add, clocked, crontab, interval, now
from tests.support.waiting import wait_until

UTC = timezone.utc


class Killed(BaseException):
    """The process is gone at this point."""


class Notes:
    """A broker and the way to it."""

    def __init__(self) -> None:
        self.app = Celery("host", set_as_current=False)
        self.ready = True
        self.sent: list[Any] = []
        # Raised instead of sending, or once it is sent.
        self.before: BaseException | None = None
        self.after: BaseException | None = None

    def is_ready(self) -> bool:
        return self.ready

    def send(self, message: Any) -> None:
        if self.before is not None:
            raise self.before
        self.sent.append(message)
        if self.after is not None:
            raise self.after

    def close(self) -> None:
        self.ready = False

    @property
    def names(self) -> list[str]:
        return [message.name for message in self.sent]


class Scheduler:
    def __init__(self, host: HostProject, session: LockSession, notes: Notes, **source: Any) -> None:
        self.host, self.notes = host, notes
        self.work = CeleryBeatLoop(session, Source(host.url, notes.app, **source), notes)  # type: ignore[arg-type]

    def passes(self, count: int = 3) -> None:
        """With all clocks of the loop run down: the next pass does all that any pass does."""
        for _ in range(count):
            self.work._balanced_at = self.work._glanced_at = self.work._opened_at = self.work._forgot_at = 0.0
            self.work.step()


@contextmanager
def scheduler(host: HostProject, notes: Notes, **source: Any) -> Iterator[Scheduler]:
    with LockSession(host.url, "a scheduler") as session:
        yield Scheduler(host, session, notes, **source)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def one(host: HostProject, notes: Notes) -> Iterator[Scheduler]:
    with scheduler(host, notes) as made:
        yield made


def test_what_is_due_is_sent_once(one: Scheduler, host: HostProject, notes: Notes) -> None:
    add(host, "settle", args="[7]")
    add(host, "not yet", last_run_at=now(host))
    one.passes()
    (message,) = notes.sent
    assert (message.name, message.task, message.args) == ("settle", "their.witness", "[7]")
    (firing,) = host.firings()
    assert firing["state"] == "sent" and firing["message_id"] == message.message_id


def test_an_edit_by_whatever_way_is_seen_by_the_next_glance(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    first = add(host, "first", last_run_at=now(host))
    gone = add(host, "gone", last_run_at=now(host))
    one.passes()
    assert notes.sent == []
    host.rows("DELETE FROM django_celery_beat_periodictask WHERE id = %s", [gone])
    add(host, "new", id=gone + 16)
    one.passes()
    assert notes.names == ["new"]
    host.rows("UPDATE django_celery_beat_intervalschedule SET every = 1")
    host.rows(
        "UPDATE django_celery_beat_periodictask SET last_run_at = now() - interval '10 s' WHERE id = %s",
        [first],
    )
    one.passes(1)
    assert "first" in notes.names
    host.rows("UPDATE django_celery_beat_periodictask SET enabled = false")
    one.passes()
    notes.sent.clear()
    one.passes()
    assert notes.sent == []


def test_an_edit_of_a_schedule_alone_is_seen(one: Scheduler, host: HostProject, notes: Notes) -> None:
    every = interval(host, 7200)
    add(host, "settle", interval_id=every)
    one.passes()
    assert notes.sent == []
    host.rows("UPDATE django_celery_beat_intervalschedule SET every = 3600 WHERE id = %s", [every])
    one.passes()
    assert notes.names == ["settle"]


def test_while_nobody_edits_no_row_is_read(
    one: Scheduler, host: HostProject, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(host, "settle", interval_id=interval(host, 1))
    one.passes()
    monkeypatch.setattr(rows_module, "read_tasks", None)

    def sent_again() -> bool:
        one.passes(1)
        return len(notes.sent) > 2

    wait_until(sent_again, 20, "two further firings, which are changes of our own")


def test_a_row_that_cannot_be_reckoned_is_reported_and_the_others_go_on(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    add(host, "without end", interval_id=interval(host, 0))
    add(host, "settle")
    one.passes()
    assert notes.names == ["settle"]
    refused = next(firing for firing in host.firings() if firing["name"] == "without end")
    assert refused["state"] == "refused" and "1 or more" in refused["error"]
    host.rows("UPDATE django_celery_beat_intervalschedule SET every = 1 WHERE every = 0")
    one.passes()
    assert "without end" in notes.names


def test_a_message_that_cannot_be_made_is_reported_and_the_others_go_on(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    add(host, "settle")
    notes.before = Unsendable("its args are not JSON")
    one.passes()
    (firing,) = host.firings()
    assert (firing["state"], firing["error"]) == ("refused", "its args are not JSON")


def test_while_the_broker_is_away_nothing_is_claimed_and_then_the_latest_goes_once(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    add(host, "settle", interval_id=interval(host, 60))
    notes.ready = False
    one.passes()
    assert host.firings() == []
    notes.ready = True
    one.passes()
    (firing,) = host.firings()
    assert len(notes.sent) == 1 and firing["state"] == "sent"
    assert firing["missed_since"] is not None
    assert now(host) - firing["planned_at"] < timedelta(seconds=61)


def test_a_broker_that_leaves_before_a_message_goes_out_costs_time_only(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    add(host, "settle")
    notes.before = Away()
    one.passes()
    (firing,) = host.firings()
    assert (firing["state"], firing["error"]) == ("claimed", "")
    notes.before = None
    one.passes()
    assert notes.names == ["settle"]


@pytest.mark.parametrize("resend", [True, False])
def test_a_broker_that_leaves_amid_a_message_is_reported_and_goes_by_the_settings(
    host: HostProject, notes: Notes, resend: bool
) -> None:
    with scheduler(host, notes, resend=resend) as one:
        add(host, "settle")
        notes.after = Undelivered("the line was cut")
        one.passes(1)
        notes.after = None
        one.passes()
    assert len(notes.sent) == (2 if resend else 1)
    assert len({message.message_id for message in notes.sent}) == 1
    (firing,) = host.firings()
    assert firing["state"] == ("sent" if resend else "unknown") and "the line was cut" in firing["error"]


def test_a_message_that_takes_the_broker_down_each_time_is_given_up_and_the_others_go_on(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    add(host, "poison")
    notes.before = Undelivered("the line was cut")
    one.passes(MAX_TRIES)
    (firing,) = host.firings()
    assert (firing["state"], firing["tries"]) == ("refused", MAX_TRIES)
    assert "given up after 5 tries" in firing["error"] and "the line was cut" in firing["error"]
    notes.before = None
    add(host, "settle")
    one.passes()
    assert notes.names == ["settle"]


def test_a_message_that_takes_its_scheduler_down_each_time_is_given_up(
    host: HostProject, notes: Notes
) -> None:
    add(host, "poison")
    notes.before = Killed()
    for _ in range(MAX_TRIES):
        with scheduler(host, notes) as killed, pytest.raises(Killed):
            killed.passes()
    with scheduler(host, notes) as another:
        another.passes()
    (firing,) = host.firings()
    assert (firing["state"], firing["tries"]) == ("unknown", MAX_TRIES)


def test_who_holds_no_slice_any_more_sends_nothing(one: Scheduler, host: HostProject, notes: Notes) -> None:
    add(host, "settle", last_run_at=now(host) - HOUR + timedelta(seconds=1))
    one.passes()
    one.work.tasks.hold([])
    assert one.work.tasks.known == {}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("resend", [True, False])
def test_a_scheduler_that_dies_over_a_message_leaves_it_to_the_next(
    host: HostProject, notes: Notes, moment: str, resend: bool
) -> None:
    """Whether it had arrived nobody can tell: sent again it has the same id, not sent again it is told."""
    with scheduler(host, notes, resend=resend) as killed:
        add(host, "settle")
        setattr(notes, moment, Killed())
        with pytest.raises(Killed):
            killed.passes()
    assert [firing["state"] for firing in host.firings()] == ["publishing"]
    setattr(notes, moment, None)
    with scheduler(host, notes, resend=resend) as another:
        another.passes()
    (firing,) = host.firings()
    assert firing["state"] == ("sent" if resend else "unknown") and "arrived" in firing["error"]
    assert len(notes.sent) == (moment == "after") + resend
    assert {message.message_id for message in notes.sent} <= {firing["message_id"]}


def test_a_scheduler_that_dies_before_it_publishes_loses_and_doubles_nothing(
    host: HostProject, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Killed

    with scheduler(host, notes, resend=False) as killed:
        for number in range(3):
            add(host, f"settle {number}")
        monkeypatch.setattr(killed.work.firings, "publish", die)
        with pytest.raises(Killed):
            killed.passes()
    assert {firing["state"] for firing in host.firings()} == {"claimed"}
    with scheduler(host, notes, resend=False) as another:
        another.passes()
    assert sorted(notes.names) == ["settle 0", "settle 1", "settle 2"]
    assert {(firing["state"], firing["error"]) for firing in host.firings()} == {("sent", "")}


def test_one_that_was_stopped_amid_its_messages_sends_no_more_when_it_wakes(
    one: Scheduler, host: HostProject, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(host, "settle")
    monkeypatch.setattr("runs.celery_beat.loop.PUBLISHING_SECONDS", -1.0)
    one.passes(1)
    assert notes.sent == [] and [firing["state"] for firing in host.firings()] == ["claimed"]
    monkeypatch.undo()
    one.passes()
    assert notes.names == ["settle"]


def test_one_that_was_stopped_while_it_marked_its_messages_sends_none_of_them(
    host: HostProject, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time it wakes its session is ended, and another has sent what was publishing."""
    add(host, "settle")
    others = Notes()
    with LockSession(host.url, "stopped") as session:
        stopped = Scheduler(host, session, notes)
        publish = stopped.work.firings.publish

        def stopped_then(firings: Any) -> Any:
            marked = publish(firings)
            host.rows("SELECT pg_terminate_backend(%s)", [session.pid])
            with scheduler(host, others) as another:
                another.passes(4)
            later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * PUBLISHING_SECONDS)
            monkeypatch.setattr("runs.celery_beat.loop.time", later)
            return marked

        monkeypatch.setattr(stopped.work.firings, "publish", stopped_then)
        with pytest.raises(psycopg.Error):
            stopped.passes()
    assert others.names == ["settle"] and notes.sent == []


def test_a_firing_whose_row_was_deleted_is_refused(one: Scheduler, host: HostProject, notes: Notes) -> None:
    add(host, "settle")
    notes.before = Away()
    one.passes(1)
    assert [firing["state"] for firing in host.firings()] == ["claimed"]
    host.rows("DELETE FROM django_celery_beat_periodictask")
    notes.before = None
    one.passes()
    (firing,) = host.firings()
    assert notes.sent == [] and firing["state"] == "refused" and "was deleted" in firing["error"]


def test_two_share_the_rows_out_and_send_each_once(host: HostProject, notes: Notes) -> None:
    for number in range(40):
        add(host, f"settle {number}")
    others = Notes()
    with scheduler(host, notes) as one, scheduler(host, others) as other:
        for _ in range(4):
            one.passes(1)
            other.passes(1)
        assert one.work.holds() == other.work.holds() == 8
    assert len(notes.sent) + len(others.sent) == 40
    assert len({message.message_id for message in notes.sent + others.sent}) == 40


def test_what_runs_once_and_what_has_expired_is_switched_off(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    add(host, "once", one_off=True)
    add(host, "expired", expires=now(host) - HOUR)
    add(host, "has run", one_off=True, total_run_count=1)
    one.passes()
    assert notes.names == ["once"]
    assert not any(host.task(name)["enabled"] for name in ("once", "expired", "has run"))


DISABLE_SELECTED = "UPDATE django_celery_beat_periodictask SET enabled = false, last_run_at = NULL"
ENABLE_SELECTED = "UPDATE django_celery_beat_periodictask SET enabled = true"


def test_a_row_that_is_switched_off_and_on_in_their_admin_waits_for_its_next_time(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    """The admin's actions are updates, and leave date_changed where the last firing has put it."""
    at = now(host)
    monthly = crontab(host, "0", "0", str((at - timedelta(days=12)).day))
    made = at - timedelta(days=700)
    add(host, "billing", crontab_id=monthly, last_run_at=at - timedelta(days=40), date_changed=made)
    one.passes()
    assert notes.names == ["billing"]
    host.rows("DELETE FROM beatkeeper_celery_firing")
    host.rows(DISABLE_SELECTED)
    one.passes()
    host.rows(ENABLE_SELECTED)
    one.passes()
    assert notes.names == ["billing"]


def test_rows_whose_last_run_is_taken_back_do_not_all_run_at_once(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    """As their README says to do after a change of the time zone."""
    at = now(host)
    daily = interval(host, 1, "days")
    add(host, "daily", interval_id=daily, last_run_at=at - 25 * HOUR, date_changed=at - 700 * 24 * HOUR)
    one.passes()
    host.rows("UPDATE django_celery_beat_periodictask SET last_run_at = NULL")
    one.passes()
    assert notes.names == ["daily"]


def test_one_that_ran_once_and_is_switched_on_again_has_a_further_time(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    at = now(host)
    hourly = crontab(host, str((at - timedelta(minutes=2)).minute), "*")
    made = at - timedelta(minutes=50)
    add(host, "once", one_off=True, crontab_id=hourly, last_run_at=None, date_changed=made)
    one.passes()
    assert notes.names == ["once"] and not host.task("once")["enabled"]
    host.rows(ENABLE_SELECTED)
    one.passes()
    assert host.task("once")["enabled"]


def test_a_last_run_that_is_to_come_counts_as_now(one: Scheduler, host: HostProject, notes: Notes) -> None:
    """As a clock that was ahead, or a scheduler that mistook the zone, has left it."""
    task = add(host, "settle", last_run_at=now(host) + 5 * HOUR)
    never = add(host, "never", last_run_at=None, date_changed=now(host))
    one.passes()
    known = one.work.tasks.known
    counts_from = known[task].last_run_at
    assert counts_from is not None and counts_from <= now(host)
    assert known[never].last_run_at is None
    next_at = one.work.tasks.next_at()
    assert notes.sent == [] and next_at is not None and next_at <= now(host) + HOUR


def test_one_that_expired_counts_from_then_when_it_is_switched_on_again(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    add(host, "expired", expires=now(host) - HOUR)
    one.passes()
    host.rows(ENABLE_SELECTED + ", expires = NULL")
    one.passes()
    assert notes.sent == [] and host.task("expired")["enabled"]


def test_a_clocked_row_that_is_not_said_to_run_once_does_so(
    one: Scheduler, host: HostProject, notes: Notes
) -> None:
    """Their model refuses it in a form; bulk_create() and update() do not ask."""
    at = clocked(host, now(host) - timedelta(seconds=5))
    add(host, "clocked", clocked_id=at, last_run_at=None)
    add(host, "both", clocked_id=at, interval_id=interval(host))
    one.passes()
    assert sorted(notes.names) == ["both", "clocked"]
    assert host.task("both")["enabled"]
    row = host.task("clocked")
    assert (row["enabled"], row["last_run_at"], row["total_run_count"]) == (False, None, 1)
    assert one.work.tasks.next_at() is not None and one.work.step() > 0
    host.rows(ENABLE_SELECTED)
    one.passes()
    assert sorted(notes.names) == ["both", "clocked", "clocked"]


def test_settled_firings_are_forgotten_after_the_days_that_the_settings_say(
    host: HostProject, notes: Notes
) -> None:
    with scheduler(host, notes, keep_days=0.5) as one:
        add(host, "settle")
        one.passes()
        host.rows(
            "UPDATE beatkeeper_celery_firing SET planned_at = %s, claimed_at = %s",
            [datetime(2026, 1, 1, tzinfo=UTC)] * 2,
        )
        one.passes(1)
    assert host.firings() == []


def test_fifty_thousand_rows_are_read_and_looked_over_within_the_time_of_a_session(
    host: HostProject, notes: Notes
) -> None:
    every = interval(host, 86_400)
    host.rows(
        "INSERT INTO django_celery_beat_periodictask (name, task, args, kwargs, headers, enabled, one_off, description,"
        " total_run_count, date_changed, last_run_at, interval_id)"
        " SELECT 'task ' || n, 'their.witness', '[]', '{}', '{}', true, false, '', 0, now(), now(), %s"
        " FROM generate_series(1, 50000) n",
        [every],
    )
    with scheduler(host, notes) as one:
        one.passes(2)
        assert len(one.work.tasks.known) == 50_000
        assert one.work.tasks.glance() == 0
        add(host, "settle")
        one.passes(1)
    assert notes.names == ["settle"]
    assert isinstance(notes.sent[0].message_id, UUID)
