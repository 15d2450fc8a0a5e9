"""Who keeps a feed: when it holds one for hung, and what becomes of that one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduler_project.sdk.guard import feed_supervisor as feed_keeper_module
from scheduler_project.sdk.guard.feed_supervisor import FeedSupervisor
from scheduler_project.sdk.shared.folder import Config, Runtime
from tests.sdk.stage import gone, stop
from tests.support.waiting import wait_until

LEASE = 0.5


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FeedSupervisor]:
    """Start a feed whose loop turns at most once."""
    config = Config("w", "host", "default", "", 1, "", f"file://{tmp_path}/logs", [], lease=LEASE)
    monkeypatch.setattr(feed_keeper_module, "command", lambda _: [sys.executable, "-c", "input()"])
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **{**options, "stdin": subprocess.PIPE}))  # type: ignore[call-overload]
        return started[-1]

    theirs = SimpleNamespace(Popen=noted, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(feed_keeper_module, "subprocess", theirs)
    kept = FeedSupervisor(Runtime.create(tmp_path / "spool", config))
    kept.start()
    yield kept
    for process in started:
        process.kill()
        process.communicate()


def looked_at_until_it_is_replaced(kept: FeedSupervisor) -> None:
    def looks() -> bool:
        kept.replace_if_hung()
        return not kept.is_running()

    wait_until(looks, 20, "a feed that is held for hung", interval=0.02)


def test_one_that_hangs_while_it_loads_is_replaced_after_a_while(
    kept: FeedSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = kept._runtime.table.header.feed_pid
    kept._hang_detector._seconds = 10 * LEASE
    kept.replace_if_hung()
    assert kept.is_running(), "an app may take longer to load than a lease"
    monkeypatch.setattr(feed_keeper_module, "LOADING_SECONDS", LEASE)
    looked_at_until_it_is_replaced(kept)
    wait_until(lambda: not kept.replace_if_hung() and not kept.has_any_left(), 10, "its end")  # type: ignore[func-returns-value]
    assert gone(pid)


def test_one_that_ended_by_itself_is_not_hung(kept: FeedSupervisor) -> None:
    pid = kept._runtime.table.header.feed_pid
    stop(pid)
    kept._feed.kill()  # type: ignore[union-attr]
    wait_until(lambda: not kept.is_running(), 10, "its end")
    kept.replace_if_hung()
    assert not kept.has_any_left() and kept.ended_with is not None


def test_the_sign_of_life_is_the_working_feeds_alone(kept: FeedSupervisor) -> None:
    table = kept._runtime.table
    table.header.note_feed_turn()
    assert table.header.feed_turned_at == 0.0, "one that was replaced and wakes"
