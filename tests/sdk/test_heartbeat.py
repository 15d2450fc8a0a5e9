"""What a guard says of its worker, and how often, over a ledger in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from scheduler_project.sdk.heartbeat import FEEDING, Heartbeat, in_hand
from scheduler_project.sdk.ledger import Answer, Beat, base_token
from scheduler_project.sdk.runtime import Config, Runtime
from scheduler_project.sdk.spool import Spool, Untold, unheard_now
from tests.sdk.fake_ledger import LANE, FakeLedger
from tests.sdk.test_celery_target import make_claim


class Listening(FakeLedger):
    """Remembers what it was told."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.beats: list[Beat] = []
        self.has_work = True

    def heartbeat(self, beat: Beat) -> Answer:
        self.beats.append(beat)
        return Answer(known=True, work=[LANE] if self.has_work else [])


def test_without_permits_work_is_asked_for_as_soon_as_it_is_queued(tmp_path: Path) -> None:
    ledger = Listening(str(tmp_path / "ledger"))
    heartbeat = registered(tmp_path, ledger)
    usual = heartbeat.say()
    heartbeat.feeding = True
    assert heartbeat.say() == FEEDING < usual
    assert [beat.feed_after for beat in ledger.beats] == [1.0, 0.0]


def test_a_feed_without_work_does_not_hurry_the_beats(tmp_path: Path) -> None:
    ledger = Listening(str(tmp_path / "ledger"))
    heartbeat = registered(tmp_path, ledger)
    heartbeat.feeding, ledger.has_work = True, False
    assert heartbeat.say() > FEEDING


def test_claims_that_move_from_unheard_to_the_spool_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery is a thread beside the heartbeat: it may do so between two looks."""
    runtime = registered(tmp_path, Listening(str(tmp_path / "ledger")))._runtime
    unheard = unheard_now(uuid4(), base_token(), 1)
    runtime.spool.put_unheard(unheard)

    def moving(look: Callable[[Spool], Any]) -> Callable[[Spool], Any]:
        def then_moved(spool: Spool) -> Any:
            found = look(spool)
            spool.put(Untold(make_claim({}, token=unheard.base)))
            spool.remove_unheard(unheard)
            return found

        return then_moved

    for name in ("tokens", "unheard"):
        monkeypatch.setattr(Spool, name, moving(getattr(Spool, name)))
    assert unheard.base in in_hand(runtime).tokens


def registered(folder: Path, ledger: FakeLedger) -> Heartbeat:
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{folder}/logs", [])
    heartbeat = Heartbeat(Runtime.create(folder / "spool", config), ledger)
    heartbeat.say()
    return heartbeat
