"""A transaction pooler in front of a database, as API and workers meet it in production."""

import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psycopg

from scheduler_project.sdk.process.processes import die_with_parent
from scheduler_project.standalone.process import last_lines
from scheduler_project.standalone.state import as_account, unprivileged_account
from tests.support.ports import free_port
from tests.support.waiting import wait_until

CONFIGURATION = """\
[databases]
{database} = host={host} port={port} dbname={database} user={user} {password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
server_reset_query =
ignore_startup_parameters = extra_float_digits
"""


class PrivatePgbouncer:
    """Few server connections for many clients, so that whatever clings to one shows."""

    def __init__(self, program: str, database_url: str, pool_size: int = 2) -> None:
        self._program = program
        self.port = free_port()
        self.folder = Path(mkdtemp(prefix=f"bk-pool-{os.environ.get('BEATKEEPER_TEST_ID', 'x')}-"))
        self.folder.chmod(0o755)
        self.log = self.folder / "log"
        target = urlsplit(database_url)
        self._database = target.path.lstrip("/")
        self._user = target.username or "postgres"
        configuration = CONFIGURATION.format(
            database=self._database,
            host=target.hostname or "127.0.0.1",
            port=target.port or 5432,
            user=self._user,
            password=f"password={target.password}" if target.password else "",
            own_port=self.port,
            pool_size=pool_size,
        )
        (self.folder / "pgbouncer.ini").write_text(configuration)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self.port}/{self._database}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, str(self.folder / "pgbouncer.ini")],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),
                **as_account(unprivileged_account()),
            )
        wait_until(self._answers, 20, f"pgbouncer; its last lines: {last_lines(self.log)}")
        return self

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=3).close()
        except psycopg.OperationalError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
