"""A database whose clock stands where a test puts it: everything reads the time from there, so one place will do."""

from datetime import datetime
from typing import Any

import psycopg

SHADOW = """
CREATE SCHEMA fake_clock;
CREATE FUNCTION fake_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
    $$ SELECT current_setting('fake_clock.now')::timestamptz $$;
SET LOCAL search_path TO fake_clock, pg_catalog, public;
"""


class FakeClock:
    """For the transaction of this session."""

    def __init__(self, session: psycopg.Connection[Any], now: datetime) -> None:
        self.session = session
        self.now = now
        session.execute(SHADOW)
        self.set(now)

    def set(self, now: datetime) -> None:
        self.now = now
        self.session.execute("SELECT set_config('fake_clock.now', %s, true)", [now.isoformat()])
