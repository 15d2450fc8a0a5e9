"""What a guard says of its worker, and how often, over a ledger in this process."""

from pathlib import Path

from scheduler_project.sdk.heartbeat import FEEDING, Heartbeat
from scheduler_project.sdk.ledger import Answer, Beat
from scheduler_project.sdk.runtime import Config, Runtime
from tests.sdk.fake_ledger import LANE, FakeLedger


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


def registered(folder: Path, ledger: FakeLedger) -> Heartbeat:
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{folder}/logs", [])
    heartbeat = Heartbeat(Runtime.create(folder / "spool", config), ledger)
    heartbeat.say()
    return heartbeat
