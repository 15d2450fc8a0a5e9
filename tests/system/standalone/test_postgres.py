"""Test the database of `make up`: it survives crashes, and leaves the machine as it found it."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import psycopg
import pytest
from django.conf import settings

from scheduler_project.standalone import state as state_folder
from scheduler_project.standalone.binaries import reachable_binaries
from scheduler_project.standalone.postgres import EmbeddedPostgres
from scheduler_project.standalone.state import (
    AlreadyRunning,
    CannotStart,
    as_account,
    unprivileged_account,
)
from tests.support.processes import Processes
from tests.support.waiting import wait_until

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that is open to the account that runs PostgreSQL for root, unlike tmp_path."""
    path = Path(mkdtemp(prefix=f"bk-embedded-{settings.TEST_ID}-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(folder / "postgresql", unprivileged_account())
    server.start()
    yield server
    server.stop()


def remember(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")


def remembers(server: EmbeddedPostgres) -> bool:
    with psycopg.connect(server.url()) as connection:
        return connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def processes_in(folder: Path) -> list[int]:
    """Find PostgreSQL's processes: their working folder is the data."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").samefile(folder):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_stop_leaves_no_process_and_the_data(server: EmbeddedPostgres) -> None:
    remember(server)
    assert processes_in(server.data)
    server.stop()
    assert processes_in(server.data) == []
    server.start()
    assert remembers(server)


def test_data_survives_the_death_of_every_process(server: EmbeddedPostgres) -> None:
    remember(server)
    for pid in processes_in(server.data):
        # They end by themselves when the first one is gone.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not server.is_alive(), what="the death of the server")
    server.stop()
    server.start()
    assert remembers(server)


def test_it_listens_on_no_port_and_its_socket_is_closed_to_others(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url()) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        (folder,) = connection.execute("SHOW unix_socket_directories").fetchone() or ("",)
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700


def test_a_path_too_long_for_a_socket_is_no_obstacle(folder: Path) -> None:
    server = EmbeddedPostgres(folder / ("long" * 30) / "postgresql", unprivileged_account())
    server.start()
    try:
        remember(server)
        with psycopg.connect(server.url()) as connection:
            (sockets,) = connection.execute("SHOW unix_socket_directories").fetchone() or ("",)
        assert not Path(sockets).is_relative_to(folder)
        assert stat.S_IMODE(Path(sockets).stat().st_mode) == 0o700
    finally:
        server.stop()
        shutil.rmtree(sockets)


def test_a_second_copy_learns_who_has_the_folder(server: EmbeddedPostgres) -> None:
    second = EmbeddedPostgres(server.folder, server.account)
    with pytest.raises(AlreadyRunning, match=str(os.getpid())):
        second.start()
    assert server.is_alive()


def test_a_server_that_outlived_its_supervisor_is_taken_over(server: EmbeddedPostgres) -> None:
    remember(server)
    server.stop()
    sockets = server.cluster / "socket"
    outlived = subprocess.Popen(
        [
            str(reachable_binaries(server.folder, server.account) / "postgres"),
            *("-D", str(server.data), "-c", "listen_addresses=", "-c", f"unix_socket_directories={sockets}"),
        ],
        cwd="/",
        stderr=subprocess.DEVNULL,
        **as_account(server.account),
    )
    try:
        wait_until((server.data / "postmaster.pid").exists, what="the server without a supervisor")
        server.start()
        assert server.pid == outlived.pid
        assert remembers(server)
        server.stop()
        assert outlived.wait(10) == 0
    finally:
        outlived.kill()
        outlived.wait()


def test_a_supervisor_killed_with_sigkill_takes_the_server_with_it(
    folder: Path, processes: Processes
) -> None:
    program = (
        "import signal, sys; from pathlib import Path\n"
        "from scheduler_project.standalone.postgres import EmbeddedPostgres\n"
        "from scheduler_project.standalone.state import unprivileged_account\n"
        "server = EmbeddedPostgres(Path(sys.argv[1]), unprivileged_account()); server.start()\n"
        "print('started', flush=True); signal.pause()\n"
    )
    supervisor = processes.start(sys.executable, "-c", program, str(folder / "postgresql"))
    supervisor.wait_for_output("started")
    supervisor.send(signal.SIGKILL)
    server = EmbeddedPostgres(folder / "postgresql", unprivileged_account())
    wait_until(lambda: not processes_in(server.data), what="the end of the server")
    server.start()
    server.stop()


def test_a_process_number_taken_over_by_somebody_else_is_no_obstacle(server: EmbeddedPostgres) -> None:
    """Give the old process number to another process, here our own, as a reboot may do."""
    remember(server)
    pid_file = server.data / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    server.stop()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    server.start()
    assert server.pid != os.getpid()
    assert remembers(server)


def test_a_half_made_database_is_made_again(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "postgresql", unprivileged_account())
    unfinished = server.cluster / "data.new"
    server.start()
    server.stop()
    server.data.rename(unfinished)
    (unfinished / "PG_VERSION").unlink()
    server.start()
    server.stop()
    assert not unfinished.exists()


def test_data_of_another_version_is_refused_in_words(server: EmbeddedPostgres) -> None:
    server.stop()
    (server.data / "PG_VERSION").write_text("12\n")
    with pytest.raises(CannotStart, match="is of PostgreSQL 12, but"):
        server.start()


def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match="cannot keep a database in"):
        EmbeddedPostgres(tmp_path / "file" / "postgresql", unprivileged_account()).start()
    with pytest.raises(CannotStart, match="cannot write to .* --state-dir"):
        state_folder.choose(tmp_path, str(tmp_path / "file" / "var"), None)


@only_root
def test_closed_folders_stay_closed(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "home"
    (closed / "checkout").mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setattr(state_folder, "SYSTEM_FOLDER", folder / "system")
    account = unprivileged_account()
    assert state_folder.choose(closed / "checkout", "", account).is_relative_to(folder / "system")
    with pytest.raises(CannotStart, match="cannot be entered by the user"):
        state_folder.choose(closed / "checkout", str(closed / "state"), account)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@only_root
def test_binaries_out_of_reach_are_copied_and_run_from_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_folder, "can_enter", lambda account, path: False)
    server = EmbeddedPostgres(folder / "postgresql", unprivileged_account())
    server.start()
    try:
        remember(server)
        assert Path(f"/proc/{server.pid}/exe").resolve().is_relative_to(folder)
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    finally:
        server.stop()


@only_root
def test_data_of_another_user_is_left_alone(server: EmbeddedPostgres) -> None:
    """Refuse another user's data under `sudo make up`: taking it over would lock its owner out."""
    server.stop()
    os.chown(server.cluster, 4242, 4242)
    with pytest.raises(CannotStart, match="belongs to another user"):
        server.start()
    assert server.cluster.stat().st_uid == 4242


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_lock_of_another_user_is_refused_in_words(tmp_path: Path) -> None:
    lock = state_folder.LockFile(tmp_path / "lock")
    lock.path.touch(0)
    with pytest.raises(CannotStart, match="belongs to another user"):
        lock.take()


def test_the_secret_key_is_kept_and_closed_to_others(tmp_path: Path) -> None:
    first = state_folder.secret_key(tmp_path)
    assert state_folder.secret_key(tmp_path) == first
    assert len(first) >= 50
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
