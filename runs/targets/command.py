"""Command targets: an argument list in a process group of its own, as another user, with a clean environment.

Nothing of the worker's environment is passed on (it holds passwords), and nothing privileged acts on what the
tenant gave (`launch.py`). As root each command runs as nobody in a PID namespace of its own: it sees no other run,
and whatever it started ends with it. For a worker that is not root bubblewrap makes such a namespace (`bubblewrap.py`).
Where neither works commands could only run where they may read each other's environment or the worker's: that is
refused, unless BEATKEEPER_COMMANDS_AS_WORKER says that all who may create jobs are trusted with them.
"""

import codecs
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from django.conf import settings

from jobs.command_target import why_not_in_environment
from runs.targets import bubblewrap, call_filter
from scheduler_project.sdk import processes
from scheduler_project.sdk.log_store import folder_of
from scheduler_project.sdk.outcomes import PERMANENT, TRANSIENT, PermanentError
from scheduler_project.sdk.targets import Attempt, TargetFailed

LAUNCHER = str(Path(__file__).with_name("launch.py"))
PATH = "/usr/local/bin:/usr/bin:/bin"
# A command's own, where it runs apart.
HOME = "/tmp"  # noqa: S108
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
NAMESPACE, SANDBOX, HERE = "namespace", "sandbox", "here"
# For the launcher, as pairs: a name may come twice.
Options = Sequence[tuple[str, str]]
SMALL_TMP = ("tmp", "65536")
OFFLINE = ("network", "0")


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
        "HOME": HOME,
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
    where = where_to_run()
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


def options(target: Mapping[str, Any], where: str) -> Options:
    return [*limits(target, where), *own_folders(where), *network(target, where)]


def limits(target: Mapping[str, Any], where: str) -> Options:
    """The job's own, as far as the platform's let them go."""
    own, most = target.get("limits") or {}, settings.COMMAND_LIMITS
    pairs = []
    for name, (short, unit) in KERNEL_LIMITS.items():
        if name == "processes" and name not in own and where == HERE and os.geteuid() != 0:
            # The kernel counts those of the user, and this user is the worker.
            continue
        numbers = [number for number in (own.get(name), most.get(name)) if number]
        pairs += [(short, str(min(numbers) * unit))] if numbers else []
    return pairs


def own_folders(where: str) -> Options:
    """How large a /tmp it gets, and which folders are empty for it."""
    if where == HERE:
        return []
    size = settings.COMMAND_LIMITS["tmp_mb"] * MEGABYTE
    return [("tmp", str(size)), *(("hide", folder) for folder in not_for_commands(where))]


def network(target: Mapping[str, Any], where: str) -> Options:
    """Refused, if it is to have none and this worker cannot take it away."""
    if target.get("network", True) and settings.COMMAND_NETWORK:
        has_filter = where == NAMESPACE and not call_filter.why_not()
        return [("calls", call_filter.without_keyrings().hex())] if has_filter else []
    if where == HERE:
        raise PermanentError(
            "This worker cannot keep a command off the network: it makes no namespaces."
            " Right would be: unset BEATKEEPER_COMMANDS_AS_WORKER there, or let the job have a network"
        )
    if where == NAMESPACE:
        return [OFFLINE, ("calls", calls_without_network().hex())]
    if not in_offline_sandbox.succeeds():
        raise PermanentError(
            f"This worker cannot keep a command off the network; bubblewrap says: {in_offline_sandbox.why_not}."
            f" Right would be: {bubblewrap.what_to_do(in_offline_sandbox.why_not)}"
        )
    return [OFFLINE]


def calls_without_network() -> bytes:
    if why_not := call_filter.why_not():
        raise PermanentError(f"This worker cannot keep a command off the network: {why_not}")
    return call_filter.program(of_worker_s_user=False, network=False)


def not_for_commands(where: str) -> list[str]:
    """Results, lines and secrets of everybody. Nobody may read them anyway; here they are not even there.

    In a sandbox the command is the worker's user, so the project's own passwords are hidden too.
    """
    folders = [settings.SPOOL_DIR, folder_of(settings.LOG_STORE_URL)]
    if where == SANDBOX:
        # Where Beatkeeper is an installed package, the project is the folder its worker was started in.
        folders += [str(settings.BASE_DIR), "/proc/self/cwd"]
    return [os.path.realpath(folder) for folder in folders if folder]


def launch(argv: Sequence[str], env: dict[str, str], where: str, options: Options) -> subprocess.Popen[bytes]:
    with ExitStack() as files:
        try:
            order = kept_open(files, written_order(argv, env))
        except ValueError as error:
            raise PermanentError(f"{argv[0]!r} cannot be started: {error}") from error
        passed, python = [order], sys.executable
        if where == SANDBOX:
            python = bubblewrap.executable()
            options, descriptors = sandboxed(files, options)
            passed += descriptors
        words = [f"{name}={value}" for name, value in options]
        return subprocess.Popen(
            [python, "-I", "-S", LAUNCHER, str(order), where, *words],
            env={},
            cwd=tempfile.gettempdir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=passed,
        )


def sandboxed(files: ExitStack, options: Options) -> tuple[Options, list[int]]:
    """The launcher's options; what is for bubblewrap stands in files that are passed on."""
    network = OFFLINE not in options
    calls = call_filter.program(of_worker_s_user=True, network=network)
    refused_calls = kept_open(files, written_file("calls", calls))
    words = bubblewrap.arguments(
        LAUNCHER,
        shown=settings.COMMAND_FOLDERS,
        hidden=[value for name, value in options if name == "hide"],
        tmp=int(dict(options)["tmp"]),
        network=network,
    )
    words += ["--seccomp", str(refused_calls)]
    arguments = kept_open(files, written_file("arguments", os.fsencode("\0".join(words)) + b"\0"))
    limits = [(name, value) for name, value in options if name not in ("hide", "tmp", "network")]
    of_sandbox = [
        ("bwrap", str(shutil.which(bubblewrap.PROGRAM))),
        ("arguments", str(arguments)),
        ("launcher", bubblewrap.LAUNCHER),
    ]
    return [*limits, *of_sandbox], [refused_calls, arguments]


def kept_open(files: ExitStack, file: int) -> int:
    files.callback(os.close, file)
    return file


def written_order(argv: Sequence[str], env: dict[str, str]) -> int:
    words = [str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
    if any("\0" in word for word in words):
        raise ValueError("an argument or a variable holds a NUL")
    return written_file("order", "\0".join(words).encode("utf-8", "surrogateescape"))


def written_file(name: str, content: bytes) -> int:
    """An open file in memory: neither a list of processes nor a folder shows what stands in it."""
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def where_to_run() -> str:
    if os.geteuid() == 0 and in_namespace.succeeds():
        return NAMESPACE
    if settings.COMMANDS_AS_WORKER:
        return HERE
    if os.geteuid() != 0:
        if why_not := why_no_sandbox():
            raise PermanentError(
                f"This worker is not root and cannot start a command apart from itself: {why_not}; or a worker that is"
                " root; or, if all who may create jobs are trusted, BEATKEEPER_COMMANDS_AS_WORKER=1"
            )
        return SANDBOX
    raise PermanentError(
        "This worker runs as root and cannot start a command apart from others, as another user in a PID"
        f" namespace; see BEATKEEPER_COMMANDS_AS_WORKER. {in_namespace.why_not}"
    )


def why_no_sandbox() -> str:
    """Empty when there is one."""
    if why_not := bubblewrap.why_not():
        return why_not
    if in_sandbox.succeeds():
        return ""
    said = in_sandbox.why_not
    return f"bubblewrap says {said!r}. Right would be: {bubblewrap.what_to_do(said)}"


class Trial:
    """Whether commands can be started so: the kernel and the container may forbid it."""

    def __init__(self, where: str, *options: tuple[str, str]) -> None:
        self._where, self._options = where, (SMALL_TMP, *options)
        self._succeeded, self.why_not = False, ""

    def succeeds(self) -> bool:
        """Starts one, until one has succeeded."""
        if not self._succeeded:
            process = launch(["true"], {"PATH": PATH}, self._where, self._options)
            _, said = process.communicate()
            self._succeeded = process.returncode == 0
            self.why_not = said.decode("utf-8", "replace").strip()
        return self._succeeded


in_namespace = Trial(NAMESPACE)
in_sandbox, in_offline_sandbox = Trial(SANDBOX), Trial(SANDBOX, OFFLINE)


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
