"""A job as the trigger reads it, and its planned times. Pure."""

import json
import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from jobs import schedules
from jobs.models import JOB_SLICES, JobStatus
from jobs.spec.catch_up import DEFAULT_ALL
from scheduler_project.sdk.ids import MILLISECOND, whole_milliseconds

HASHED = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")


class CatchUp(NamedTuple):
    """What the job wants done about missed planned times."""

    policy: str
    window: timedelta
    most: int
    per_minute: float
    newest_first: bool


class DueJob(NamedTuple):
    """A clock, and the job it belongs to as it is now."""

    due_at: datetime
    id: UUID
    tenant_id: int
    pool_id: int
    version: int
    priority: int
    # A deleted job counts as a cancelled one.
    status: str
    schedule: str | None
    # The calendar that the schedule names, as it is now.
    calendar: str | None
    anchor_at: datetime
    overlap: str
    catch_up_text: str
    target_key: str
    gated: bool
    busy: bool
    # Read only while a suspension names a tag.
    tags_text: str | None = None

    @property
    def active(self) -> bool:
        return self.status == JobStatus.ACTIVE

    @property
    def slice(self) -> int:
        return self.id.int % JOB_SLICES

    @property
    def catch_up(self) -> CatchUp:
        return _catch_up(self.catch_up_text)

    @property
    def tags(self) -> dict[str, str]:
        return json.loads(self.tags_text) if self.tags_text else {}

    def next_time(self, after: datetime) -> datetime | None:
        return schedules.next_after(self.read_schedule(), after, anchor=self.anchor_at)

    def first_time(self, at: datetime, until: datetime) -> datetime | None:
        """Return the first planned time of [at, until)."""
        # A clock reads microseconds, planned times are whole milliseconds.
        found = self.next_time(whole_milliseconds(at - timedelta.resolution))
        return found if found is not None and found < until else None

    def last_time(self, at: datetime, until: datetime) -> datetime | None:
        """Return the last planned time of [at, until)."""
        return schedules.last_before(
            self.read_schedule(), until - MILLISECOND, anchor=self.anchor_at, not_before=at
        )

    def jittered(self, planned_at: datetime) -> datetime:
        """Return when its run may begin, within the flexible window of the schedule."""
        return schedules.jittered(self.read_schedule(), self.id, planned_at)

    def read_schedule(self) -> schedules.Schedule:
        text = self.schedule or "null"
        # The calendar itself, of which there is one: what is remembered for each job must not hold its text as well.
        return _parsed(text, str(self.id) if _is_hashed(text) else "", _working_time(self.calendar))

    @property
    def spreads(self) -> bool:
        """Return whether its schedule has a flexible window."""
        return '"jitter"' in (self.schedule or "")


def longest_reach() -> timedelta:
    """Return how far back runs may be made; older planned times may have no partition any more."""
    return timedelta(days=settings.HOT_PERIOD_DAYS - 2)


@lru_cache(maxsize=65_536)
def _is_hashed(text: str) -> bool:
    return HASHED.search(text) is not None


@lru_cache(maxsize=65_536)
def _parsed(text: str, hash_id: str, calendar: schedules.WorkingTime | None) -> schedules.Schedule:
    return schedules.parse(json.loads(text), hash_id=hash_id, calendar=calendar)


@lru_cache(maxsize=1024)
def _working_time(calendar: str | None) -> schedules.WorkingTime | None:
    return None if calendar is None else schedules.read_calendar(json.loads(calendar)).without_names()


@lru_cache(maxsize=4096)
def _catch_up(text: str) -> CatchUp:
    given = {**DEFAULT_ALL, **json.loads(text)}
    window, newest_first = timedelta(seconds=given["window"]), given["order"] == "newest"
    return CatchUp(given["policy"], window, given["max"], given["per_minute"], newest_first)
