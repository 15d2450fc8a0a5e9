import os
from collections.abc import Iterator

import pytest

from tests.contracts.large_database import FULL, SHORT, large_database


@pytest.fixture(
    scope="session",
    params=[pytest.param(SHORT, id="short"), pytest.param(FULL, id="full", marks=pytest.mark.chaos)],
)
def large(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of a large database of this test run's own."""
    name = f"beatkeeper_large_{os.environ['BEATKEEPER_TEST_ID']}_{request.param.jobs}"
    with large_database(os.environ["DATABASE_URL"], name, request.param) as url:
        yield url
