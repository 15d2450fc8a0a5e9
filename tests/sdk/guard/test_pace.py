"""How often an idle worker beats, the lease that it announces, and where its fence is meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from scheduler_project.sdk.errors import LedgerUnavailable
from scheduler_project.sdk.guard.guard import Guard
from scheduler_project.sdk.guard.heartbeat import HeartbeatThread
from scheduler_project.sdk.ledger.interface import (
    MAX_IDLE_LEASE,
    MAX_QUIET,
    Beat,
    HeartbeatResponse,
    base_token,
)
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.shared.header import HEARING_SECONDS
from scheduler_project.sdk.shared.owned_slot import OwnedSlot
from scheduler_project.sdk.shared.slot_record import FOREIGN, FREE
from scheduler_project.sdk.shared.spool import PendingReport
from tests.sdk.fake_ledger import QUEUE, FakeLedger
from tests.sdk.targets.test_celery_task import make_claim

LEASE, MARGIN, LOOK = 30.0, 5.0, 0.8
# Idle at once: nothing has to stay unchanged for a while.
CONFIG = Config("w", "host", "default", "", 2, "", "", [], lease=LEASE, margin=MARGIN, look=LOOK, beat=0.0)


class Fleet(FakeLedger):
    """A ledger with so many workers that each may be silent; it keeps the beats, and may lose answers."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.beats: list[Beat] = []
        self.quiet: float | None = MAX_QUIET
        self.with_work = self.is_away = self.loses_idle = False
        self.known = True
        self.fences: list[float] = []
        self.header: Any = None

    def heartbeat(self, beat: Beat) -> HeartbeatResponse:
        self.beats.append(beat)
        self.fences.append(self.header.fence_at)
        if self.is_away or (self.loses_idle and (beat.lease or 0.0) > LEASE):
            raise LedgerUnavailable("away")
        quiet = None if self.quiet is None else self.quiet if beat.idle else 0.0
        return HeartbeatResponse(known=self.known, work=[QUEUE] if self.with_work else [], quiet=quiet)


class Staged:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = Fleet(str(folder / "ledger"))
        config = replace(CONFIG, ledger_url=self.ledger.url, log_store_url=f"file://{folder}/logs", beat=LOOK)
        self.runtime = Runtime.create(folder / "spool", config)
        self.header = self.ledger.header = self.runtime.table.header
        self.clock = processes.boottime()
        monkeypatch.setattr(processes, "boottime", lambda: self.clock)
        monkeypatch.setattr("time.monotonic", lambda: self.clock)
        self.heartbeat = HeartbeatThread(self.runtime, self.ledger)
        self.heartbeat.send_next()
        assert not self.heartbeat.must_register

    def beat(self, after: float = LOOK, *, hears: bool = True) -> float:
        self.clock += after
        self.header.heard_at = self.clock if hears else 0.0
        return self.heartbeat.send_next()

    def quieten(self) -> float:
        """Beat until the worker is quiet; return the pause after the last beat."""
        pauses = [self.beat() for _ in range(4)]
        assert self.heartbeat.pace.quiet == MAX_QUIET
        return pauses[-1]

    @property
    def fence(self) -> float:
        """In seconds from now."""
        return round(self.header.fence_at - self.clock, 3)

    @property
    def leases(self) -> list[float | None]:
        return [beat.lease for beat in self.ledger.beats]

    def woken(self) -> bool:
        self.heartbeat._woken.clear()
        self.heartbeat.end_quiet()
        return self.heartbeat._woken.is_set()

    def take_slot(self, state: int) -> None:
        self.runtime.table.records[0].state = state


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staged:
    return Staged(tmp_path, monkeypatch)


def test_an_idle_worker_of_a_large_fleet_announces_a_longer_lease_and_keeps_quiet(staged: Staged) -> None:
    assert 0 < staged.quieten() <= MAX_QUIET
    assert staged.beat(MAX_QUIET) == MAX_QUIET
    assert staged.leases[0] == LEASE
    assert staged.leases[-1] == LEASE + MAX_QUIET
    assert staged.fence == LEASE + MAX_QUIET - MARGIN


def test_the_first_silence_ends_at_a_random_time(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that became idle together would look together, and nobody in between."""
    monkeypatch.setattr("random.random", lambda: 0.25)
    assert staged.quieten() in (MAX_QUIET / 4, MAX_QUIET)
    staged.ledger.is_away = True
    staged.beat(MAX_QUIET)
    staged.ledger.is_away = False
    assert staged.beat() == MAX_QUIET / 4, "all workers were without the ledger at the same time"
    assert staged.beat(MAX_QUIET / 4) == MAX_QUIET


def test_a_small_fleet_keeps_its_pace(staged: Staged) -> None:
    staged.ledger.quiet = LOOK
    assert [staged.beat() for _ in range(6)] == [LOOK] * 6
    assert set(staged.leases) == {LEASE}


def test_a_platform_that_does_not_know_of_it_is_asked_for_nothing(staged: Staged) -> None:
    staged.ledger.quiet = None
    assert [staged.beat() for _ in range(6)] == [LOOK] * 6
    assert set(staged.leases) == {LEASE}


def test_an_older_server_that_ignores_the_longer_lease_gives_no_longer_fence(staged: Staged) -> None:
    """Servers are replaced one by one: this answer comes from one that is still of the version before."""
    staged.quieten()
    staged.ledger.quiet = None
    assert staged.beat(MAX_QUIET) == LOOK
    assert staged.leases[-1] == LEASE + MAX_QUIET
    assert staged.fence == LEASE - MARGIN


CHANGES: dict[str, Callable[[Staged], object]] = {
    "slot": lambda staged: staged.take_slot(FOREIGN),
    "wakeups": lambda staged: setattr(staged.header, "heard_at", 0.0),
    "loop": lambda staged: setattr(staged.header, "heard_at", staged.clock - HEARING_SECONDS),
    "drain": lambda staged: setattr(staged.header, "drain_until", staged.clock + 20),
    "fence": lambda staged: setattr(staged.header, "fence_at", staged.clock),
    "feed": lambda staged: setattr(staged.heartbeat, "feeding", True),
    "run": lambda staged: claim_in(staged),
}


def claim_in(staged: Staged) -> OwnedSlot:
    slot = OwnedSlot.take(staged.runtime.table)
    assert slot is not None
    slot.request(base_token(), 1, uuid4())
    return slot


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_ends_the_quiet_at_once(staged: Staged, change: str) -> None:
    staged.quieten()
    assert not staged.woken()
    CHANGES[change](staged)
    assert staged.woken()
    staged.heartbeat.send_next()
    assert staged.leases[-1] == LEASE
    assert staged.fence == LEASE - MARGIN
    assert not staged.woken(), "it would beat without a pause"


def test_the_guard_ends_the_quiet_with_its_next_look(staged: Staged) -> None:
    staged.quieten()
    guard = Guard(staged.runtime)
    guard.heartbeat = staged.heartbeat
    guard.tick()
    staged.heartbeat._woken.clear()
    guard.tick()
    assert not staged.heartbeat._woken.is_set()
    staged.header.heard_at = 0.0
    guard.tick()
    assert staged.heartbeat._woken.is_set()


def test_a_task_of_the_host_that_goes_on_keeps_nobody_awake(staged: Staged) -> None:
    staged.take_slot(FOREIGN)
    staged.quieten()
    assert not staged.woken()
    staged.take_slot(FREE)
    assert staged.woken()


def test_a_worker_without_room_keeps_its_pace(staged: Staged) -> None:
    for record in staged.runtime.table.records:
        record.state = FOREIGN
    for _ in range(6):
        staged.beat()
    assert set(staged.leases) == {LEASE}


@pytest.mark.parametrize("why", ["spool", "work", "deaf"])
def test_a_worker_with_something_to_do_is_not_quiet(staged: Staged, why: str) -> None:
    if why == "spool":
        staged.runtime.spool.put(PendingReport(make_claim({})))
    staged.ledger.with_work = why == "work"
    for _ in range(6):
        staged.beat(hears=why != "deaf")
    assert set(staged.leases) == {LEASE}


@pytest.mark.parametrize(("lease", "largest"), [(6.0, 12.0), (30.0, 50.0), (45.0, 60.0), (90.0, 90.0)])
def test_a_lease_at_most_doubles_and_none_grows_beyond_a_minute(
    staged: Staged, lease: float, largest: float
) -> None:
    staged.runtime.config = replace(staged.runtime.config, lease=lease)
    staged.heartbeat.must_register = True
    for _ in range(6):
        staged.beat()
    assert max(filter(None, staged.leases)) == largest
    assert largest <= max(lease, MAX_IDLE_LEASE)


# The fence, whatever is lost on the way.


def test_the_answer_to_a_busy_beat_is_lost_after_an_idle_one(staged: Staged) -> None:
    """The ledger may hold the shorter lease from the moment at which the beat is sent."""
    staged.quieten()
    claim_in(staged)
    staged.ledger.is_away = True
    staged.beat(MAX_QUIET / 2)
    assert staged.ledger.fences[-1] - staged.clock == pytest.approx(LEASE - MARGIN), (
        "lowered before it was sent"
    )
    sent_at = staged.clock
    for _ in range(3):
        staged.beat()
    assert staged.header.fence_at == pytest.approx(sent_at + LEASE - MARGIN), (
        "the first that may have arrived counts"
    )


def test_an_idle_beat_without_an_answer_lengthens_nothing(staged: Staged) -> None:
    staged.ledger.loses_idle = True
    while staged.heartbeat.pace.lease == LEASE:
        before = staged.header.fence_at
        staged.beat()
    assert staged.leases[-2:] == [LEASE, LEASE + MAX_QUIET]
    assert staged.header.fence_at == before


def test_a_late_answer_counts_from_when_its_beat_was_sent(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged.quieten()
    answered = staged.ledger.heartbeat

    def late(beat: Beat) -> HeartbeatResponse:
        staged.clock += 9
        return answered(beat)

    monkeypatch.setattr(staged.ledger, "heartbeat", late)
    staged.beat(MAX_QUIET)
    assert staged.leases[-1] == LEASE + MAX_QUIET
    assert staged.fence == LEASE + MAX_QUIET - MARGIN - 9


def test_an_expired_worker_begins_anew_with_the_shorter_lease(staged: Staged) -> None:
    staged.quieten()
    staged.ledger.known = False
    staged.beat(MAX_QUIET)
    staged.ledger.known = True
    staged.beat()
    assert staged.fence == LEASE - MARGIN
    staged.beat()
    assert staged.leases[-1] == LEASE


def test_the_next_guard_begins_with_the_shorter_lease(staged: Staged) -> None:
    staged.quieten()
    number, at = staged.header.beats, staged.header.fence_at
    staged.heartbeat = HeartbeatThread(staged.runtime, staged.ledger)
    assert staged.header.fence_at == at
    staged.ledger.is_away = True
    staged.beat()
    assert staged.ledger.beats[-1].number == number + 1, (
        "what the guard before had sent is refused from now on"
    )
    assert staged.leases[-1] == LEASE
    assert staged.fence == LEASE - MARGIN
