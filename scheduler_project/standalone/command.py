"""`manage.py standalone`: start all that one machine needs and supervise it in the foreground.

It runs before Django's settings can be loaded, because it creates what they need: a database and a secret key.
"""

import argparse
import errno
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import psycopg

from scheduler_project import schema_history
from scheduler_project.standalone import state
from scheduler_project.standalone.postgres import EmbeddedPostgres
from scheduler_project.standalone.process import SupervisedProcess, begin, last_lines, wait_until
from scheduler_project.standalone.state import CannotStart

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
SLOTS = "4"
ANSWER_SECONDS = 90.0
FIRST_RUN_SECONDS = 15.0
# How long a worker may finish what it runs when all is stopped; the rest is given back, for the next start.
DRAIN_SECONDS = "1"
# The database ends last, because the others report to it.
STOP_SECONDS = {"worker": 30.0, "scheduler": 15.0, "api": 15.0}
DOWN_SECONDS = 120.0


class StopAsked(Exception):
    """Somebody pressed Ctrl-C or sent SIGTERM."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=8000, help="where API and admin listen (8000)")
    parser.add_argument("--state-dir", default="", help="where data, secrets and logs are kept (var)")
    parser.add_argument("--stop", action="store_true", help="stop the copy that runs from this folder")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="manage.py standalone", description=__doc__)
    add_arguments(parser)
    return run(**vars(parser.parse_args(arguments)))


def run(port: int, state_dir: str, stop: bool) -> int:
    database_url = os.environ.get("DATABASE_URL", "").strip()
    try:
        account = state.unprivileged_account()
        folder = state.choose(CHECKOUT, state_dir or os.environ.get("BEATKEEPER_STATE_DIR", ""), account)
        if stop:
            return stop_running(folder)
        database = None if database_url else EmbeddedPostgres(folder / "postgresql", account)
        return Standalone(port, folder, database).run()
    except state.AlreadyRunning as reason:
        say(f"{reason}; `make down` stops it")
    except CannotStart as reason:
        say(str(reason))
    return 2


def stop_running(folder: Path) -> int:
    lock = state.LockFile(folder / "standalone.pid")
    holder = lock.holder()
    if holder is None:
        say(f"nothing runs from {folder}")
        return 0
    os.kill(holder, signal.SIGTERM)
    if not wait_until(lambda: lock.holder() is None, DOWN_SECONDS):
        raise CannotStart(f"process {holder} has not stopped within {DOWN_SECONDS:.0f} s")
    say("stopped")
    return 0


class Standalone:
    def __init__(self, port: int, folder: Path, database: EmbeddedPostgres | None) -> None:
        self.port, self.address = port, f"http://{HOST}:{port}"
        self.folder = folder
        self.database = database
        self.logs = folder / "logs"
        self.credentials = folder / "credentials.json"
        self.env: dict[str, str] = {}
        self.children: list[SupervisedProcess] = []
        self._stop = threading.Event()

    def run(self) -> int:
        """Lock the folder, start database, tables, demo and processes, print the addresses, and supervise."""
        with state.LockFile(self.folder / "standalone.pid"), suppress(StopAsked):
            self._refuse_taken_port()
            for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signal_number, self._on_signal)
            try:
                self._start()
                self._introduce()
                while True:
                    self._keep_alive()
                    self._pause(0.2)
            finally:
                self._end()
        return 0

    def _start(self) -> None:
        for name in ("logs", "log_store", "spool", "static"):
            state.make_folder(self.folder / name, 0o700)
        database_url = self._start_database()
        self._refuse_foreign_tables(database_url)
        started_with = {
            "DATABASE_URL": database_url,
            "SECRET_KEY": os.environ.get("SECRET_KEY") or state.secret_key(self.folder),
            "ENCRYPTION_KEYS": os.environ.get("ENCRYPTION_KEYS") or state.encryption_keys(self.folder),
            "LOG_STORE_URL": os.environ.get("LOG_STORE_URL") or (self.folder / "log_store").as_uri(),
            # On a machine with an embedded database, those who may create jobs are those who started it.
            "BEATKEEPER_COMMANDS_AS_WORKER": os.environ.get("BEATKEEPER_COMMANDS_AS_WORKER")
            or ("1" if self.database else "0"),
            "BEATKEEPER_SPOOL_DIR": os.environ.get("BEATKEEPER_SPOOL_DIR") or str(self.folder / "spool"),
            "BEATKEEPER_DRAIN_SECONDS": os.environ.get("BEATKEEPER_DRAIN_SECONDS") or DRAIN_SECONDS,
            # Files are served from where they are installed; this folder must only exist.
            "BEATKEEPER_STATIC_ROOT": str(self.folder / "static"),
            "BEATKEEPER_PUBLIC_URL": self.address,
        }
        self.env = os.environ | started_with | {"PYTHONUNBUFFERED": "1"}
        # For `manage.py`. Of another database than our own the URL is not ours to keep.
        state.keep_settings(self.folder, started_with if self.database is not None else None)
        self._manage("migrate", "--no-input")
        self._manage("demo", "--credentials-file", str(self.credentials))
        self.children = self._processes()
        for child in self.children:
            child.start()
        if not self._wait_for(lambda: self._answer("/healthz"), ANSWER_SECONDS, pause=0.1):
            lines = last_lines(self.logs / "api.log")
            raise CannotStart(f"the API does not answer; the last lines of its log:\n{lines}")

    def _start_database(self) -> str:
        if self.database is not None:
            say(f"starting PostgreSQL in {self.database.folder} ...")
            self.database.start()
            return self.database.url()
        url = os.environ["DATABASE_URL"].strip()
        try:
            psycopg.connect(url, connect_timeout=10).close()
        except psycopg.Error as error:
            raise CannotStart(f"the database of DATABASE_URL does not answer: {str(error).strip()}") from None
        return url

    def _refuse_foreign_tables(self, url: str) -> None:
        with psycopg.connect(url, connect_timeout=10) as connection:
            if connection.execute("SELECT to_regclass('django_migrations')").fetchone() == (None,):
                return
            foreign = schema_history.foreign_migrations(connection.execute(schema_history.APPLIED).fetchall())
        if foreign:
            anew = f"move {self.folder} away" if self.database else "set DATABASE_URL to an empty database"
            raise CannotStart(
                f"this database cannot be used: {schema_history.describe(foreign)}; "
                f"to begin anew, {anew} and start again (nothing was changed or deleted)"
            )

    def _processes(self) -> list[SupervisedProcess]:
        celery = ["celery", "-A", "scheduler_project"]
        beat = [*celery, "beat", "-S", "runs.beat:PartitionedScheduler", "--pidfile=", "--loglevel", "INFO"]
        worker = ["scheduler_project.sdk.worker.feed", "--app", "scheduler_project", "--slots", SLOTS]
        if self.env.get("CELERY_BROKER_URL"):
            node = f"standalone-{os.getpid()}@%h"
            worker = [*celery, "worker", "--concurrency", SLOTS, "--hostname", node, "--loglevel", "INFO"]
        return [
            self._process("worker", worker),
            self._process("scheduler", beat),
            self._process("api", ["manage", "serve", "--bind", f"{HOST}:{self.port}"]),
        ]

    def _process(self, name: str, module: list[str]) -> SupervisedProcess:
        command = [sys.executable, "-m", *module]
        return SupervisedProcess(name, command, cwd=CHECKOUT, env=self.env, log=self.logs / f"{name}.log")

    def _manage(self, command: str, *arguments: str) -> None:
        """Run a management command to its end. Only the owner can read the files that it writes."""
        log = self.logs / f"{command}.log"
        with log.open("wb") as output:
            words = [sys.executable, "manage.py", command, *arguments]
            process = begin(words, output, cwd=CHECKOUT, env=self.env, umask=0o077)
        try:
            while process.poll() is None:
                self._pause(0.05)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise CannotStart(f"`manage.py {command}` failed; its last lines:\n{last_lines(log)}")

    def _wait_for(self, look: Callable[[], Any], seconds: float, pause: float) -> Any:
        """Look until something is found or the time is up, and keep the processes alive meanwhile."""
        end = time.monotonic() + seconds
        while not (found := look()) and time.monotonic() < end:
            self._keep_alive()
            self._pause(pause)
        return found

    def _answer(self, path: str, key: str = "") -> dict[str, Any]:
        """Send a request past any proxy of the machine, as the address is our own; return nothing if it fails."""
        headers = {"Authorization": f"Bearer {key}"} if key else None
        try:
            with httpx.Client(trust_env=False, timeout=5) as client:
                return dict(client.get(f"{self.address}{path}", headers=headers).raise_for_status().json())
        except (httpx.HTTPError, ValueError):
            return {}

    def _introduce(self) -> None:
        who: dict[str, str] = json.loads(self.credentials.read_text())
        api = f"{self.address}/api/v1"
        say(f"admin: {self.address}/admin/")
        say(f"login: {who['admin_user']} {who['admin_password']}")
        say(f"api: {api}")
        say(f"key: {who['api_key']}")
        header = f"-H 'Authorization: Bearer {who['api_key']}'"
        # An example for the addresses below, if one succeeds in time.
        succeeded = partial(self._answer, "/api/v1/runs?state=succeeded", who["api_key"])
        runs = self._wait_for(lambda: succeeded().get("results"), FIRST_RUN_SECONDS, pause=0.25)
        run = runs[-1] if runs else {}
        say(f"curl -s {header} {api}/jobs")
        say(f"curl -s -X POST {header} {api}/jobs/{run.get('job', 'JOB_ID')}/run")
        say(f"curl -s {header} {api}/runs/{run.get('id', 'RUN_ID')}/log")
        say(f"Everything is kept in {self.folder}; Ctrl-C stops it.")

    def _keep_alive(self) -> None:
        if self.database is not None and not self.database.is_alive():
            say(f"PostgreSQL ended; starting it again (its log: {self.database.log})")
            self.database.stop()
            self.database.start()
        for child in self.children:
            if news := child.keep_alive():
                say(news)

    def _end(self) -> None:
        """Stop all children at once, and kill each with its descendants after its time limit."""
        if self.children:
            say("stopping ...")
        for child in self.children:
            child.ask_to_stop()
        for child in self.children:
            child.end(STOP_SECONDS[child.name])
        if self.database is not None:
            self.database.stop()

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StopAsked

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        """Stop; at the second signal, kill the children at once."""
        if self._stop.is_set():
            for child in self.children:
                child.kill()
        self._stop.set()

    def _refuse_taken_port(self) -> None:
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, self.port))
        except OverflowError:
            raise CannotStart(f"{self.port} is not a port: choose one from 1024 to 65535") from None
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            fact = "is taken by another program" if taken else f"cannot be used ({error.strerror})"
            raise CannotStart(
                f"port {self.port} {fact}: choose another one, as in `make up PORT=8001`"
            ) from None


def say(line: str) -> None:
    """Print a line, even if the terminal is gone."""
    with suppress(OSError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
