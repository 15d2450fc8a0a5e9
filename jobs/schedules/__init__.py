"""Read schedules from the API's JSON, compute their planned times and describe them.

All of it is pure: it reads no database, and `now` is a parameter. `cron.occurrences` has the rules on time zones.
"""

from jobs.schedules.calendars.business_hours import ALWAYS_OPEN, WorkingTime
from jobs.schedules.calendars.parsing import calendar_as_json, read_calendar
from jobs.schedules.calendars.schedule import OnCalendar

from .description import describe
from .errors import BadSchedule
from .jitter import jittered
from .kinds import Cron, Interval, Once, OnDemand, Schedule, due_times, last_before, next_after, upcoming
from .parsing import calendar_name, parse
