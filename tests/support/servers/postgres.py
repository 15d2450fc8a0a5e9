"""A PostgreSQL for tests that stop it, kill it or need one to themselves."""

import os
import re
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from scheduler_project.standalone.postgres import USER, EmbeddedPostgres
from scheduler_project.standalone.state import unprivileged_account
from tests.support.ports import free_port

# Where Debian, Red Hat and Homebrew put the programs that are on nobody's PATH; the newest first.
SYSTEM_BINARIES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
ROOMY = {"max_wal_size": "4GB", "max_connections": "200"}


def system_binaries() -> Path | None:
    found = [path for pattern in SYSTEM_BINARIES for path in Path("/").glob(pattern[1:])]
    usable = [path for path in found if (path / "initdb").exists() and (path / "postgres").exists()]
    return max(
        usable,
        key=lambda path: [int(number) for number in re.findall(r"\d+", path.parent.name)],
        default=None,
    )


class PrivatePostgres:
    """Listens on a free port of the loopback; `stop` or `kill` and `start` keep the data."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.folder = Path(mkdtemp(prefix=f"bk-pg-{os.environ.get('BEATKEEPER_TEST_ID', 'x')}-"))
        self.folder.chmod(0o755)
        self._server = EmbeddedPostgres(
            self.folder / "postgresql",
            unprivileged_account(),
            system_binaries(),
            **{"listen_addresses": "127.0.0.1", "port": str(self.port), **ROOMY, **(options or {})},
        )
        self._server.auth_host = "trust"

    @property
    def url(self) -> str:
        return self.url_of(USER)

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def url_of(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Shut down fast, as `systemctl restart postgresql` does."""
        self._server.stop()

    def kill(self) -> None:
        """Kill the server without writing anything, as a power cut would. The next start recovers."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self._server.stop()

    def is_alive(self) -> bool:
        return self._server.is_alive()

    def create_database(self, name: str = "", template: str = "template1") -> str:
        name = name or f"test_{secrets.token_hex(4)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url_of(name)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
