"""Commands as real processes: what they print, see and may, and that nothing of them stays."""

import json
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from runs.targets.command import isolation, launcher, output
from runs.targets.command import run as command
from runs.targets.command import seccomp as call_filter
from runs.targets.command.run import execute
from scheduler_project.sdk.execution import attempt
from scheduler_project.sdk.execution.interrupts import Interrupts
from scheduler_project.sdk.outcomes import BadArguments, PermanentError
from scheduler_project.sdk.targets.registry import TargetFailed, Targets
from tests.runs.targets.executed import OneSlot
from tests.runs.targets.ordinary_user import SYSTEM_PYTHON
from tests.sdk.targets.test_celery_task import make_claim
from tests.support.waiting import join, wait_until


class Runner(OneSlot):
    def __call__(self, *argv: str, **env: str) -> dict[str, Any]:
        return self.with_target(*argv, env=env)

    def with_target(self, *argv: str, **target: Any) -> dict[str, Any]:
        return self.carry_out(execute, make_claim({"kind": "command", "argv": list(argv), **target}))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not isolation.in_namespace.succeeds(), reason="PID namespaces cannot be made here"
)


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Where the command's user may write, unlike below tmp_path."""
    folder = Path(tempfile.mkdtemp(dir="/var/lib" if os.geteuid() == 0 else None))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def in_background(run: Runner, *argv: str, **env: str) -> tuple[threading.Thread, list[BaseException]]:
    failures: list[BaseException] = []

    def start() -> None:
        try:
            run(*argv, **env)
        except TargetFailed as failed:
            failures.append(failed)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    wait_until(lambda: hasattr(run, "claim") and "ready" in run.log, 10, "the command's first words")
    return thread, failures


# What the shell began last is at work, whatever it had to become first.
UNTIL_IT_SLEEPS = "until readlink /proc/$!/exe | grep -q sleep; do sleep 0.05; done"


def seconds_of_its_own() -> str:
    """To sleep for: nobody else on this machine sleeps for just as long."""
    return f"300.{secrets.randbelow(10**9):09}"


def has_argument(text: str) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def test_output_of_both_streams_is_logged(run: Runner) -> None:
    assert run("sh", "-c", "echo out; echo err >&2; printf rest") == {"exit_code": 0}
    for stream, text in (("stdout", "out"), ("stderr", "err"), ("stdout", "rest")):
        assert f'"s": "{stream}", "l": "", "m": "{text}"' in run.log


def test_lines_come_while_it_runs(run: Runner) -> None:
    ended: list[int | None] = []

    def start() -> None:
        with pytest.raises(TargetFailed) as failed:
            run("sh", "-c", "echo first; exec sleep 30")
        ended.append(failed.value.exit_code)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    wait_until(lambda: hasattr(run, "claim") and "first" in run.log, 15, "the first line")
    group, _ = wait_until(
        lambda: run.table.records[0].body if run.table.records[0].body[0] else None, 15, "its group"
    )
    os.killpg(group, 9)
    join(thread)
    assert ended == [137]


def test_the_worker_s_environment_is_not_passed_on(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    run("env", PLACE="Berlin")
    assert "PLACE=Berlin" in run.log and f"BEATKEEPER_RUN={run.claim.run_id}" in run.log
    assert "DATABASE_URL" not in run.log and "secret" not in run.log


def test_a_run_can_bring_its_own_words_variables_and_standard_input(run: Runner) -> None:
    target = {"kind": "command", "argv": ["sh", "-c", 'echo "$0 $1 $A $B"; cat'], "env": {"A": "1", "B": "1"}}
    given = {"argv": ["one", "two"], "env": {"B": "2"}, "stdin": "first\nsecond ü"}
    assert run.carry_out(execute, make_claim(target, input=given)) == {"exit_code": 0}
    lines = [json.loads(line)["m"] for line in run.log.splitlines()]
    assert lines == ["one two 1 2", "first", "second ü"]


def test_standard_input_that_is_not_read_holds_up_nothing(run: Runner) -> None:
    target = {"kind": "command", "argv": ["true"]}
    assert run.carry_out(execute, make_claim(target, input={"stdin": "x" * 65_000})) == {"exit_code": 0}


@pytest.mark.parametrize(
    ("given", "error"),
    [({"env": {"LD_PRELOAD": "/tmp/x.so"}}, PermanentError), ({"A": "1"}, BadArguments)],
)
def test_an_input_that_came_past_the_api_is_refused_by_the_worker(
    run: Runner, given: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        run.carry_out(execute, make_claim({"kind": "command", "argv": ["true"]}, input=given))


def test_a_secret_in_the_variables_of_an_input_is_masked(run: Runner) -> None:
    given = {"env": {"DB_PASS": "hush-hush"}}
    claim = run.claim = make_claim({"kind": "command", "argv": ["env"]}, input=given)
    targets = Targets(Celery("masked"))
    targets.add("command", execute)
    assert run.owned_slot is not None
    outcome = attempt.execute(
        claim, run.owned_slot, targets, run.store, Interrupts(run.owned_slot), "worker@host"
    )
    assert outcome.log is not None
    log = run.store.read(outcome.log).decode()
    assert "DB_PASS=***" in log and "hush-hush" not in log


def test_there_is_no_input_to_wait_for(run: Runner) -> None:
    assert run("cat") == {"exit_code": 0}


@needs_root
def test_root_runs_it_as_nobody(run: Runner) -> None:
    run("id", "-u")
    assert '"m": "65534"' in run.log
    with pytest.raises(TargetFailed):
        run("cat", f"/proc/{os.getpid()}/environ")


@needs_root
@pytest.mark.parametrize("program", ["setpriv", "unshare", "env", "sh", "python", "python3"])
def test_root_runs_nothing_that_the_tenant_s_path_names(run: Runner, open_folder: Path, program: str) -> None:
    trap = open_folder / program
    trap.write_text(f"#!/bin/sh\n/usr/bin/id -u > {open_folder}/who\n")
    trap.chmod(0o755)
    assert run("/bin/true", PATH=f"{open_folder}:{isolation.PATH}") == {"exit_code": 0}
    assert not (open_folder / "who").exists()


@needs_root
def test_the_tenant_s_path_finds_its_own_program(run: Runner, open_folder: Path) -> None:
    program = open_folder / "mine"
    program.write_text("#!/bin/sh\nid -u\n")
    program.chmod(0o755)
    run("mine", PATH=f"{open_folder}:{isolation.PATH}")
    assert '"m": "65534"' in run.log


@needs_root
def test_root_s_loader_never_sees_the_tenant_s_environment(
    run: Runner, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the variables were let through: each process whose loader obeys them leaves a file of its user."""
    monkeypatch.setattr(command, "why_not_in_environment", lambda _: "")
    run("/bin/true", LD_DEBUG="libs", LD_DEBUG_OUTPUT=str(open_folder / "seen"))
    assert {file.stat().st_uid for file in open_folder.iterdir()} == {65534}


PRELOADED = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char name[200];
    snprintf(name, sizeof name, "%s/loaded.%d", FOLDER, geteuid());
    close(open(name, O_CREAT | O_WRONLY, 0644));
}
"""


@needs_root
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_root_loads_no_library_of_the_tenant_s(
    run: Runner, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "why_not_in_environment", lambda _: "")
    library = open_folder / "mine.so"
    build = ["cc", "-shared", "-fPIC", f'-DFOLDER="{open_folder}"', "-x", "c", "-", "-o", str(library)]
    subprocess.run(build, input=PRELOADED.encode(), check=True)
    library.chmod(0o755)
    run("/bin/true", LD_PRELOAD=str(library))
    assert [file.name for file in open_folder.glob("loaded.*")] == ["loaded.65534"]


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "BASH_ENV"])
def test_the_loader_s_variables_are_refused(run: Runner, name: str) -> None:
    with pytest.raises(PermanentError, match=name):
        run("true", **{name: "/tmp/x"})


@needs_root
def test_root_refuses_where_it_cannot_make_a_namespace(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.in_namespace, "succeeds", lambda: False)
    with pytest.raises(PermanentError, match="as another user"):
        run("true")


@needs_root
def test_trusted_commands_are_nobody_s_also_without_a_namespace(
    run: Runner, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.COMMANDS_AS_WORKER = True
    monkeypatch.setattr(isolation.in_namespace, "succeeds", lambda: False)
    run("sh", "-c", "id -u; id -G; grep NoNewPrivs /proc/self/status")
    assert run.log.count('"m": "65534"') == 2 and "NoNewPrivs:\\t1" in run.log


@needs_namespaces
def test_a_command_has_no_rights_left(run: Runner) -> None:
    run("sh", "-c", "id -G; grep -E 'CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs' /proc/self/status")
    assert '"m": "65534"' in run.log and run.log.count("0000000000000000") == 4
    assert "NoNewPrivs:\\t1" in run.log


@needs_namespaces
def test_one_run_cannot_see_another(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = Runner(tmp_path / "one"), Runner(tmp_path / "other")
    thread, _ = in_background(one, "sh", "-c", "echo ready; exec sleep 301.25", THEIR_WORD="xyzzy")
    try:
        other(
            "sh",
            "-c",
            "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ls /proc",
            OWN="plugh",
        )
        assert "OWN=plugh" in other.log
        assert "xyzzy" not in other.log and "301.25" not in other.log
    finally:
        os.killpg(one.table.records[0].body[0], 9)
        join(thread)


@needs_namespaces
def test_what_left_the_group_ends_with_the_run(run: Runner) -> None:
    seconds = seconds_of_its_own()
    run("sh", "-c", f"setsid sleep {seconds} </dev/null >/dev/null 2>&1 & {UNTIL_IT_SLEEPS}")
    assert not has_argument(seconds)


@needs_namespaces
@pytest.mark.parametrize("kill", [os.killpg, os.kill])
def test_killing_the_group_or_its_leader_alone_ends_what_left_it(
    run: Runner, kill: Callable[[int, int], None]
) -> None:
    """All the guard knows is the group."""
    seconds = seconds_of_its_own()
    thread, failures = in_background(
        run, "sh", "-c", f"setsid sleep {seconds} & {UNTIL_IT_SLEEPS}; echo ready; exec sleep 30"
    )
    assert has_argument(seconds)
    kill(run.table.records[0].body[0], 9)
    join(thread)
    wait_until(lambda: not has_argument(seconds), 15, "the end of what left the group")
    assert [getattr(failed, "exit_code", None) for failed in failures] == [137]


def test_a_soft_stop_reaches_the_command(run: Runner) -> None:
    thread, failures = in_background(
        run, "sh", "-c", "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    )
    os.killpg(run.table.records[0].body[0], 15)
    join(thread)
    assert "asked" in run.log and [getattr(failed, "exit_code", None) for failed in failures] == [9]


def test_a_soft_stop_ends_a_command_that_does_not_expect_it(run: Runner) -> None:
    thread, failures = in_background(run, "sh", "-c", "echo ready; exec sleep 30")
    os.killpg(run.table.records[0].body[0], 15)
    join(thread)
    assert "SIGTERM" in str(failures[0]) and getattr(failures[0], "exit_code", None) == 143


def test_its_environment_stands_in_no_list_of_processes(run: Runner) -> None:
    thread, _ = in_background(run, "sh", "-c", "echo ready; exec sleep 30", PLACE="Reykjavik")
    shown = b"".join(file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if readable(file))
    os.killpg(run.table.records[0].body[0], 9)
    join(thread)
    assert b"launcher.py" in shown and b"Reykjavik" not in shown


def readable(file: Path) -> bool:
    try:
        return bool(file.read_bytes())
    except OSError:
        return False


@pytest.mark.parametrize(("code", "error_class"), [(1, "transient"), (3, "transient"), (127, "permanent")])
def test_an_exit_code_is_a_failure(run: Runner, code: int, error_class: str) -> None:
    with pytest.raises(TargetFailed) as failed:
        run("sh", "-c", f"exit {code}")
    assert (failed.value.exit_code, failed.value.error_class) == (code, error_class)


def test_a_command_that_is_not_there_is_permanent(run: Runner) -> None:
    with pytest.raises((TargetFailed, PermanentError)) as failed:
        run("/no/such/command")
    assert getattr(failed.value, "error_class", "permanent") == "permanent"


def test_a_limit_that_is_reached_is_reported(run: Runner) -> None:
    with pytest.raises(TargetFailed, match="CPU time") as failed:
        run.with_target("sh", "-c", "while :; do :; done", limits={"cpu_seconds": 1})
    assert (failed.value.error_type, failed.value.exit_code) == ("SIGXCPU", 152)


LIMITS = {
    "cpu_seconds": ("-t", "7"),
    "memory_mb": ("-v", "204800"),
    "open_files": ("-n", "33"),
    "processes": ("-u", "77"),
}


@pytest.mark.parametrize(
    ("name", "number"), [("cpu_seconds", 7), ("memory_mb", 200), ("open_files", 33), ("processes", 77)]
)
def test_a_job_s_limits_hold_and_cannot_be_raised(run: Runner, name: str, number: int) -> None:
    option, shown = LIMITS[name]
    run.with_target(
        "bash", "-c", f"ulimit -S {option}; ulimit -H {option} unlimited || echo kept", limits={name: number}
    )
    assert f'"m": "{shown}"' in run.log and "kept" in run.log


def test_the_platform_s_limits_hold_besides(run: Runner, settings: Any) -> None:
    settings.COMMAND_LIMITS = {**settings.COMMAND_LIMITS, "open_files": 20, "memory_mb": 0}
    run.with_target("bash", "-c", "ulimit -S -n; ulimit -v", limits={"open_files": 4000})
    assert '"m": "20"' in run.log and '"m": "unlimited"' in run.log


def test_a_file_cannot_grow_over_its_limit(run: Runner) -> None:
    with pytest.raises(TargetFailed, match="grew over its limit"):
        run.with_target("bash", "-c", "exec head -c 3000000 /dev/zero > big", limits={"file_size_mb": 1})


@needs_namespaces
def test_each_command_has_a_tmp_of_its_own(run: Runner) -> None:
    with tempfile.NamedTemporaryFile(prefix="of-the-worker-") as file:
        run("sh", "-c", "echo x > left && pwd && ls -a /tmp . && df -k /tmp | tail -1")
        assert Path(file.name).name not in run.log
        assert '"m": "/tmp"' in run.log and '"m": "left"' in run.log
    assert not Path(tempfile.gettempdir(), "left").exists()
    run("ls", "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
    assert "left" not in run.log


@needs_namespaces
@pytest.mark.parametrize("folder", ["/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/dev/mqueue"])  # noqa: S108
def test_nothing_is_left_for_the_next_command_where_everybody_may_write(run: Runner, folder: str) -> None:
    if not os.path.isdir(folder):
        pytest.skip("there is no such folder here")
    path = Path(folder, f"left-{uuid4()}")
    try:
        run("touch", str(path))
        assert not path.exists()
        run("ls", folder)
        assert path.name not in run.log
    finally:
        path.unlink(missing_ok=True)


@needs_namespaces
def test_a_command_sees_neither_spool_nor_logs(run: Runner, open_folder: Path, settings: Any) -> None:
    (open_folder / "result").write_text("s3cr3t")
    settings.SPOOL_DIR = str(open_folder)
    with pytest.raises(TargetFailed):
        run("cat", str(open_folder / "result"))
    with pytest.raises(TargetFailed):
        run("touch", str(open_folder / "forged"))
    assert "s3cr3t" not in run.log and not (open_folder / "forged").exists()


def test_the_folder_of_logs_is_known_by_its_own_name(settings: Any) -> None:
    settings.LOG_STORE_URL = "file:///srv/my%20logs"
    assert "/srv/my logs" in isolation.not_for_commands(isolation.NAMESPACE)


@needs_namespaces
@pytest.mark.parametrize("who", ["job", "platform"])
def test_a_command_can_be_kept_off_the_network(run: Runner, settings: Any, who: str) -> None:
    settings.COMMAND_NETWORK = who != "platform"
    run.with_target("cat", "/proc/net/dev", **({"network": False} if who == "job" else {}))
    assert "lo:" in run.log and "eth0" not in run.log and run.log.count(": 0") <= 1


def test_what_cannot_be_kept_off_the_network_is_refused(
    run: Runner, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.COMMANDS_AS_WORKER = True
    monkeypatch.setattr(isolation.in_namespace, "succeeds", lambda: False)
    with pytest.raises(PermanentError, match="network"):
        run.with_target("true", network=False)


MAKES_SOCKETS = """
import socket
for family in range(64):
    for make in (socket.socket, socket.socketpair):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                make(family, kind)
                print(f"made-{family}.")
            except OSError:
                pass
"""


def families(log: str) -> set[int]:
    """Those that were made; which of the internet's there are is the kernel's affair."""
    return {int(number) for number in re.findall(r"made-(\d+)\.", log)} - {socket.AF_INET6}


@needs_namespaces
def test_without_a_network_only_sockets_that_end_with_it_are_made(run: Runner) -> None:
    run.with_target(SYSTEM_PYTHON, "-c", MAKES_SOCKETS, network=False)
    assert families(run.log) == {socket.AF_UNIX, socket.AF_INET, socket.AF_NETLINK}


@needs_namespaces
def test_a_processor_that_the_filter_does_not_know_refuses_only_those_without_a_network(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    run("true")
    with pytest.raises(PermanentError, match="network.* vax"):
        run.with_target("true", network=False)


OLD_CALL = """
import ctypes, mmap, os
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53 b8 14000000 cd80 5b c3"))
pid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("its own pid" if pid == os.getpid() else "another", "by a call of 32 bits")
"""


@needs_namespaces
@pytest.mark.skipif(platform.machine() != "x86_64", reason="it is machine code")
def test_a_command_with_a_network_may_be_of_32_bits(run: Runner) -> None:
    if b"its own" not in subprocess.run([SYSTEM_PYTHON, "-c", OLD_CALL], capture_output=True).stdout:
        pytest.skip("this kernel runs no programs of 32 bits")
    run(SYSTEM_PYTHON, "-c", OLD_CALL)
    assert "its own pid" in run.log


@needs_namespaces
def test_a_kernel_without_filters_is_named(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_filter, "without_keyrings", lambda: b"no program")
    with pytest.raises(TargetFailed):
        run("true")
    assert "the kernel takes no filter of system calls (seccomp)" in run.log


@needs_namespaces
def test_there_is_no_core_and_no_way_to_one(run: Runner) -> None:
    run("sh", "-c", "ulimit -S -c; ulimit -H -c; grep core /proc/self/limits")
    assert re.search(r"Max core file size +1 +1 +bytes", run.log)


def test_an_end_by_signal_is_named(run: Runner) -> None:
    with pytest.raises(TargetFailed, match="SIGKILL") as failed:
        run("sh", "-c", "kill -9 $$")
    assert failed.value.exit_code == 137


def test_what_it_leaves_running_is_ended_with_it(run: Runner) -> None:
    seconds = seconds_of_its_own()
    run("sh", "-c", f"sleep {seconds} & echo left")
    assert "left" in run.log
    wait_until(lambda: not has_argument(seconds), 15, "the end of its child")


def test_output_in_pieces_of_characters_is_put_together(run: Runner) -> None:
    run("sh", "-c", r"printf '\303'; sleep 0.1; printf '\244\377\n'")
    assert "ä\N{REPLACEMENT CHARACTER}" in run.log


def test_its_group_stands_in_the_slot(run: Runner) -> None:
    run("true")
    group, leader_started = run.table.records[0].body
    assert group > 1 and leader_started > 0 and group != os.getpgrp()


def test_words_of_any_bytes_arrive(run: Runner) -> None:
    run("sh", "-c", 'printf "%s|" "$@" "$WORD"', "sh", "a b", "", "x=y\nz", WORD="p=q r")
    assert "a b||x=y" in run.log and "z|p=q r|" in run.log


def test_a_word_with_a_nul_is_permanent(run: Runner) -> None:
    with pytest.raises(PermanentError, match="NUL"):
        run("echo", "a\0b")


def test_arguments_are_no_shell(run: Runner) -> None:
    run("echo", "$HOME; rm -rf *")
    assert "$HOME; rm -rf *" in run.log


def test_a_line_without_an_end_is_not_cut_through_a_secret(run: Runner) -> None:
    filled = f"head -c {output.CHUNK - 2} /dev/zero | tr '\\0' x"
    shell = f"{filled}; printf hunter2; sleep 0.3; printf %s -and-more-of-it"
    run.carry_out(
        execute, make_claim({"kind": "command", "argv": ["sh", "-c", shell]}), ["hunter2-and-more-of-it"]
    )
    assert "hunter" not in run.log and "of-it" not in run.log and run.log.count("***") == 1


SECRET_NAMES = (
    *("DB_PASS", "DB_PWD", "DATABASE_DSN", "JWT", "SESSION", "PASSPHRASE", "BEARER", "AUTH"),
    *("API_TOKEN", "SIGNINGKEY", "ENCRYPTION_KEYS", "SESSIONCOOKIE", "TLS_KEYSTORE"),
)
HARMLESS_NAMES = ("PLACE", "AUTHOR", "COMPASS", "PASSENGER")


def test_a_secret_environment_variable_is_masked_in_the_log(run: Runner) -> None:
    values = {
        name: f"hush-{number}-{name[::-1]}" for number, name in enumerate(SECRET_NAMES + HARMLESS_NAMES)
    }
    claim = run.claim = make_claim({"kind": "command", "argv": ["env"], "env": values})
    targets = Targets(Celery("names"))
    targets.add("command", execute)
    assert run.owned_slot is not None
    outcome = attempt.execute(
        claim, run.owned_slot, targets, run.store, Interrupts(run.owned_slot), "worker@host"
    )
    assert outcome.succeeded and outcome.exit_code == 0 and outcome.log is not None
    lines = [json.loads(line)["m"] for line in run.store.read(outcome.log).splitlines()]
    assert {f"{name}=***" for name in SECRET_NAMES} <= set(lines)
    assert {f"{name}={values[name]}" for name in HARMLESS_NAMES} <= set(lines)


def test_a_launcher_of_another_version_runs_nothing() -> None:
    """An option that it does not know may be a limit."""
    command = [sys.executable, "-I", "-S", launcher.__file__, "0", "here", "cpu=7"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == launcher.NOT_STARTED
    assert "restart" in ended.stderr
