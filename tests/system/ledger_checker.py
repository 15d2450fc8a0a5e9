"""An independent bookkeeper: which runs should exist, by its own arithmetic, and which do. Imports nothing of ours.

Knows `{"every": seconds}`, counted from the anchor, and `{"cron": "*/n * * * * *"}` in UTC with n dividing 60.
As a command: python tests/system/ledger_checker.py <database url> [<until, ISO 8601>]
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import psycopg

Planned = tuple[str, int]
WRONG_SHOWN = 5


@dataclass
class Verdict:
    expected: int
    missing: list[Planned] = field(default_factory=list)
    unexpected: list[Planned] = field(default_factory=list)
    doubled: list[Planned] = field(default_factory=list)
    # Runs that are neither live nor ended, or both (the invariant of the live table).
    torn: int = 0
    latest_ms: float = 0.0

    @property
    def ok(self) -> bool:
        return not (self.missing or self.unexpected or self.doubled or self.torn)

    def __str__(self) -> str:
        counts = {"missing": self.missing, "unexpected": self.unexpected, "doubled": self.doubled}
        sentences = [f"{len(found)} {name} {found[:WRONG_SHOWN]}" for name, found in counts.items() if found]
        if self.torn:
            sentences.append(f"{self.torn} runs with a state and a live row, or with neither")
        result = "; ".join(sentences) or "each exactly once"
        return (
            f"{self.expected} planned times: {result}; the latest came {self.latest_ms:.0f} ms after its time"
        )


def check(connection: psycopg.Connection[Any], until: datetime) -> Verdict:
    """All jobs from their creation up to and including `until`."""
    end = to_ms(until)
    expected = Counter(
        (job, instant)
        for job, schedule, anchor in jobs(connection)
        for instant in planned_times(schedule, to_ms(anchor), end)
    )
    found = Counter((job, instant) for job, instant in runs(connection, until))
    return Verdict(
        expected=len(expected),
        missing=sorted((expected - found).keys()),
        unexpected=sorted(found.keys() - expected.keys()),
        doubled=sorted(planned for planned, count in found.items() if count > 1),
        torn=torn(connection),
        latest_ms=latest(connection, until),
    )


def planned_times(schedule: dict[str, Any], anchor: int, end: int) -> Iterator[int]:
    """Milliseconds after the anchor."""
    if "every" in schedule:
        step = round(1000 * float(schedule["every"]))
        yield from range(anchor + step, end + 1, step)
        return
    second_field, *others = schedule["cron"].split()
    if others != ["*"] * 5 or not second_field.startswith("*/") or 60 % int(second_field[2:]):
        raise ValueError(f"this checker does not know {schedule}")
    step = 1000 * int(second_field[2:])
    yield from range((anchor // step + 1) * step, end + 1, step)


def jobs(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute(
        "SELECT job_id::text, schedule, anchor_at FROM beatkeeper_job_version WHERE schedule IS NOT NULL"
    ).fetchall()


def runs(connection: psycopg.Connection[Any], until: datetime) -> Iterator[Planned]:
    rows = connection.execute(
        "SELECT job_id::text, planned_at FROM beatkeeper_run WHERE planned_at <= %s", [until]
    )
    return ((job, to_ms(planned_at)) for job, planned_at in rows)


def torn(connection: psycopg.Connection[Any]) -> int:
    rows = connection.execute(
        "SELECT count(*) FROM beatkeeper_run run FULL JOIN beatkeeper_live_run live ON live.id = run.id"
        " WHERE run.id IS NULL OR (run.state IS NULL) = (live.id IS NULL)"
    )
    return int(rows.fetchall()[0][0])


def latest(connection: psycopg.Connection[Any], until: datetime) -> float:
    rows = connection.execute(
        "SELECT coalesce(max(extract(epoch FROM created_at - planned_at)), 0)::float8 FROM beatkeeper_run"
        " WHERE planned_at <= %s",
        [until],
    )
    return 1000 * float(rows.fetchall()[0][0])


def to_ms(instant: datetime) -> int:
    passed = instant.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (passed.days * 86_400 + passed.seconds) * 1000 + passed.microseconds // 1000


def main(url: str, until: str = "") -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        end = datetime.fromisoformat(until) if until else datetime.now(timezone.utc)
        verdict = check(connection, end)
    sys.stdout.write(f"{verdict}\n")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
