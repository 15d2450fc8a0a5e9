"""Command targets: an argument list in a process group of its own, as another user, with a clean environment.

Nothing of the worker's environment is passed on (it holds passwords). As root the command runs as nobody. A
worker that is not root could only run it as itself, where it may read the worker's memory and environment: that
is refused, unless BEATKEEPER_COMMANDS_AS_WORKER says that all who may create jobs are trusted with them (R28).
"""

import codecs
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from shutil import which
from typing import IO, Any

from django.conf import settings

from scheduler_project.sdk import processes
from scheduler_project.sdk.outcomes import PERMANENT, TRANSIENT, PermanentError
from scheduler_project.sdk.targets import Attempt, TargetFailed

NOBODY = "65534"
PATH = "/usr/local/bin:/usr/bin:/bin"
CHUNK = 65_536
# A shell's codes for "not executable" and "not found": trying again changes nothing.
CANNOT_START = (126, 127)
AFTER_EXIT = 1.0


def execute(attempt: Attempt) -> dict[str, Any]:
    argv = [str(part) for part in attempt.target["argv"]]
    if not argv:
        raise PermanentError("The command is empty")
    with started(argv, environment(attempt)) as process:
        attempt.body_is(process.pid, processes.started(process.pid))
        stream_output(process, attempt)
        code = process.wait()
    if code:
        raise failure(argv, code)
    return {"exit_code": 0}


def failure(argv: Sequence[str], code: int) -> TargetFailed:
    if code < 0:
        name = signal.Signals(-code).name
        return TargetFailed(TRANSIENT, name, f"{argv[0]} was ended by {name}", exit_code=128 - code)
    error_class = PERMANENT if code in CANNOT_START else TRANSIENT
    return TargetFailed(error_class, f"exit {code}", f"{argv[0]} ended with exit code {code}", exit_code=code)


def environment(attempt: Attempt) -> dict[str, str]:
    claim = attempt.claim
    given = {str(name): str(value) for name, value in (attempt.target.get("env") or {}).items()}
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
def started(argv: Sequence[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Whatever happens, nothing of the group is left behind."""
    try:
        process = subprocess.Popen(
            [*prefix(), *argv],
            env=env,
            cwd=tempfile.gettempdir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise PermanentError(f"{argv[0]} cannot be started: {error}") from error
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def prefix() -> list[str]:
    if os.geteuid() == 0:
        if not can_change_user():
            raise PermanentError("This worker runs as root and cannot start a command as another user")
        return as_nobody()
    if not settings.COMMANDS_AS_WORKER:
        raise PermanentError(
            "This worker is not root and cannot start a command as another user; see BEATKEEPER_COMMANDS_AS_WORKER"
        )
    return ["setpriv", "--pdeathsig", "KILL", "--no-new-privs", "--"] if which("setpriv") else []


def as_nobody() -> list[str]:
    user = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    return ["setpriv", *user, "--no-new-privs", "--inh-caps", "-all", "--pdeathsig", "KILL", "--"]


@cache
def can_change_user() -> bool:
    try:
        return subprocess.run([*as_nobody(), "true"], env={"PATH": PATH}, capture_output=True).returncode == 0
    except OSError:
        return False


class Lines:
    """A stream's bytes, cut into lines as they come."""

    def __init__(self, attempt: Attempt, stream: str) -> None:
        self._attempt, self._stream = attempt, stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, final: bool = False) -> None:
        *lines, self._rest = (self._rest + self._decoder.decode(data, final)).split("\n")
        if self._rest and (final or len(self._rest) > CHUNK):
            lines.append(self._rest)
            self._rest = ""
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
