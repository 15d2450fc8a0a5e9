from typing import Any

import psycopg
import pytest
from django.db import connection


@pytest.fixture
def session(db: None) -> psycopg.Connection[Any]:
    """Lend the test's own connection in the form that the scheduler's functions need."""
    connection.ensure_connection()
    return connection.connection  # type: ignore[no-any-return]
