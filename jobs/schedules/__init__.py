"""When a job is planned to run: read from the API's JSON, reckoned, put into words.

All of it is pure: no database, and `now` is always somebody else's. The rules on time zones are in
`cron_times`.
"""

from .bad_schedule import BadSchedule
from .calendar_spec import BadCalendar, calendar_as_json, read_calendar
from .jitter import jittered
from .kinds import Cron, Interval, Once, OnDemand, Schedule, due_times, last_before, next_after, upcoming
from .on_calendar import OnCalendar
from .spec import calendar_name, parse
from .words import in_words
from .working_time import ALWAYS_OPEN, WorkingTime

__all__ = [
    "ALWAYS_OPEN",
    "BadCalendar",
    "BadSchedule",
    "Cron",
    "Interval",
    "OnCalendar",
    "OnDemand",
    "Once",
    "Schedule",
    "WorkingTime",
    "calendar_as_json",
    "calendar_name",
    "due_times",
    "in_words",
    "jittered",
    "last_before",
    "next_after",
    "parse",
    "read_calendar",
    "upcoming",
]
