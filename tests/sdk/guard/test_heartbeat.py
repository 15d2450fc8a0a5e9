"""What a guard says of its worker, and how often, over a ledger in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from scheduler_project.sdk.guard.heartbeat import HeartbeatThread
from scheduler_project.sdk.guard.held_claims import held_claims
from scheduler_project.sdk.guard.pace import FEEDING
from scheduler_project.sdk.ledger.interface import Beat, HeartbeatResponse, base_token
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.shared.spool import PendingReport, Spool, unconfirmed_claim
from tests.sdk.fake_ledger import QUEUE, FakeLedger
from tests.sdk.targets.test_celery_task import make_claim


class Listening(FakeLedger):
    """A ledger that keeps the beats."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.beats: list[Beat] = []
        self.has_work = True

    def heartbeat(self, beat: Beat) -> HeartbeatResponse:
        self.beats.append(beat)
        return HeartbeatResponse(known=True, work=[QUEUE] if self.has_work else [])


def test_without_wakeups_work_is_requested_as_soon_as_it_is_queued(tmp_path: Path) -> None:
    ledger = Listening(str(tmp_path / "ledger"))
    heartbeat = registered(tmp_path, ledger)
    usual = heartbeat.send_next()
    heartbeat.feeding = True
    assert heartbeat.send_next() == FEEDING < usual
    assert [beat.feed_after for beat in ledger.beats] == [1.0, 0.0]


def test_a_feed_without_work_does_not_hasten_the_beats(tmp_path: Path) -> None:
    ledger = Listening(str(tmp_path / "ledger"))
    heartbeat = registered(tmp_path, ledger)
    heartbeat.feeding, ledger.has_work = True, False
    assert heartbeat.send_next() > FEEDING


def test_unconfirmed_claims_that_move_to_the_spool_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery is a thread beside the heartbeat: it may do so between two looks."""
    runtime = registered(tmp_path, Listening(str(tmp_path / "ledger")))._runtime
    unconfirmed = unconfirmed_claim(uuid4(), base_token(), 1)
    runtime.spool.put_unconfirmed(unconfirmed)

    def moving(look: Callable[[Spool], Any]) -> Callable[[Spool], Any]:
        def then_moved(spool: Spool) -> Any:
            found = look(spool)
            spool.put(PendingReport(make_claim({}, token=unconfirmed.base)))
            spool.remove_unconfirmed(unconfirmed)
            return found

        return then_moved

    for name in ("tokens", "unconfirmed"):
        monkeypatch.setattr(Spool, name, moving(getattr(Spool, name)))
    assert unconfirmed.base in held_claims(runtime).tokens


def registered(folder: Path, ledger: FakeLedger) -> HeartbeatThread:
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{folder}/logs", [])
    heartbeat = HeartbeatThread(Runtime.create(folder / "spool", config), ledger)
    heartbeat.send_next()
    return heartbeat
