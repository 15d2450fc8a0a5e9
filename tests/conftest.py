"""Fixtures for real services. Everything is started when a test first asks for it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.conf import settings as project
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.backends.postgresql.operations import DatabaseOperations
from django.test import Client

from jobs.access import request_limits
from tests.support.certificates import OwnCA
from tests.support.leftovers import delete_queues
from tests.support.live_api import live_api
from tests.support.minute import Minute, stopped_clocks
from tests.support.processes import CHECKOUT, Processes
from tests.support.servers.pgbouncer import PrivatePgbouncer
from tests.support.servers.postgres import PrivatePostgres
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.servers.redis import PrivateRedis

broker_used = pytest.StashKey[bool]()
# Fixtures that connect to a server or start processes; a test that requests one is no unit test.
SERVER_FIXTURES = frozenset(
    {"db", "django_db_setup", "broker_url", "processes", "chromium", "stage", "large"}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--behind-pooler", action="store_true", help="Django's connection leads through a transaction pooler"
    )
    parser.addoption(
        "--no-servers", action="store_true", help="only tests that need no server, and none marked exhaustive"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what `make unit` runs: quick tests that ask for no server, by mark, by fixture or by their folder."""
    if not config.getoption("no_servers"):
        return
    kept = [item for item in items if _is_unit_test(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _is_unit_test(item: pytest.Item) -> bool:
    folder = item.path.relative_to(CHECKOUT / "tests").parts[0]
    fixtures = getattr(item, "fixturenames", ())
    return not (
        folder in ("system", "benchmarks", "races")
        or any(mark.name in ("servers", "exhaustive", "django_db") for mark in item.iter_markers())
        or any(name in SERVER_FIXTURES or name.startswith("private_") for name in fixtures)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seed = config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"random order; the same again with: pytest --randomly-seed={seed}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash.get(broker_used, False):
        delete_queues(project.TEST_BROKER_URL, f"{project.QUEUE_PREFIX}.")


@pytest.fixture(scope="session", autouse=True)
def _flush_by_deleting() -> Iterator[None]:
    """TRUNCATE is refused by the audit trail, and slow over a hundred partitions."""

    def sql_flush(self: DatabaseOperations, style: Any, tables: list[str], **options: Any) -> list[str]:
        deletes = [f"DELETE FROM {self.quote_name(table)}" for table in tables]  # noqa: S608 - our own tables
        role = "SET LOCAL session_replication_role = replica"
        return [role, *deletes] if deletes else []

    with patch.object(DatabaseOperations, "sql_flush", sql_flush):
        yield


@pytest.fixture(scope="session", autouse=True)
def _behind_pooler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever goes by Django's connection, the worker's ledger too, when asked for on the command line."""
    if not request.config.getoption("behind_pooler"):
        yield
        return
    request.getfixturevalue("django_db_setup")
    name = str(connection.settings_dict["NAME"])
    with PrivatePgbouncer(pgbouncer(), with_database(os.environ["DATABASE_URL"], name)) as pooler:
        there = {"HOST": "127.0.0.1", "PORT": str(pooler.port)}
        with patch.dict(connection.settings_dict, there):
            yield
            with request.getfixturevalue("django_db_blocker").unblock():
                connection.close()


@pytest.fixture(autouse=True)
def _limits_of_its_own() -> None:
    """Forget what earlier tests had of limits: their rows are gone, and all of them come from one address."""
    request_limits.by_key.forget()
    request_limits.by_address.forget()


@pytest.fixture
def minute(db: None) -> Iterator[Minute]:
    with stopped_clocks() as minute:
        yield minute


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Real processes that end with the test, whatever happens in it."""
    started = Processes(tmp_path)
    yield started
    started.stop_all()


@pytest.fixture(scope="session")
def broker_url(pytestconfig: pytest.Config) -> str:
    """Name a RabbitMQ shared with others: never stop it, and use names with our prefix only."""
    pytestconfig.stash[broker_used] = True
    return str(project.TEST_BROKER_URL)


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """Name the test database as a child process reaches it; it sees what the test commits."""
    return with_database(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))


@pytest.fixture(scope="session")
def own_ca(tmp_path_factory: pytest.TempPathFactory) -> OwnCA:
    return OwnCA.make(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def api_port(own_ca: OwnCA, transactional_db: None, tmp_path: Path, settings: Any) -> Iterator[int]:
    """Where the API listens, over TLS, in this process; it has a log store of its own."""
    settings.LOG_STORE_URL = f"file://{tmp_path}/logs"
    with live_api(own_ca) as port:
        yield port


@pytest.fixture(scope="session")
def _rabbitmq_of_this_session(own_ca: OwnCA) -> Iterator[PrivateRabbitMQ]:
    with PrivateRabbitMQ(ca=own_ca) as server:
        yield server


@pytest.fixture
def private_rabbitmq(_rabbitmq_of_this_session: PrivateRabbitMQ) -> PrivateRabbitMQ:
    """Lend a running, empty RabbitMQ that a test may stop, kill and purge."""
    server = _rabbitmq_of_this_session
    if not server.is_alive():
        server.start()
    server.use_fresh_vhost()
    return server


@pytest.fixture
def private_redis(tmp_path: Path) -> Iterator[PrivateRedis]:
    """Lend a running, empty Redis that a test may stop and fill."""
    folder = tmp_path / "redis"
    folder.mkdir()
    try:
        server = PrivateRedis(folder)
    except FileNotFoundError:
        pytest.skip("no Redis on this machine: apt-get install redis-server")
    with server:
        yield server


@pytest.fixture(scope="session")
def _postgres_of_this_session() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        yield server


@pytest.fixture
def private_postgres(_postgres_of_this_session: PrivatePostgres) -> PrivatePostgres:
    """Lend a running PostgreSQL that a test may stop, kill and change."""
    server = _postgres_of_this_session
    if not server.is_alive():
        server.start()
    return server


@pytest.fixture(scope="session")
def _migrated_template(_postgres_of_this_session: PrivatePostgres) -> str:
    server = _postgres_of_this_session
    if not server.is_alive():
        server.start()
    migrate(server.create_database("template_beatkeeper"))
    return "template_beatkeeper"


@pytest.fixture
def private_database_url(private_postgres: PrivatePostgres, _migrated_template: str) -> str:
    """Make a new database with our tables in the server that may be stopped."""
    return private_postgres.create_database(template=_migrated_template)


@pytest.fixture(scope="session")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no chromium on this machine: apt-get install chromium")


@pytest.fixture
def pooled_database_url(database_url: str) -> Iterator[str]:
    """Lead to the test database through a transaction pooler of two server connections."""
    with PrivatePgbouncer(pgbouncer(), database_url) as pooler:
        yield pooler.url


@pytest.fixture(scope="session")
def sandbox() -> None:
    """Only where an ordinary user can make one for commands."""
    from runs.targets.command.isolation import why_no_sandbox
    from tests.runs.targets.ordinary_user import as_ordinary_user

    if why_not := as_ordinary_user(why_no_sandbox):
        pytest.skip(f"no sandbox can be made here: {why_not}")


def pgbouncer() -> str:
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no pgbouncer on this machine: apt-get install pgbouncer")
    return program


def with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def migrate(database_url: str) -> None:
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=CHECKOUT, env={**os.environ, "DATABASE_URL": database_url}, check=True)


@pytest.fixture
def staff(client: Client) -> Client:
    """Somebody who may do everything in the admin."""
    client.force_login(get_user_model().objects.create_superuser("olga", password="x"))
    return client
