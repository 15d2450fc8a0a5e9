"""Commands of a worker that is an ordinary user: the same promises, and nothing of that user's within reach."""

import os
import platform
import re
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.targets.command import bubblewrap, isolation
from tests.runs.targets.command.test_run import (
    MAKES_SOCKETS,
    UNTIL_IT_SLEEPS,
    families,
    has_argument,
    seconds_of_its_own,
)
from tests.runs.targets.ordinary_user import (
    SECRET,
    Started,
    Worker,
    as_ordinary_user,
    needs_bubblewrap,
    ordinary_worker,
    user,
)
from tests.support.waiting import join, wait_until


@pytest.fixture
def worker() -> Iterator[Worker]:
    with ordinary_worker() as worker:
        yield worker


@needs_bubblewrap
def test_it_is_nobody_without_any_right(worker: Worker) -> None:
    done = worker("sh", "-c", "id -u; id -G; grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status")
    assert done.code == 0 and done.log.count('"m": "65534"') == 2 and done.log.count("0000000000000000") == 5
    assert "NoNewPrivs:\\t1" in done.log and "Seccomp:\\t2" in done.log


@needs_bubblewrap
def test_it_is_apart_in_every_kind_of_namespace(worker: Worker) -> None:
    done = worker(
        "sh", "-c", "for n in user pid mnt ipc uts net; do readlink /proc/self/ns/$n; done", network=False
    )
    seen = re.findall(r'"m": "(\w+:\[\d+\])"', done.log)
    own = [os.readlink(f"/proc/self/ns/{name}") for name in ("user", "pid", "mnt", "ipc", "uts", "net")]
    assert len(seen) == 6 and not set(seen) & set(own)


@needs_bubblewrap
def test_nothing_of_the_worker_s_environment_and_files_is_handed_down(worker: Worker) -> None:
    done = worker("sh", "-c", "env; ls -l /proc/self/fd", env={"PLACE": "Berlin"})
    assert "PLACE=Berlin" in done.log and SECRET not in done.log and "HOME=/tmp" in done.log
    assert "memfd" not in done.log and len(re.findall(r"\d -> ", done.log)) == 4


@needs_bubblewrap
@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("exit 3", 3, "exit code 3"),
        ("exit 137", 137, "exit code 137"),
        ("kill -9 $$", 137, "SIGKILL"),
        ("kill -SEGV $$", 139, "SIGSEGV"),
        ("kill -9 0", 137, "SIGKILL"),
        ("exec /no/such", 127, "not found"),
    ],
)
def test_a_code_is_told_from_a_signal(worker: Worker, script: str, code: int, words: str) -> None:
    done = worker("sh", "-c", script)
    assert done.code == code and words in done.failure


@needs_bubblewrap
def test_a_command_that_is_not_there_is_permanent(worker: Worker) -> None:
    assert worker("/no/such/command").error_class == "permanent"


@needs_bubblewrap
def test_an_init_that_is_killed_is_a_signal(worker: Worker) -> None:
    running = worker.started("sh", "-c", "echo ready; exec sleep 30")
    os.kill(running.init(), signal.SIGKILL)
    assert running.done().code == 137


@needs_bubblewrap
def test_a_soft_stop_reaches_the_command(worker: Worker) -> None:
    script = "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    running = worker.started("sh", "-c", script)
    os.killpg(running.group, signal.SIGTERM)
    done = running.done()
    assert "asked" in done.log and done.code == 9


@needs_bubblewrap
def test_a_soft_stop_ends_a_command_that_does_not_expect_it(worker: Worker) -> None:
    running = worker.started("sh", "-c", "echo ready; exec sleep 30")
    os.killpg(running.group, signal.SIGTERM)
    done = running.done()
    assert done.code == 143 and "SIGTERM" in done.failure


LEFT = seconds_of_its_own()
LEAVES = f"setsid sleep {LEFT} </dev/null >/dev/null 2>&1 & {UNTIL_IT_SLEEPS}; echo ready; exec sleep 30"


def kill_group(running: Started) -> None:
    os.killpg(running.group, signal.SIGKILL)


def kill_leader(running: Started) -> None:
    os.kill(running.group, signal.SIGKILL)


def kill_worker(running: Started) -> None:
    os.kill(running.process.pid, signal.SIGKILL)


@needs_bubblewrap
@pytest.mark.parametrize("kill", [kill_group, kill_leader, kill_worker])
def test_nothing_outlives_a_kill(worker: Worker, kill: Callable[[Started], None]) -> None:
    running = worker.started("sh", "-c", LEAVES)
    assert has_argument(LEFT)
    kill(running)
    wait_until(lambda: not has_argument(LEFT), 15, "the end of what left the group")
    if kill is not kill_worker:
        assert running.done().code == 137
    join(running.process)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("name", "number", "option", "shown"),
    [
        ("cpu_seconds", 7, "-t", "7"),
        ("memory_mb", 200, "-v", "204800"),
        ("open_files", 33, "-n", "33"),
        ("processes", 77, "-u", "77"),
    ],
)
def test_a_job_s_limits_hold(worker: Worker, name: str, number: int, option: str, shown: str) -> None:
    script = f"ulimit -S {option}; ulimit -H {option} unlimited || echo kept"
    done = worker("bash", "-c", script, limits={name: number})
    assert f'"m": "{shown}"' in done.log and "kept" in done.log


@needs_bubblewrap
def test_a_limit_that_is_reached_is_reported(worker: Worker) -> None:
    done = worker("sh", "-c", "while :; do :; done", limits={"cpu_seconds": 1})
    assert done.code == 152 and "CPU time" in done.failure


@needs_bubblewrap
def test_its_tmp_is_its_own_and_bounded(worker: Worker, settings: Any) -> None:
    settings.COMMAND_LIMITS = {**settings.COMMAND_LIMITS, "tmp_mb": 1}
    with tempfile.NamedTemporaryFile(prefix="of-the-worker-") as file:
        done = worker(
            "sh", "-c", "pwd; echo x > left; ls -a /tmp /var/tmp /dev/shm; head -c 3000000 /dev/zero > big"
        )
        assert Path(file.name).name not in done.log
    assert '"m": "/tmp"' in done.log and '"m": "left"' in done.log and "No space left" in done.log
    assert not Path(tempfile.gettempdir(), "left").exists()


@needs_bubblewrap
@pytest.mark.parametrize("who", ["job", "platform"])
def test_it_can_be_kept_off_the_network(worker: Worker, settings: Any, who: str) -> None:
    settings.COMMAND_NETWORK = who != "platform"
    done = worker("cat", "/proc/net/dev", **({"network": False} if who == "job" else {}))
    assert done.code == 0 and "lo:" in done.log and "eth0" not in done.log


@needs_bubblewrap
def test_what_cannot_be_kept_off_the_network_is_refused(worker: Worker) -> None:
    def prepare() -> None:
        vars(isolation.in_offline_sandbox)["succeeds"] = lambda: False

    assert "off the network" in worker.prepared(prepare, "true", network=False).failure


@needs_bubblewrap
def test_unix_sockets_are_for_those_without_a_network(worker: Worker) -> None:
    python = "import socket; socket.socketpair(); socket.socket(); socket.socket(socket.AF_UNIX)"
    assert "Permission denied" in worker(interpreter(), "-c", python).log
    assert worker(interpreter(), "-c", python, network=False).code == 0


@needs_bubblewrap
def test_without_a_network_only_sockets_that_end_with_it_are_made(worker: Worker) -> None:
    log = worker(interpreter(), "-c", MAKES_SOCKETS, network=False).log
    assert families(log) == {socket.AF_UNIX, socket.AF_INET, socket.AF_NETLINK}


def interpreter() -> str:
    """One that is visible inside, whichever the tests use."""
    return str(as_ordinary_user(bubblewrap.executable))


@needs_bubblewrap
def test_named_folders_are_seen_but_not_written_in(worker: Worker, settings: Any) -> None:
    scripts = worker.made("scripts")
    worker.write(scripts / "own.sh", "echo of-the-team; touch $(dirname $0)/mark\n")
    settings.COMMAND_FOLDERS = [str(scripts)]
    done = worker("sh", str(scripts / "own.sh"))
    assert "of-the-team" in done.log and "Read-only" in done.log and not (scripts / "mark").exists()


@needs_bubblewrap
def test_a_spool_in_a_named_folder_is_covered(worker: Worker, settings: Any) -> None:
    the_spool_is_covered(worker, settings, worker.folder)


@needs_bubblewrap
def test_a_spool_is_covered_where_a_link_is_named(worker: Worker, settings: Any) -> None:
    link = worker.folder.with_name(f"{worker.folder.name}-link")
    link.symlink_to(worker.folder)
    try:
        the_spool_is_covered(worker, settings, link)
    finally:
        link.unlink()


def the_spool_is_covered(worker: Worker, settings: Any, named: Path) -> None:
    settings.COMMAND_FOLDERS, settings.SPOOL_DIR = [str(named)], str(worker.spool)
    done = worker("sh", "-c", f"ls {named}; cat {named}/spool/config.json; touch {named}/spool/mark")
    assert "spool" in done.log and SECRET not in done.log and not (worker.spool / "mark").exists()


def fake(worker: Worker, script: str) -> Callable[[], None]:
    programs = worker.made("programs")
    worker.write(programs / "bwrap", f"#!/bin/sh\n{script}\n")
    (programs / "bwrap").chmod(0o755)
    return lambda: os.environ.update(PATH=str(programs))


def test_without_bubblewrap_it_says_what_to_install(worker: Worker) -> None:
    done = worker.prepared(lambda: os.environ.update(PATH="/nowhere"), "true")
    assert done.is_refused
    for words in ("not root", "install bubblewrap", "worker that is root", "BEATKEEPER_COMMANDS_AS_WORKER=1"):
        assert words in done.failure


@pytest.mark.parametrize(
    ("said", "remedy"),
    [("Unknown option --disable-userns", "0.8 or newer"), ("No permissions to create new namespace", "user")],
)
def test_a_bubblewrap_that_fails_is_quoted_with_what_to_do(worker: Worker, said: str, remedy: str) -> None:
    done = worker.prepared(fake(worker, f"echo 'bwrap: {said}' >&2; exit 1"), "true")
    assert done.is_refused
    assert said in done.failure and remedy in done.failure.partition("Right would be")[2]


@needs_bubblewrap
def test_a_named_folder_that_is_not_there_is_reported(worker: Worker, settings: Any) -> None:
    settings.COMMAND_FOLDERS = [str(worker.folder / "nowhere")]
    done = worker("true")
    assert done.is_refused and "nowhere" in done.failure
    assert "BEATKEEPER_COMMAND_FOLDERS" in done.failure.partition("Right would be")[2]


def test_a_switch_that_is_off_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "switch").write_text("0\n")
    monkeypatch.setattr(bubblewrap, "SWITCHES", {str(tmp_path / "switch"): ("0", "turn the switch on")})
    assert bubblewrap.remedy_of("No permissions") == "turn the switch on"


@needs_bubblewrap
def test_an_unknown_processor_is_refused(worker: Worker) -> None:
    def prepare() -> None:
        platform.machine = lambda: "vax"

    assert "vax" in worker.prepared(prepare, "true").failure


def test_trusted_commands_are_the_worker_s_own(worker: Worker, settings: Any) -> None:
    settings.COMMANDS_AS_WORKER = True
    assert f'"m": "{user()}"' in worker("id", "-u").log
