"""Command targets: an argument list in a process group of its own, as another user, with a clean environment.

Nothing of the worker's environment is passed on (it holds passwords), and nothing privileged acts on what the
tenant gave (`launch.py`). As root each command runs as nobody in a PID namespace of its own: it sees no other run,
and whatever it started ends with it. A worker that may not make one, or that is not root, could only run commands
where they may read each other's environment or the worker's: that is refused, unless
BEATKEEPER_COMMANDS_AS_WORKER says that all who may create jobs are trusted with them.
"""

import codecs
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from django.conf import settings

from jobs.command_target import why_not_in_environment
from scheduler_project.sdk import processes
from scheduler_project.sdk.outcomes import PERMANENT, TRANSIENT, PermanentError
from scheduler_project.sdk.targets import Attempt, TargetFailed

LAUNCHER = str(Path(__file__).with_name("launch.py"))
PATH = "/usr/local/bin:/usr/bin:/bin"
CHUNK = 65_536
MEGABYTE = 1024 * 1024
# What the kernel calls them, and in which unit it counts.
KERNEL_LIMITS = {
    "cpu_seconds": ("cpu", 1),
    "memory_mb": ("memory", MEGABYTE),
    "open_files": ("files", 1),
    "processes": ("processes", 1),
    "file_size_mb": ("file_size", MEGABYTE),
}
# What a signal says of a command that got it from the kernel.
SAID_BY_KERNEL = {
    signal.SIGXCPU: "it used up its CPU time",
    signal.SIGXFSZ: "a file grew over its limit",
    signal.SIGKILL: "it was stopped for good, or ran out of memory or CPU time",
}
# A shell's codes for "not executable" and "not found": trying again changes nothing.
SAID_BY_CODE = {126: ": it cannot be executed", 127: ": it was not found"}
AFTER_EXIT = 1.0
NAMESPACE, HERE = "namespace", "here"


def execute(attempt: Attempt) -> dict[str, Any]:
    argv = [str(part) for part in attempt.target["argv"]]
    if not argv:
        raise PermanentError("The command is empty")
    with started(argv, environment(attempt), attempt.target) as process:
        attempt.body_is(process.pid, processes.started(process.pid))
        stream_output(process, attempt)
        code = process.wait()
    if code:
        raise failure(argv, code)
    return {"exit_code": 0}


def failure(argv: Sequence[str], code: int) -> TargetFailed:
    if code < 0:
        number = signal.Signals(-code)
        words = SAID_BY_KERNEL.get(number) or (signal.strsignal(number) or "").lower()
        line = f"{argv[0]} was ended by {number.name}" + (f": {words}" if words else "")
        return TargetFailed(TRANSIENT, number.name, line, exit_code=128 - code)
    error_class = PERMANENT if code in SAID_BY_CODE else TRANSIENT
    line = f"{argv[0]} ended with exit code {code}" + SAID_BY_CODE.get(code, "")
    return TargetFailed(error_class, f"exit {code}", line, exit_code=code)


def environment(attempt: Attempt) -> dict[str, str]:
    claim = attempt.claim
    given = {str(name): str(value) for name, value in (attempt.target.get("env") or {}).items()}
    for name in given:
        if why_not := why_not_in_environment(name):
            raise PermanentError(why_not)
    return {
        "PATH": PATH,
        "HOME": tempfile.gettempdir(),
        "LANG": "C.UTF-8",
        **given,
        "BEATKEEPER_RUN": str(claim.run_id),
        "BEATKEEPER_ATTEMPT": str(claim.attempt),
        "BEATKEEPER_JOB": claim.job_name,
        "BEATKEEPER_PLANNED_AT": claim.planned_at.isoformat(),
    }


@contextmanager
def started(
    argv: Sequence[str], env: dict[str, str], target: Mapping[str, Any]
) -> Iterator[subprocess.Popen[bytes]]:
    """Whatever happens, nothing of the group is left behind."""
    where = place()
    process = launch(argv, env, where, options(target, where))
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def options(target: Mapping[str, Any], where: str) -> list[str]:
    """The job's own limits, as far as the platform's let them go."""
    own, most = target.get("limits") or {}, settings.COMMAND_LIMITS
    words = []
    for name, (short, unit) in KERNEL_LIMITS.items():
        if name == "processes" and name not in own and where == HERE and os.geteuid() != 0:
            # The kernel counts those of the user, and this user is the worker.
            continue
        limits = [number for number in (own.get(name), most.get(name)) if number]
        words += [f"{short}={min(limits) * unit}"] if limits else []
    if where == NAMESPACE:
        words.append(f"tmp={most['tmp_mb'] * MEGABYTE}")
        words += [f"hide={folder}" for folder in not_for_commands()]
    if not target.get("network", True) or not settings.COMMAND_NETWORK:
        if where != NAMESPACE:
            raise PermanentError("This worker cannot keep a command off the network: it makes no namespaces")
        words.append("network=0")
    return words


def not_for_commands() -> list[str]:
    """Results, lines and secrets of everybody. Nobody may read them anyway; here they are not even there."""
    store = urlsplit(settings.LOG_STORE_URL)
    folders = [settings.SPOOL_DIR, store.path if store.scheme == "file" else ""]
    return [os.path.realpath(folder) for folder in folders if folder]


def launch(
    argv: Sequence[str], env: dict[str, str], where: str, options: Sequence[str] = ("tmp=65536",)
) -> subprocess.Popen[bytes]:
    try:
        order = written_order(argv, env)
    except ValueError as error:
        raise PermanentError(f"{argv[0]!r} cannot be started: {error}") from error
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", LAUNCHER, str(order), where, *options],
            env={},
            cwd=tempfile.gettempdir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(order,),
        )
    finally:
        os.close(order)


def written_order(argv: Sequence[str], env: dict[str, str]) -> int:
    """An open file in memory: neither a list of processes nor a folder shows what stands in it."""
    words = [str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
    if any("\0" in word for word in words):
        raise ValueError("an argument or a variable holds a NUL")
    content = "\0".join(words).encode("utf-8", "surrogateescape")
    order = os.memfd_create("order")
    with open(order, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(order, 0, os.SEEK_SET)
    return order


def place() -> str:
    if os.geteuid() != 0 and not settings.COMMANDS_AS_WORKER:
        raise PermanentError(
            "This worker is not root and cannot start a command as another user; see BEATKEEPER_COMMANDS_AS_WORKER"
        )
    if os.geteuid() == 0 and namespaces.work():
        return NAMESPACE
    if settings.COMMANDS_AS_WORKER:
        return HERE
    raise PermanentError(
        "This worker runs as root and cannot start a command apart from others, as another user in a PID"
        f" namespace; see BEATKEEPER_COMMANDS_AS_WORKER. {namespaces.why_not}"
    )


class Namespaces:
    """Whether the kernel and the container let us make them. A yes is remembered."""

    def __init__(self) -> None:
        self._tried, self.why_not = False, ""

    def work(self) -> bool:
        if not self._tried:
            process = launch(["true"], {"PATH": PATH}, NAMESPACE)
            _, said = process.communicate()
            self._tried = process.returncode == 0
            self.why_not = said.decode("utf-8", "replace").strip()
        return self._tried


namespaces = Namespaces()


class Lines:
    """A stream's bytes, cut into lines as they come."""

    def __init__(self, attempt: Attempt, stream: str) -> None:
        self._attempt, self._stream = attempt, stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, final: bool = False) -> None:
        *lines, self._rest = (self._rest + self._decoder.decode(data, final)).split("\n")
        if self._rest and (final or len(self._rest) > CHUNK):
            # A line without an end is not cut through a secret.
            at = len(self._rest) if final else self._attempt.log.masked.cut(self._rest)
            lines.append(self._rest[:at])
            self._rest = self._rest[at:]
        for line in lines:
            self._attempt.log.write(self._stream, line)


def stream_output(process: subprocess.Popen[bytes], attempt: Attempt) -> None:
    """Until both streams end, or the command has ended and only what it left behind still holds them."""
    handle = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
                if pipe is not None:
                    selector.register(pipe, selectors.EVENT_READ, Lines(attempt, name))
            selector.register(handle, selectors.EVENT_READ, None)
            read_all(selector, handle)
    finally:
        os.close(handle)


def read_all(selector: selectors.BaseSelector, handle: int) -> None:
    ended = False
    while len(selector.get_map()) > (0 if ended else 1):
        events = selector.select(AFTER_EXIT if ended else None)
        if ended and not events:
            return
        for key, _ in events:
            if key.fd == handle:
                selector.unregister(handle)
                ended = True
            else:
                read_some(selector, key.fileobj, key.data)  # type: ignore[arg-type]


def read_some(selector: selectors.BaseSelector, pipe: IO[bytes], lines: Lines) -> None:
    data = os.read(pipe.fileno(), CHUNK)
    lines.feed(data, final=not data)
    if not data:
        selector.unregister(pipe)
