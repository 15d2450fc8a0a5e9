from typing import Any

import psycopg
import pytest
from django.db import connection


@pytest.fixture
def session(db: None) -> psycopg.Connection[Any]:
    """The test's own connection as the scheduler's functions want it."""
    connection.ensure_connection()
    return connection.connection  # type: ignore[no-any-return]
