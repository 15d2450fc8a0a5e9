"""Something done in a process of an ordinary user, as most workers are; where the tests are root it stops being root.

`Worker` has commands carried out so, and what they might be after.
"""

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from runs.targets.command import run as command
from scheduler_project.sdk.outcomes import PermanentError
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.shared.slots import SlotTable
from scheduler_project.sdk.targets.registry import TargetFailed
from tests.runs.targets.executed import OneSlot
from tests.sdk.targets.test_celery_task import make_claim
from tests.support.waiting import join, wait_until

UID = 54_321
SYSTEM_PYTHON = "/usr/bin/python3"
SECRET = "planted-s3cr3t"


def user() -> int:
    return UID if os.geteuid() == 0 else os.geteuid()


def user_group() -> int:
    return user() if os.geteuid() == 0 else os.getegid()


def as_ordinary_user(work: Callable[[], Any], env: dict[str, str] | None = None) -> Any:
    """Return what it returns, and raise what it raises."""
    process, answers = started_as_ordinary_user(work, env)
    fine, answer = received(answers)
    join(process)
    if not fine:
        raise answer
    return answer


def started_as_ordinary_user(
    work: Callable[[], Any], env: dict[str, str] | None = None
) -> tuple[Any, Connection]:
    answers, answering = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=answer_of, args=(work, env or {}, answering), daemon=True
    )
    process.start()
    answering.close()
    return process, answers


def received(answers: Connection) -> tuple[bool, Any]:
    """Whether it is what came back, or what was raised."""
    if not answers.poll(180):
        pytest.fail("the process of an ordinary user says nothing")
    fine, answer = answers.recv()
    return fine, answer


def answer_of(work: Callable[[], Any], env: dict[str, str], answering: Connection) -> None:
    os.environ.update(env)
    become_ordinary()
    try:
        answering.send((True, work()))
    except Exception as error:
        answering.send((False, error))


def become_ordinary() -> None:
    os.umask(0o077)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
    if not os.access(os.path.realpath(sys.executable), os.X_OK) and shutil.which(SYSTEM_PYTHON):
        # Root's own interpreter lies in root's home.
        sys.executable, sys.base_prefix, sys.base_exec_prefix = SYSTEM_PYTHON, "/usr", "/usr"
        vars(sys)["_base_executable"] = SYSTEM_PYTHON


# Asked for by a fixture, so that whoever imports this starts nothing.
needs_bubblewrap = pytest.mark.usefixtures("sandbox")


@dataclass(frozen=True)
class Done:
    log: str
    code: int | None = 0
    failure: str = ""
    error_class: str = ""
    is_refused: bool = False


class Worker:
    """An ordinary user with a home, a spool and a secret in the environment of a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.spool = self.made("home"), self.made("spool")
        self.write(self.home / ".pgpass", f"*:*:*:*:{SECRET}\n")
        self.write(self.spool / "config.json", SECRET)
        self.sibling = subprocess.Popen(
            ["sleep", "600.25"],
            env={"DATABASE_URL": SECRET},
            user=user(),
            group=user_group(),
            start_new_session=True,
        )

    def made(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(0o700)
        os.chown(folder, user(), user_group())
        return folder

    def write(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)
        os.chown(path, user(), user_group())

    def __call__(self, *argv: str, **target: Any) -> Done:
        return self.prepared(lambda: None, *argv, **target)

    def prepared(self, prepare: Callable[[], Any], *argv: str, **target: Any) -> Done:
        def work() -> Done:
            prepare()
            return carry_out(Path(tempfile.mkdtemp(dir=self.home)), argv, target)

        done = as_ordinary_user(work, {"HOME": str(self.home), "PLANTED": SECRET})
        assert isinstance(done, Done)
        return done

    def started(self, *argv: str) -> "Started":
        return Started(self, argv)

    def end(self) -> None:
        self.sibling.kill()
        self.sibling.wait()


def carry_out(folder: Path, argv: Sequence[str], target: dict[str, Any]) -> Done:
    slot = OneSlot(folder)
    try:
        slot.carry_out(command.execute, make_claim({"kind": "command", "argv": list(argv), **target}))
    except TargetFailed as failed:
        return Done(slot.log, failed.exit_code, str(failed), failed.error_class)
    except PermanentError as refused:
        return Done(slot.log, None, str(refused), "permanent", is_refused=True)
    return Done(slot.log)


class Started:
    """A command that goes on, in a worker of its own."""

    def __init__(self, worker: Worker, argv: Sequence[str]) -> None:
        folder = worker.made("running")
        self.process, self._answers = started_as_ordinary_user(lambda: carry_out(folder, argv, {}))
        said = lambda: any(b"ready" in file.read_bytes() for file in folder.rglob("*") if file.is_file())  # noqa: E731
        wait_until(said, 10, "the command's first words")
        self.group = SlotTable(folder).records[0].body[0]

    def init(self) -> int:
        """Return the process that is 1 to itself, of those that this one started."""
        (pid,) = (pid for pid, _ in processes.descendants(self.process.pid) if number_within(pid) == 1)
        return pid

    def done(self) -> Done:
        _, done = received(self._answers)
        join(self.process)
        assert isinstance(done, Done)
        return done


@contextmanager
def ordinary_worker() -> Iterator[Worker]:
    folder = Path(tempfile.mkdtemp(prefix="ordinary-", dir="/var/lib" if os.geteuid() == 0 else None))
    folder.chmod(0o755)
    worker = Worker(folder)
    yield worker
    worker.end()
    shutil.rmtree(folder)


def number_within(pid: int) -> int:
    """Return its number in its own PID namespace."""
    (line,) = re.findall(r"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(line.split()[-1])


def one_with(argument: bytes) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.stat().st_uid in (0, user()) and argument in (folder / "cmdline").read_bytes().split(
                b"\0"
            ):
                return int(folder.name)
    raise AssertionError(f"no process has the argument {argument!r}")
