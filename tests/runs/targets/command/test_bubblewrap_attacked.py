"""Known tricks by which a command would reach what is its worker's, where both are the same user to the kernel.

Each by its name, each refused; most are shown to be tricks: with their guard taken away they work.
"""

import ctypes
import os
import platform
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as current_settings

from runs.targets.command import bubblewrap, isolation
from runs.targets.command import seccomp as call_filter
from tests.runs.targets.command.test_run import UNTIL_IT_SLEEPS, has_argument, seconds_of_its_own
from tests.runs.targets.ordinary_user import (
    SECRET,
    Done,
    Worker,
    as_ordinary_user,
    carry_out,
    needs_bubblewrap,
    one_with,
    ordinary_worker,
    user,
    user_group,
)
from tests.runs.targets.test_attacks import VSOCK, is_made
from tests.support.waiting import join, wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes to /etc")

Break = Callable[[Worker], None]
libc = ctypes.CDLL(None, use_errno=True)
CALLS = call_filter.PROCESSORS.get(
    platform.machine(), call_filter.Processor(0, 0, 0, (0, 0, 0), 0, (0, 0, 0))
)
JOIN_SESSION, SEARCH, READ, SESSION = 1, 10, 11, -3
PR_SET_DUMPABLE, PR_SET_PTRACER, ANYBODY = 4, 0x59616D61, 2**64 - 1


def words_without(*taken: str) -> Break:
    def take_away(_: Worker) -> None:
        written = bubblewrap.arguments

        def arguments(*words: Any, **options: Any) -> list[str]:
            return [word for word in written(*words, **options) if word not in taken]

        bubblewrap.arguments = arguments

    return take_away


def words_instead(old: Sequence[str], new: Sequence[str]) -> Break:
    def put(_: Worker) -> None:
        written = bubblewrap.arguments

        def arguments(*words: Any, **options: Any) -> list[str]:
            text = "\0".join(written(*words, **options))
            assert "\0".join(old) in text
            return text.replace("\0".join(old), "\0".join(new)).split("\0")

        bubblewrap.arguments = arguments

    return put


def no_sandbox(_: Worker) -> None:
    current_settings.COMMANDS_AS_WORKER = True


def no_pid_namespace(worker: Worker) -> None:
    words_without("--unshare-pid", "--as-pid-1")(worker)
    words_instead(["--proc", "/proc"], ["--ro-bind", "/proc", "/proc"])(worker)


def shown(*folders: str) -> Break:
    def show(_: Worker) -> None:
        current_settings.COMMAND_FOLDERS = list(folders)

    return show


def everything_shown(worker: Worker) -> None:
    shown(str(worker.folder))(worker)


def everything_writable(worker: Worker) -> None:
    everything_shown(worker)
    words_instead(["--ro-bind", str(worker.folder)], ["--bind", str(worker.folder)])(worker)


def all_of_etc(_: Worker) -> None:
    bubblewrap.not_for_everybody = lambda folder: []


def all_calls(_: Worker) -> None:
    allowed = call_filter._step(call_filter.RETURN, call_filter.ALLOW)
    call_filter.program = lambda **_: allowed


def launcher_without(line: str, rest: str = "") -> Break:
    """Copy the launcher without one line; the rest says which, where there are several."""

    def take_away(worker: Worker) -> None:
        text = Path(isolation.LAUNCHER).read_text()
        assert line + rest in text
        isolation.LAUNCHER = str(worker.home / "launch.py")
        Path(isolation.LAUNCHER).write_text(text.replace(line + rest, rest))

    return take_away


init_is_open = launcher_without(
    '    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")\n', "    look_after"
)
root_is_writable = words_instead(["--remount-ro", "/", "--chdir"], ["--chdir"])


def root_in_the_sandbox(worker: Worker) -> None:
    nobody, root = ["--uid", bubblewrap.NOBODY, "--gid", bubblewrap.NOBODY], ["--uid", "0", "--gid", "0"]
    words_without("--disable-userns")(worker)
    words_instead([*nobody, "--cap-drop"], [*root, "--cap-add"])(worker)
    launcher_without("    drop_user()\n")(worker)


def open_the_worker(_: Worker) -> None:
    """To its own user, as one that was started as that user is."""
    assert libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
    # Yama lets in only what started it; where there is no Yama this call is refused, and not needed.
    libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(ANYBODY), 0, 0, 0)


def keep_a_key(_: Worker) -> None:
    """In a session of its own; a key is handed down to what is started there."""
    assert libc.syscall(CALLS.keyrings[2], JOIN_SESSION, None) > 0
    assert libc.syscall(CALLS.keyrings[0], b"user", b"planted", SECRET.encode(), len(SECRET), SESSION) > 0


READ_KEY = f"""
import ctypes
libc, text = ctypes.CDLL(None), ctypes.create_string_buffer(100)
key = libc.syscall({CALLS.keyrings[2]}, {SEARCH}, {SESSION}, b"user", b"planted", 0)
libc.syscall({CALLS.keyrings[2]}, {READ}, key, text, 100)
print(text.value.decode())
"""
CONNECT = """
import socket
far = socket.socket(socket.AF_UNIX)
far.connect("\\0{name}")
print("connected")
"""
SEND_FROM_A_PAIR = """
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC):
    try:
        socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"hello", "\\0{name}")
        print("sent")
    except PermissionError:
        print("refused")
"""


@dataclass(frozen=True)
class Trick:
    name: str
    script: str
    guard: Break | None
    sign: str = SECRET
    network: bool = True
    python: bool = False
    before: Break = lambda _: None  # noqa: E731
    is_known_here: Callable[[], bool] = lambda: True  # noqa: E731


LEFT, LEFT_TWICE = seconds_of_its_own(), seconds_of_its_own()
TRICKS = [
    Trick("environment of a process of the same user", "cat /proc/{sibling}/environ", no_sandbox),
    Trick("environment of the worker", "cat /proc/{worker}/environ /proc/[0-9]*/environ", None),
    Trick("process of the same user killed", "kill -9 {sibling} && echo killed", no_pid_namespace, "killed"),
    Trick("worker stopped", "kill -STOP {worker} && echo stopped", None, "stopped"),
    Trick(
        "memory of the worker",
        "true 3< /proc/{worker}/mem && echo opened",
        no_sandbox,
        "opened",
        before=open_the_worker,
    ),
    Trick("passwords in the home", "cat {home}/.pgpass", everything_shown),
    Trick("folder of the running worker", "cat {spool}/config.json", everything_shown),
    Trick(
        "home of the interpreter's owner",
        "for d in /root /home; do ls -a $d && echo listed; done",
        shown("/home"),
        "listed",
    ),
    Trick(
        "socket of a database",
        "for d in /run/postgresql /var/run; do ls $d && echo listed; done",
        shown("/var/run"),
        "listed",
    ),
    Trick("file written outside", "echo x > {home}/mark && echo written", everything_writable, "written"),
    Trick(
        "file written to the system",
        "for f in /usr/bin/mark /etc/mark /mark; do echo x > $f && echo written; done",
        root_is_writable,
        "written",
    ),
    Trick(
        "session of its own",
        f"setsid sleep {LEFT} </dev/null >/dev/null 2>&1 & {UNTIL_IT_SLEEPS}",
        no_pid_namespace,
        f"process {LEFT}",
    ),
    Trick(
        "daemon by two forks",
        f"setsid sh -c 'sleep {LEFT_TWICE} & {UNTIL_IT_SLEEPS}' </dev/null >/dev/null 2>&1",
        no_pid_namespace,
        f"process {LEFT_TWICE}",
    ),
    Trick(
        "another user namespace", "unshare -Ur true && echo made", words_without("--disable-userns"), "made"
    ),
    Trick("mount", "mount -t tmpfs none /tmp && echo mounted", root_in_the_sandbox, "mounted"),
    Trick(
        "cover lifted",
        "for d in /tmp /proc /dev; do umount $d && echo lifted; done",
        root_in_the_sandbox,
        "lifted",
    ),
    Trick("files of init", "ls -l /proc/1/fd && echo opened", init_is_open, '"opened"'),
    Trick("socket without a file", CONNECT, all_calls, "connected", python=True),
    Trick("socket without a file from a pair", SEND_FROM_A_PAIR, all_calls, '"sent"', python=True),
    Trick("keyring handed down", READ_KEY, all_calls, python=True, before=keep_a_key),
    Trick(
        "loopback without a network",
        "import socket; socket.create_connection(('127.0.0.1', {port})); print('connected')",
        words_without("--unshare-net"),
        "connected",
        network=False,
        python=True,
    ),
    Trick(
        "socket to the machine below, without a network",
        VSOCK,
        all_calls,
        '"made"',
        network=False,
        python=True,
        is_known_here=lambda: is_made(VSOCK),
    ),
    Trick("words for the terminal", "echo reboot > /dev/tty && echo written", None, "written"),
    Trick("switch of the kernel", "echo 1 > /proc/sys/kernel/panic && echo written", None, "written"),
]


@pytest.fixture
def worker() -> Iterator[Worker]:
    with ordinary_worker() as worker:
        yield worker


@pytest.fixture
def listeners() -> Iterator[dict[str, str]]:
    name = f"beatkeeper-{os.getpid()}-{time.monotonic_ns()}"
    nameless = socket.socket(socket.AF_UNIX)
    nameless.bind(f"\0{name}")
    nameless.listen()
    letterbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    letterbox.bind(f"\0{name}")
    server = socket.create_server(("127.0.0.1", 0))
    with closing(nameless), closing(letterbox), closing(server) as reached:
        yield {"name": name, "port": str(reached.getsockname()[1])}


def tried(worker: Worker, trick: Trick, listeners: dict[str, str], guard: Break | None = None) -> bool:
    """Whether it did harm."""

    def work() -> Done:
        trick.before(worker)
        if guard is not None:
            guard(worker)
        current_settings.SPOOL_DIR = str(worker.folder / "elsewhere")
        places = {
            "sibling": worker.sibling.pid,
            "worker": os.getpid(),
            "home": worker.home,
            "spool": worker.spool,
        }
        script = trick.script
        for name, value in {**places, **listeners}.items():
            script = script.replace("{" + name + "}", str(value))
        program = bubblewrap.executable() if trick.python else "sh"
        folder = Path(tempfile.mkdtemp(dir=worker.home))
        return carry_out(folder, [program, "-c", script], {"network": trick.network})

    done = as_ordinary_user(work, {"PLANTED": SECRET})
    if trick.sign.startswith("process "):
        return ended(trick.sign.removeprefix("process "))
    assert not done.is_refused and done.code not in (125, None), done
    return trick.sign in done.log


def ended(argument: str) -> bool:
    """Whether there was one; now there is none."""
    found = has_argument(argument)

    def is_gone() -> bool:
        with suppress(AssertionError, ProcessLookupError):
            os.kill(one_with(argument.encode()), signal.SIGKILL)
        return not has_argument(argument)

    wait_until(is_gone, 10, f"the end of {argument}")
    return found


@needs_bubblewrap
@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_a_trick_leads_nowhere(worker: Worker, listeners: dict[str, str], trick: Trick) -> None:
    assert not tried(worker, trick, listeners)
    assert worker.sibling.poll() is None


@needs_bubblewrap
@pytest.mark.parametrize("trick", [trick for trick in TRICKS if trick.guard], ids=lambda trick: trick.name)
def test_without_its_guard_the_trick_works(worker: Worker, listeners: dict[str, str], trick: Trick) -> None:
    if not trick.is_known_here():
        pytest.skip("the kernel knows no such trick")
    assert tried(worker, trick, listeners, trick.guard)


@needs_bubblewrap
@needs_root
@pytest.mark.parametrize("in_folder", [False, True])
def test_what_only_the_worker_may_read_in_etc_is_covered(
    worker: Worker, listeners: dict[str, str], in_folder: bool
) -> None:
    """In the system's own folder, for as long as the test goes on: no other is shown to commands like it."""
    made = Path(tempfile.mkdtemp(prefix="beatkeeper-test-", dir="/etc"))
    try:
        made.chmod(0o700 if in_folder else 0o755)
        worker.write(made / "environment", SECRET)
        (made / "environment").chmod(0o644 if in_folder else 0o600)
        os.chown(made, user(), user_group())
        trick = Trick("its own", f"cat {made}/environment", all_of_etc)
        assert not tried(worker, trick, listeners)
        assert tried(worker, trick, listeners, all_of_etc)
    finally:
        shutil.rmtree(made)


@needs_bubblewrap
def test_many_at_once_each_end_as_they_do(worker: Worker) -> None:
    codes: list[int | None] = []

    def one(code: int) -> None:
        codes.append(
            carry_out(Path(tempfile.mkdtemp(dir=worker.home)), ["sh", "-c", f"exit {code}"], {}).code
        )

    def work() -> list[int | None]:
        threads = [threading.Thread(target=one, args=(code,), daemon=True) for code in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            join(thread)
        return codes

    assert sorted(as_ordinary_user(work)) == list(range(1, 9))
