import os
from collections.abc import Iterator

import pytest

from tests.bench.results import tell
from tests.contracts.large_database import Size, large_database

__all__ = ["tell"]

MEASURED = Size(
    jobs=int(os.environ.get("BEATKEEPER_BENCH_JOBS", "1000000")),
    tenants=100,
    due=1_000,
    delayed=100_000,
    ready=100_000,
    queued=1_000,
    running=1_000,
)


@pytest.fixture(scope="session")
def measured() -> Iterator[str]:
    """The URL of a database of a million jobs with 1 kB of payload each, and unfinished runs of all kinds."""
    name = f"beatkeeper_bench_{os.environ['BEATKEEPER_TEST_ID']}"
    with large_database(os.environ["DATABASE_URL"], name, MEASURED) as url:
        yield url
