from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from celery._state import _set_task_join_will_block  # type: ignore[attr-defined]  # the stubs leave it out
from django.db import connection


@pytest.fixture(autouse=True)
def _results_may_be_awaited_afterwards() -> Iterator[None]:
    """Undo what a `CeleryPublisher` sets for its whole process."""
    yield
    _set_task_join_will_block(False)


@pytest.fixture
def session(db: None) -> psycopg.Connection[Any]:
    """Lend the test's own connection in the form that the scheduler's functions need."""
    connection.ensure_connection()
    return connection.connection  # type: ignore[no-any-return]
