"""Another code base with django-celery-beat: a database of its own, migrated and filled by its own models."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tests.settings import TEST_ID
from tests.support.processes import CHECKOUT, Processes, RealProcess, environment

APP = "tests.runs.celery_beat.host_app"
MODELS = "django_celery_beat.models"
# As their own settings make it; what a test says of rows is in these words.
PRELUDE = f"""
from datetime import datetime, timedelta, timezone
import {APP}
from {MODELS} import *
UTC = timezone.utc
now = datetime.now(UTC)
"""
MIGRATE = "from django.core.management import call_command; call_command('migrate', verbosity=0)"

Row = dict[str, Any]


class HostProject:
    def __init__(self, url: str, queue: str, broker_url: str, folder: Path) -> None:
        self.url, self.queue, self.broker_url, self.folder = url, queue, broker_url, folder
        self.journal_path = folder / "their-journal"

    def env(self) -> dict[str, str | None]:
        """Nothing of ours: who starts with it is their process."""
        ours = [name for name in os.environ if name.startswith(("BEATKEEPER_", "DATABASE_", "CELERY_"))]
        return {
            **dict.fromkeys(ours),
            "DJANGO_SETTINGS_MODULE": None,
            "SECRET_KEY": None,
            "THEIR_DATABASE_URL": self.url,
            "THEIR_BROKER_URL": self.broker_url,
            "THEIR_QUEUE": self.queue,
            "THEIR_JOURNAL": str(self.journal_path),
        }

    def python(self, code: str) -> str:
        """In a process of that project, with their models at hand; what it prints."""
        command = [sys.executable, "-c", PRELUDE + code]
        done = subprocess.run(
            command, cwd=CHECKOUT, env=environment(self.env()), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def connect(self, name: str = "test") -> psycopg.Connection[Row]:
        return psycopg.connect(self.url, autocommit=True, row_factory=dict_row, application_name=name)

    def rows(self, statement: str, values: Mapping[str, Any] | Sequence[Any] | None = None) -> list[Row]:
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def task(self, name: str) -> Row:
        (row,) = self.rows("SELECT * FROM django_celery_beat_periodictask WHERE name = %s", [name])
        return row

    def firings(self) -> list[Row]:
        return self.rows("SELECT * FROM beatkeeper_celery_firing ORDER BY planned_at, id")

    def journal(self) -> list[Row]:
        if not self.journal_path.exists():
            return []
        return [json.loads(line) for line in self.journal_path.read_text().splitlines()]

    def start_beat(self, processes: Processes, name: str) -> RealProcess:
        """Ours, in their environment: celery -A host beat -S runs.beat:PartitionedScheduler."""
        command = ["celery", "-A", APP, "beat", "-S", "runs.beat:PartitionedScheduler", "--pidfile="]
        return processes.python(*command, "--loglevel", "INFO", env=self.env(), name=name)

    def start_worker(self, processes: Processes) -> RealProcess:
        command = ["celery", "-A", APP, "worker", "-P", "threads", "-c", "4", "--loglevel", "INFO"]
        queues = f"{self.queue},{self.queue}.routed,{self.queue}.other"
        return processes.python(
            *command,
            "-Q",
            queues,
            "-n",
            f"{self.queue}@%h",
            "--without-gossip",
            env=self.env(),
            name="their-worker",
        )


@contextmanager
def database(like: str = "template1") -> Iterator[str]:
    """Yield the URL of a new database, named after this test run."""
    server = os.environ["DATABASE_URL"]
    name = f"beatkeeper_theirs_{TEST_ID}_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        new, old = sql.Identifier(name), sql.Identifier(like)
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(new, old))
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(new))
