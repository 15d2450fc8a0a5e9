"""Attacks logs that are too long, and disks that are full: what is missing is counted, and nothing else is lost."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from runs.ledger.checks import check_member
from scheduler_project.sdk.logs.capture import AttemptLog, captured
from scheduler_project.sdk.logs.entry import MAX_LINE
from scheduler_project.sdk.logs.folder import FolderLogStore
from scheduler_project.sdk.logs.open_files import MAX_BYTES
from scheduler_project.sdk.logs.remote import RemoteLogStore
from tests.support.processes import CHECKOUT

MOST = 20_000


@pytest.fixture
def store(tmp_path: Path) -> FolderLogStore:
    return FolderLogStore(tmp_path)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_project.sdk.logs.open_files.MAX_BYTES", MOST)


def read(store: FolderLogStore, run: UUID) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (store.read_whole(run, 1) or b"").splitlines()]


def write(store: FolderLogStore, count: int, *, close: bool = True) -> UUID:
    run = uuid4()
    log = AttemptLog(store, run, 1)
    for number in range(1, count + 1):
        log.write("stdout", f"line {number}")
    if close:
        log.close()
    return run


@pytest.mark.parametrize("count", [1, 100, 200, 210, 250, 300, 1_000, 3_000])
@pytest.mark.parametrize("close", [True, False])
def test_the_beginning_and_the_end_are_kept_and_the_rest_is_counted(
    store: FolderLogStore, count: int, close: bool
) -> None:
    """Also of a child that is killed, which closes nothing."""
    lines = read(store, write(store, count, close=close))
    gaps = [line for line in lines if line["s"] == "beatkeeper"]
    kept = [line for line in lines if line["s"] == "stdout"]
    assert [line["m"] for line in kept] == [f"line {line['n']}" for line in kept]
    assert kept[0]["n"] == 1 and kept[-1]["n"] == count
    assert [line["n"] for line in lines] == sorted(line["n"] for line in lines)
    missing = count - len(kept)
    if not missing:
        assert not gaps
        return
    [gap] = gaps
    found = re.match(r"(\d+) lines of (\d+) bytes are missing here", gap["m"])
    assert found is not None and int(found[1]) == missing
    sizes = len(json.dumps(kept[0])) + 1
    assert 0.9 * sizes * missing < int(found[2]) < 1.2 * sizes * missing
    size = len(store.read_whole(run_of(store), 1) or b"")
    assert 0.9 * MOST < size < 1.05 * MOST


def run_of(store: FolderLogStore) -> UUID:
    [path] = store.root.glob("open/*.jsonl")
    return UUID(path.name[:36])


def test_a_follower_reads_the_beginning_alone(store: FolderLogStore) -> None:
    run = write(store, 3_000)
    beginning = store.read_open(run, 1) or b""
    assert len(beginning) <= MOST * 4 / 5
    assert (store.read_open(run, 1, 100) or b"") == beginning[100:]


def test_what_is_sealed_is_the_whole_and_nothing_stays_behind(store: FolderLogStore) -> None:
    run = write(store, 3_000)
    whole = store.read_whole(run, 1)
    pointer = store.seal(run, 1, "acme", uuid4())
    assert pointer is not None and store.read(pointer) == whole
    store.discard(run, 1)
    assert list(store.root.glob("open/*")) == []


def test_a_remote_worker_sends_the_whole(tmp_path: Path) -> None:
    store = RemoteLogStore(tmp_path)
    run = write(store, 3_000)
    sealed = FolderLogStore(tmp_path / "platform")
    pointer = sealed.keep(run, 1, "acme", uuid4(), store.member(run, 1))
    assert sealed.read(pointer) == store.read_whole(run, 1)


def test_of_a_child_that_was_killed_half_a_line_stays_one_line(store: FolderLogStore) -> None:
    run = write(store, 3_000, close=False)
    files = [path for path in store.root.rglob("*") if path.is_file()]
    for path in files:
        with path.open("ab") as file:
            file.write(b'{"n": 3')
    lines = (store.read_whole(run, 1) or b"").splitlines()
    assert sum(line == b'{"n": 3' for line in lines) == len(files) > 2
    assert sum(b"are missing here" in line for line in lines) == 1


def test_a_long_record_becomes_several_lines(store: FolderLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_project.sdk.logs.open_files.MAX_BYTES", 10 * MAX_LINE)
    run = uuid4()
    log = AttemptLog(store, run, 1)
    log.write("log", "x" * (2 * MAX_LINE + 5), "INFO", "app", {"order": 5})
    lines = read(store, run)
    assert [len(line["m"]) for line in lines] == [MAX_LINE, MAX_LINE, 5]
    assert [line.get("x") for line in lines] == [{"order": 5}, None, None]


def test_a_log_of_the_longest_lines_is_taken_by_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a worker's whole report would be refused for its log."""
    monkeypatch.setattr("scheduler_project.sdk.logs.open_files.MAX_BYTES", MAX_BYTES)
    store, run = RemoteLogStore(tmp_path), uuid4()
    log = AttemptLog(store, run, 1)
    for _ in range(2_000):
        log.write("stdout", "y" * 5_000)
    for _ in range(60):
        log.write("stdout", "\N{PILE OF POO}" * MAX_LINE)
    log.close()
    check_member(store.member(run, 1), "log")


def test_a_process_that_the_body_forks_doubles_no_number(store: FolderLogStore) -> None:
    run = uuid4()
    log = AttemptLog(store, run, 1)
    log.write("stdout", "parent")
    child = os.fork()
    if not child:
        for _ in range(500):
            log.write("stdout", "child" * 10)
        os._exit(0)
    os.waitpid(child, 0)
    log.write("stdout", "parent")
    log.close()
    numbers = [line["n"] for line in read(store, run)]
    assert [number for number in numbers if number] == [1, 2]
    assert numbers.count(0) == 500


def test_a_body_that_is_interrupted_while_it_writes_doubles_no_number(store: FolderLogStore) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in range(1, 40):
            run = uuid4()
            log = AttemptLog(store, run, 1)
            signal.setitimer(signal.ITIMER_REAL, delay / 7_000)
            with contextlib.suppress(Interrupted):
                while True:
                    log.write("stdout", "line")
            log.write("stdout", "after")
            log.close()
            lines = read(store, run)
            numbers = [line["n"] for line in lines if line["s"] == "stdout"]
            assert len(set(numbers)) == len(numbers) and lines[-1]["m"] == "after"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# The kernel itself refuses to make a file larger than this, in the middle of a line, until the limit is raised.
FULL_DISK = """
import resource, sys
from pathlib import Path
from uuid import UUID
from scheduler_project.sdk.logs.capture import AttemptLog, captured
from scheduler_project.sdk.logs.folder import FolderLogStore

log = AttemptLog(FolderLogStore(Path(sys.argv[1])), UUID(int=1), 1)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with captured(log):
    print("before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (250, hard))
    for number in range(10):
        print("on a full disk", number)
    if sys.argv[2] == "room again":
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        print("after")
    if sys.argv[2] == "room at the end":
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
"""


@pytest.mark.parametrize("then", ["room again", "room at the end", "full to the end"])
def test_lines_that_a_full_disk_refuses_are_counted(store: FolderLogStore, then: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(store.root), then], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    lines = read(store, UUID(int=1))
    texts = [line["m"] for line in lines]
    written = [text for text in texts if text.startswith("on a full disk")]
    assert texts[0] == "before" and 0 < len(written) < 10
    lost = 10 - len(written)
    if then == "full to the end":
        assert texts == ["before", *written]
        return
    told = f"{lost} lines could not be written here: File too large."
    after = ["after"] if then == "room again" else []
    assert texts == ["before", *written, told, *after]
    assert lines[-1]["n"] == (12 if after else 11)


def test_a_store_that_is_away_costs_neither_the_body_nor_the_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    store, run = FolderLogStore(tmp_path / "file"), uuid4()
    log = AttemptLog(store, run, 1)
    with captured(log):
        print("lost")  # noqa: T201
        (tmp_path / "file").unlink()
        print("kept")  # noqa: T201
    assert [(line["n"], line["m"]) for line in read(store, run)] == [
        (1, "1 line could not be written here: File exists."),
        (2, "kept"),
    ]
