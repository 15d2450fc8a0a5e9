from collections.abc import Iterator

import pytest

from runs.slices import connect
from tests.concurrency.staging import Session, dsn


@pytest.fixture
def first() -> Iterator[Session]:
    with connect(dsn(), "first", 30) as connection:
        yield connection


@pytest.fixture
def second() -> Iterator[Session]:
    with connect(dsn(), "second", 30) as connection:
        yield connection
