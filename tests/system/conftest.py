"""The whole product for a test: its processes end before its database is emptied."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Processes
from tests.system.platform import Platform


@pytest.fixture
def platform(database_url: str, broker_url: str, processes: Processes, tmp_path: Path) -> Iterator[Platform]:
    """Against the servers shared with others: for tests that stop processes of ours only."""
    whole = Platform(processes, tmp_path, database_url, broker_url)
    yield whole
    whole.end_everything()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Bodies that are told to wait for it go on until it exists."""
    return tmp_path / "gate"
