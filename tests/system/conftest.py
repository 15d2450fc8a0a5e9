"""The whole product for a test: its processes end before its database is emptied."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from tests.support.processes import CHECKOUT, Processes
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.system.adoption.adopter import run_to_end
from tests.system.platform import Platform, django_at


@pytest.fixture
def platform(database_url: str, broker_url: str, processes: Processes, tmp_path: Path) -> Iterator[Platform]:
    """Against the servers shared with others: for tests that stop processes of ours only."""
    whole = Platform(processes, tmp_path, database_url, broker_url)
    yield whole
    whole.end_everything()


@pytest.fixture
def platform_with_own_broker(
    database_url: str, private_rabbitmq: PrivateRabbitMQ, processes: Processes, tmp_path: Path
) -> Iterator[Platform]:
    """Its RabbitMQ may be stopped and purged."""
    whole = Platform(processes, tmp_path, database_url, private_rabbitmq.url)
    yield whole
    whole.end_everything()


@pytest.fixture
def platform_with_own_database(
    private_database_url: str,
    broker_url: str,
    processes: Processes,
    tmp_path: Path,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Platform]:
    """Its PostgreSQL may be stopped and killed."""
    with django_db_blocker.unblock(), django_at(private_database_url):
        whole = Platform(processes, tmp_path, private_database_url, broker_url)
        yield whole
        whole.end_everything()


@pytest.fixture
def platform_with_own_servers(
    private_database_url: str,
    private_rabbitmq: PrivateRabbitMQ,
    processes: Processes,
    tmp_path: Path,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Platform]:
    """Its PostgreSQL and its RabbitMQ may be stopped, also both at once."""
    with django_db_blocker.unblock(), django_at(private_database_url):
        whole = Platform(processes, tmp_path, private_database_url, private_rabbitmq.url)
        yield whole
        whole.end_everything()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_to_end(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(folder),
            str(CHECKOUT),
        ]
    )
    (built,) = folder.glob("beatkeeper-*.whl")
    return built


@pytest.fixture(scope="session")
def adopter(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the python of a virtual environment with the wheel, as a team would install it."""
    folder = tmp_path_factory.mktemp("adopter") / "venv"
    run_to_end([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    # By our own pip, and without compiling what is mostly never imported: a third of the time.
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    run_to_end([*install, f"{wheel}[db]", "django-auditlog", "Django<6", "flask"])
    return python


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Bodies that are told to wait for it go on until it exists."""
    return tmp_path / "gate"
