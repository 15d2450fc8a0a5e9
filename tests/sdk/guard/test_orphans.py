"""What dead workers left on a machine, and who reports it."""

import contextlib
import fcntl
import os
import socket
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from scheduler_project.sdk.guard.guard import Guard
from scheduler_project.sdk.guard.orphans import LOCK, Orphans, is_orphan
from scheduler_project.sdk.ledger.interface import WorkerInfo
from scheduler_project.sdk.process import processes as os_processes
from scheduler_project.sdk.shared.folder import Config, Runtime
from tests.sdk.fake_ledger import FakeLedger
from tests.sdk.stage import Stage, gone, kill, stop
from tests.support.processes import Processes
from tests.support.waiting import wait_until


def test_what_a_worker_and_its_guard_left_is_reported_by_the_next(
    processes: Processes, tmp_path: Path
) -> None:
    stage = Stage(processes, tmp_path)
    worker = stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 60, retry={"max_attempts": 1})
    stage.wait_for_event("sleeps", run)
    kill(stage.guard_pid())
    kill(worker.pid)
    assert stage.ledger.ends(run) == []
    stage.feed()
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    wait_until(lambda: len(list(stage.spool.glob("worker-*"))) == 1, 10, "only the new folder")


def test_what_was_left_is_reported_also_when_the_ledger_comes_back_after_the_next_worker(
    processes: Processes, tmp_path: Path
) -> None:
    """As on a machine that starts before its database does."""
    stage = Stage(processes, tmp_path)
    worker = stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 1, retry={"max_attempts": 1})
    stage.wait_for_event("sleeps", run)
    stage.ledger.away.touch()
    wait_until(lambda: stage.worker_spool().tokens(), 15, "its result on disk")
    guard = stage.guard_pid()
    [left] = stage.spool.glob("worker-*")
    kill(guard)
    kill(worker.pid)
    stage.processes.python(
        *("scheduler_project.sdk.worker.feed", "--app", "tests.support.sample_tasks", "--slots", "1"),
        env=stage.environment(),
        name="next feed",
    )
    wait_until(lambda: is_locked(left / LOCK), 20, "the next guard to try")
    wait_until(lambda: not is_locked(left / LOCK), 20, "it to give up")
    stage.ledger.away.unlink()
    assert stage.wait_for_end(run)["kind"] == "succeeded"


def is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_folder_of_a_worker_in_another_container_is_left_alone(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are invisible from here, so they look dead while they live."""
    stage = Stage(processes, tmp_path)
    worker = stage.feed()
    [folder] = stage.spool.glob("worker-*")
    guard = stage.guard_pid()
    stop(guard)
    kill(worker.pid)
    kill(guard)
    wait_until(lambda: gone(worker.pid) and gone(guard), 10, "their ends")
    monkeypatch.setattr("socket.gethostname", lambda: "another-container")
    orphans = Orphans(folder.with_name("worker-of-ours"), Guard)
    orphans.settle_all()
    assert folder.exists()
    monkeypatch.undo()
    orphans.settle_all()
    wait_until(lambda: not folder.exists(), 10, "its end")


def test_a_folder_that_is_only_being_made_is_no_orphan(tmp_path: Path) -> None:
    ledger = FakeLedger(str(tmp_path / "ledger"))
    ledger.register(WorkerInfo(uuid4(), "w", "default", "host", 1, 1, []))
    newborn = tmp_path / "spool" / "worker-1-x"
    newborn.mkdir(parents=True)
    Orphans(tmp_path / "spool" / "worker-2-y", Guard).settle_all()
    assert newborn.exists()


def a_folder(path: Path) -> Path:
    """Of a worker that is this process."""
    config = Config("w", socket.gethostname(), "default", "", 1, "", f"file://{path}/logs", [])
    return Runtime.create(path / "spool", config).folder


def open_below(folder: Path) -> int:
    """Count the files of this folder that are open here. Others are other tests', and may be closed at any moment."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/")
    return found


def test_a_second_settling_knows_what_was_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as worker:
        Runtime(folder).table.header.parent = os_processes.identity(worker.pid)
        assert not is_orphan(folder)
        worker.kill()
    assert is_orphan(folder)
    made = []

    class DomainError:
        """A guard whose result is refused for so many rounds."""

        def __init__(self, runtime: Runtime) -> None:
            made.append(self)
            self.runtime, self.rounds = runtime, 3

        def settle(self) -> bool:
            self.rounds -= 1
            return not self.rounds

    orphans = Orphans(tmp_path / "spool" / "worker-of-ours", DomainError)
    for _ in range(3):
        orphans.settle_all()
    assert len(made) == 1


def test_an_orphan_that_cannot_be_taken_on_costs_no_more_at_each_look(tmp_path: Path) -> None:
    """As one whose ledger is behind a CA that is gone: an older worker of another code base, perhaps."""
    folder = a_folder(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as worker:
        Runtime(folder).table.header.parent = os_processes.identity(worker.pid)
        worker.kill()
    opened = []

    def guard_of(runtime: Runtime) -> Guard:
        opened.append(runtime.table.folder)
        raise ValueError("no such CA file")

    orphans = Orphans(tmp_path / "spool" / "worker-of-ours", guard_of)
    orphans.settle_all()
    before = open_below(tmp_path)
    for _ in range(10):
        orphans.settle_all()
    assert open_below(tmp_path) == before and len(opened) == 11


def test_looking_at_workers_that_live_opens_nothing_for_long(tmp_path: Path) -> None:
    """It is done every few seconds, for as long as a worker runs."""
    assert not is_orphan(a_folder(tmp_path))
    orphans = Orphans(tmp_path / "spool" / "worker-of-ours", Guard)
    before = open_below(tmp_path)
    for _ in range(10):
        orphans.settle_all()
    assert open_below(tmp_path) == before


def test_a_guard_that_cannot_look_takes_no_worker_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(*_arguments: object, **_options: object) -> None:
        raise OSError(24, "Too many open files")

    me, started = os.getpid(), os_processes.started(os.getpid())
    monkeypatch.setattr(os_processes, "open", too_many, raising=False)
    with pytest.raises(OSError, match="Too many"):
        os_processes.alive(me, started)
