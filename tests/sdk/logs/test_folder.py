"""Lines of runs in a folder: open files, sealed objects, and who may read them."""

import gzip
import threading
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

import pytest

from scheduler_project.sdk.logs.folder import FolderLogStore, object_name
from scheduler_project.sdk.logs.store import LogMissing
from scheduler_project.sdk.outcomes import LogPointer


@pytest.fixture
def store(tmp_path: Path) -> FolderLogStore:
    return FolderLogStore(tmp_path)


def write(store: FolderLogStore, text: bytes, seq: int = 1) -> tuple[object, LogPointer]:
    run, worker = uuid4(), uuid4()
    with store.open(run, seq) as file:
        file.write(text)
    pointer = store.seal(run, seq, "team", worker)
    assert pointer is not None
    store.discard(run, seq)
    return run, pointer


def test_what_was_written_is_read(store: FolderLogStore) -> None:
    _, pointer = write(store, b"one\ntwo\n")
    assert store.read(pointer) == b"one\ntwo\n"


def test_an_open_log_is_read_while_it_grows(store: FolderLogStore) -> None:
    run = uuid4()
    assert store.read_open(run, 1) is None
    with store.open(run, 1) as file:
        file.write(b"one\n")
        assert store.read_open(run, 1) == b"one\n"
        file.write(b"two\n")
        assert store.read_open(run, 1, offset=4) == b"two\n"


def test_one_object_holds_many_attempts(store: FolderLogStore) -> None:
    worker, pointers = uuid4(), []
    for number in range(3):
        run = uuid4()
        with store.open(run, 1) as file:
            file.write(b"%d\n" % number)
        pointers.append(store.seal(run, 1, "team", worker))
    assert len({pointer.object for pointer in pointers if pointer}) == 1
    assert [store.read(pointer) for pointer in pointers if pointer] == [b"0\n", b"1\n", b"2\n"]
    [whole] = store.root.glob("logs/**/*.gz")
    assert gzip.decompress(whole.read_bytes()) == b"0\n1\n2\n"


def test_sealing_at_the_same_time_keeps_members_apart(store: FolderLogStore) -> None:
    worker, results = uuid4(), []

    def seal_one(number: int) -> None:
        run = uuid4()
        with store.open(run, 1) as file:
            file.write(b"%d\n" % number * 1000)
        results.append((number, store.seal(run, 1, "team", worker)))

    threads = [threading.Thread(target=seal_one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(pointer and store.read(pointer) == b"%d\n" % number * 1000 for number, pointer in results)


def test_sealed_twice_both_pointers_are_good(store: FolderLogStore) -> None:
    run, worker = uuid4(), uuid4()
    with store.open(run, 1) as file:
        file.write(b"x\n")
    pointers = [store.seal(run, 1, "team", worker) for _ in range(2)]
    assert [store.read(pointer) for pointer in pointers if pointer] == [b"x\n", b"x\n"]


def test_without_output_there_is_no_object(store: FolderLogStore) -> None:
    assert store.seal(uuid4(), 1, "team", uuid4()) is None
    assert not list(store.root.glob("logs/**/*.gz"))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "logs/../../../etc/passwd",
        "logs/team/2026/01/01/00/../../x.jsonl.gz",
        "open/x.jsonl",
        "logs/../2026/01/01/00/00000000-0000-0000-0000-000000000000.jsonl.gz",
    ],
)
def test_no_name_leads_out_of_the_store(store: FolderLogStore, name: str) -> None:
    with pytest.raises(LogMissing):
        store.read(LogPointer(name, 0, 10))


@pytest.mark.parametrize("tenant", ["../../etc", "a/b", ".", "..", "täm", "x" * 50])
def test_a_tenants_name_is_one_folder(tenant: str, tmp_path: Path) -> None:
    name = object_name(tenant, uuid4(), datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert len(name.split("/")) == 7
    assert (tmp_path / name).resolve().is_relative_to(tmp_path / "logs")


def test_a_damaged_log_is_missing_not_an_accident(store: FolderLogStore) -> None:
    _, pointer = write(store, b"one\n")
    (store.root / pointer.object).write_bytes(b"\x1f\x8bjunk")
    with pytest.raises(LogMissing):
        store.read(pointer)


def test_other_users_may_not_read_what_was_logged(tmp_path: Path) -> None:
    """Commands run as another user; the lines of every tenant lie in this folder."""
    store = FolderLogStore(tmp_path / "var" / "log_store")
    run, pointer = write(store, b"secret\n")
    with store.open(uuid4(), 2) as file:
        file.write(b"secret\n")
    seen = [store.root, *store.root.rglob("*")]
    assert len(seen) > 8
    assert [path for path in seen if path.stat().st_mode & 0o007] == []
    assert store.read(pointer) == b"secret\n"
