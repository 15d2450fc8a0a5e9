"""Start a command apart from the worker and from other runs, as far as this worker can.

Nothing of the worker's environment is passed on (it holds passwords), and nothing privileged acts on what the tenant
gave (`launcher.py`). As root each command runs as nobody in a PID namespace of its own: it sees no other run, and
whatever it started ends with it. For a worker that is not root bubblewrap makes such a namespace (`bubblewrap.py`).
Where neither works commands could only run where they may read each other's environment or the worker's: that is
refused, unless BEATKEEPER_COMMANDS_AS_WORKER says that all who may create jobs are trusted with them.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from django.conf import settings

from runs.targets.command import bubblewrap
from runs.targets.command import seccomp as call_filter
from runs.targets.command.launcher import LIMITS
from scheduler_project.sdk.logs.store import folder_of
from scheduler_project.sdk.outcomes import PermanentError

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
PATH = "/usr/local/bin:/usr/bin:/bin"
MEGABYTE = 1024 * 1024
NAMESPACE, SANDBOX, HERE = "namespace", "sandbox", "here"
# For the launcher, as pairs: a name may come twice.
Options = Sequence[tuple[str, str]]
SMALL_TMP = ("tmp", "65536")
OFFLINE = ("network", "0")


def options(target: Mapping[str, Any], where: str) -> Options:
    found = [*limits(target, where), *network(target, where)]
    if where != HERE:
        # How large a /tmp it gets, and which folders are empty for it.
        found.append(("tmp", str(settings.COMMAND_LIMITS["tmp_mb"] * MEGABYTE)))
        found += [("hide", folder) for folder in not_for_commands(where)]
    return found


def limits(target: Mapping[str, Any], where: str) -> Options:
    """Return the job's limits as the kernel counts them, none above the platform's."""
    own, most = target.get("limits") or {}, settings.COMMAND_LIMITS
    pairs = []
    for name in LIMITS:
        if name == "processes" and name not in own and where == HERE and os.geteuid() != 0:
            # The kernel counts those of the user, and this user is the worker.
            continue
        numbers = [number for number in (own.get(name), most.get(name)) if number]
        unit = MEGABYTE if name.endswith("_mb") else 1
        pairs += [(name, str(min(numbers) * unit))] if numbers else []
    return pairs


def network(target: Mapping[str, Any], where: str) -> Options:
    """Return the options that take the network away; refuse the job if this worker cannot do that."""
    if target.get("network", True) and settings.COMMAND_NETWORK:
        has_filter = where == NAMESPACE and not call_filter.why_not()
        return [("calls", call_filter.without_keyrings().hex())] if has_filter else []
    if where == HERE:
        raise PermanentError(
            "This worker cannot keep a command off the network: it makes no namespaces."
            " Right would be: unset BEATKEEPER_COMMANDS_AS_WORKER there, or let the job have a network"
        )
    if where == NAMESPACE:
        if why_not := call_filter.why_not():
            raise PermanentError(f"This worker cannot keep a command off the network: {why_not}")
        return [OFFLINE, ("calls", call_filter.program(of_worker_s_user=False, network=False).hex())]
    if not in_offline_sandbox.succeeds():
        error = in_offline_sandbox.why_not
        wrong = f"This worker cannot keep a command off the network; bubblewrap reports: {error}."
        raise PermanentError(f"{wrong} Right would be: {bubblewrap.remedy_of(error)}")
    return [OFFLINE]


def not_for_commands(where: str) -> list[str]:
    """Return the folders with results, log lines and secrets of other runs, to be hidden.

    Their permissions keep others out anyway. In a sandbox the command is the worker's user, so the project's own
    passwords are hidden too.
    """
    folders = [settings.SPOOL_DIR, folder_of(settings.LOG_STORE_URL)]
    if where == SANDBOX:
        # Where Beatkeeper is an installed package, the project is the folder its worker was started in.
        folders += [str(settings.BASE_DIR), "/proc/self/cwd"]
    return [os.path.realpath(folder) for folder in folders if folder]


def launch(
    argv: Sequence[str], env: dict[str, str], where: str, options: Options, stdin: str = ""
) -> subprocess.Popen[bytes]:
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
            # A file and no pipe: nobody has to feed it, and a command that does not read it ends all the same.
            stdin=kept_open(files, written_file("stdin", encoded(stdin))) if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=passed,
        )


def sandboxed(files: ExitStack, options: Options) -> tuple[Options, list[int]]:
    """Return the launcher's options and the files passed on to it, which hold what is for bubblewrap."""
    network = OFFLINE not in options
    calls = call_filter.program(of_worker_s_user=True, network=network)
    refused_calls = kept_open(files, written_file("calls", calls))
    hidden, tmp = [value for name, value in options if name == "hide"], int(dict(options)["tmp"])
    words = bubblewrap.arguments(LAUNCHER, settings.COMMAND_FOLDERS, hidden, tmp, network)
    words += ["--seccomp", str(refused_calls)]
    arguments = kept_open(files, written_file("arguments", os.fsencode("\0".join(words)) + b"\0"))
    of_sandbox = [
        ("bwrap", str(shutil.which(bubblewrap.PROGRAM))),
        ("arguments", str(arguments)),
        ("launcher", bubblewrap.LAUNCHER),
    ]
    return [*options, *of_sandbox], [refused_calls, arguments]


def kept_open(files: ExitStack, file: int) -> int:
    files.callback(os.close, file)
    return file


def written_order(argv: Sequence[str], env: dict[str, str]) -> int:
    words = [str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
    if any("\0" in word for word in words):
        raise ValueError("an argument or a variable holds a NUL")
    return written_file("order", encoded("\0".join(words)))


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def written_file(name: str, content: bytes) -> int:
    """Write an open file in memory: neither a list of processes nor a folder shows its content."""
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
    """Return why this worker cannot make a sandbox; empty when it can."""
    if why_not := bubblewrap.why_not():
        return why_not
    if in_sandbox.succeeds():
        return ""
    error = in_sandbox.why_not
    return f"bubblewrap reports {error!r}. Right would be: {bubblewrap.remedy_of(error)}"


class Trial:
    """Tries whether commands can be started so: the kernel and the container may forbid it."""

    def __init__(self, where: str, *options: tuple[str, str]) -> None:
        self._where, self._options = where, (SMALL_TMP, *options)
        self._succeeded, self.why_not = False, ""

    def succeeds(self) -> bool:
        """Start a command, unless one has succeeded before."""
        if not self._succeeded:
            process = launch(["true"], {"PATH": PATH}, self._where, self._options)
            _, error = process.communicate()
            self._succeeded = process.returncode == 0
            self.why_not = error.decode("utf-8", "replace").strip()
        return self._succeeded


in_namespace = Trial(NAMESPACE)
in_sandbox, in_offline_sandbox = Trial(SANDBOX), Trial(SANDBOX, OFFLINE)


@contextmanager
def started(
    argv: Sequence[str], env: dict[str, str], target: Mapping[str, Any], stdin: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command, and kill its whole process group at the end, whatever happens."""
    where = where_to_run()
    with launch(argv, env, where, options(target, where), stdin) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
