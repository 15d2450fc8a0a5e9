"""When a job is planned to run: read from the API's JSON, reckoned, put into words.

All of it is pure: no database, and `now` is always somebody else's. The rules on time zones are in
`cron_times`.
"""

from .bad_schedule import BadSchedule
from .kinds import Cron, Interval, Once, OnDemand, Schedule, due_times, last_before, next_after, upcoming
from .spec import parse
from .words import in_words

__all__ = [
    "BadSchedule",
    "Cron",
    "Interval",
    "OnDemand",
    "Once",
    "Schedule",
    "due_times",
    "in_words",
    "last_before",
    "next_after",
    "parse",
    "upcoming",
]
