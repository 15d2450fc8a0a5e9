"""Read a cron expression into a Pattern, or say which character of which field is wrong."""

import dataclasses
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NoReturn

from jobs.schedules.errors import BadSchedule

from .pattern import Days, Pattern

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEK_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_LENGTH = 1000
ORDINALS = ("1st", "2nd", "3rd", "4th", "5th", "6th")
FIELDS_HINT = "minute hour day-of-month month day-of-week, and before them the second if there are six"
HASHES = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")
HASHED = re.compile(r"H(?:\(([0-9]+)-([0-9]+)\))?")


@dataclass(frozen=True)
class CronField:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    extra_high: int | None = None  # 7 is Sunday as well
    hashed_high: int | None = None  # H keeps to the days every month has

    @property
    def top(self) -> int:
        return self.high if self.extra_high is None else self.extra_high

    def hint(self) -> str:
        names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.low} to {self.top}{names}, and *, lists (1,2), ranges (1-3), steps (*/2), H"


SECOND = CronField("second", 0, 59)
MINUTE = CronField("minute", 0, 59)
HOUR = CronField("hour", 0, 23)
MONTH_DAY = CronField("day-of-month", 1, 31, hashed_high=28)
MONTH = CronField("month", 1, 12, MONTHS)
WEEK_DAY = CronField("day-of-week", 0, 6, WEEK_DAYS, extra_high=7)
FIELDS = (SECOND, MINUTE, HOUR, MONTH_DAY, MONTH, WEEK_DAY)


@dataclass
class FieldText:
    """Hold one field as written, and what has been read of it so far."""

    field: CronField
    place: str
    text: str
    at: int  # of its first character in the expression, from 1
    hash_id: str
    values: set[int] = dataclasses.field(default_factory=set)
    last_day: bool = False
    nth_week_days: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    last_week_days: set[int] = dataclasses.field(default_factory=set)

    def wrong(self, at: int, what: str, hint: str | None = None) -> NoReturn:
        detail = f"{self.field.name} field ({self.place}): {what}, at character {at}"
        raise BadSchedule("schedule.cron", detail, hint or self.field.hint())

    def read(self) -> "FieldText":
        at = self.at
        for part in self.text.split(","):
            self._read_part(part.upper(), at)
            at += len(part) + 1
        return self

    def _read_part(self, part: str, at: int) -> None:
        if not part:
            self.wrong(at, "nothing between the commas" if "," in self.text else "nothing there")
        if "?" in part:
            hint = "write * for any day; days of week count from 0 = SUN"
            self.wrong(at + part.index("?"), "? is not known", hint)
        if self._read_special(part, at):
            return
        base, slash, step_text = part.partition("/")
        step = self._step(step_text, at + len(base) + 1) if slash else 1
        found = self._base(base, at, step, bool(slash))
        self.values.update(v % 7 if self.field is WEEK_DAY else v for v in found)

    def _read_special(self, part: str, at: int) -> bool:
        if self.field is MONTH_DAY and part == "L":
            self.last_day = True
        elif self.field is WEEK_DAY and "#" in part:
            day, _, nth = part.partition("#")
            if nth not in {"1", "2", "3", "4", "5"}:
                what = f"{nth or 'nothing'} after # is not 1 to 5"
                self.wrong(at + len(day) + 1, what, "5#2 is the second Friday")
            self.nth_week_days.add((self._number(day, at) % 7, int(nth)))
        elif self.field is WEEK_DAY and len(part) > 1 and (part[0] == "L" or part[-1] == "L"):
            day, day_at = (part[1:], at + 1) if part[0] == "L" else (part[:-1], at)
            self.last_week_days.add(self._number(day, day_at) % 7)
        else:
            return False
        return True

    def _base(self, base: str, at: int, step: int, stepped: bool) -> range:
        if base == "*":
            return range(self.field.low, self.field.high + 1, step)
        if base.startswith("H"):
            return self._hashed(base, at, step, stepped)
        if "-" in base:
            first, _, last = base.partition("-")
            return self._range(first, last, at, step)
        start = self._number(base, at)
        return range(start, (max(start, self.field.high) if stepped else start) + 1, step)

    def _range(self, first_text: str, last_text: str, at: int, step: int) -> range:
        first = self._number(first_text, at)
        last_at = at + len(first_text) + 1
        last = self._number(last_text, last_at)
        if last_text == "SUN" and first > 0:
            last = 7
        if last < first:
            hint = f"a range goes upwards: {first_text}-{self.field.high},{self.field.low}-{last_text}"
            self.wrong(at, f"{first_text}-{last_text} goes backwards", hint)
        return range(first, last + 1, step)

    def _hashed(self, base: str, at: int, step: int, stepped: bool) -> range:
        match = HASHED.fullmatch(base)
        if not match:
            self.wrong(at, f"{base} is not known", "H, H/15, H(0-29) or H(0-29)/10")
        low, high = self.field.low, self.field.hashed_high or self.field.high
        if match[1]:
            low, high = self._number(match[1], at + 2), self._number(match[2], at + 3 + len(match[1]))
            if high < low:
                self.wrong(at + 2, f"{low}-{high} goes backwards", "H(0-29)")
        choices = min(step, high - low + 1) if stepped else high - low + 1
        start = low + stable_hash(f"{self.field.name}:{self.hash_id}") % choices
        return range(start, (high if stepped else start) + 1, step)

    def _step(self, text: str, at: int) -> int:
        hint = f"a step is 1 to {self.field.high}, as in */2; H, * or a range stands before it"
        if not re.fullmatch(r"[0-9]+", text):
            self.wrong(at, f"{text or 'nothing'} is not a step", hint)
        step = int(text[:9])
        if step < 1:
            self.wrong(at, "a step of 0 never moves", hint)
        if step > self.field.high:
            self.wrong(at, f"a step of {text} is above {self.field.high}", hint)
        return step

    def _hint_for(self, text: str) -> str | None:
        if text.startswith("R"):
            return "random times would differ from one scheduler to the next; H spreads jobs and stays put"
        if self.field is WEEK_DAY and text == "L":
            return "the last of which day? 5L is the last Friday of the month"
        if "W" in text and self.field is MONTH_DAY:
            return "nearest weekdays are not known; L is the last day of the month"
        return None

    def _number(self, text: str, at: int) -> int:
        if text in self.field.names:
            return self.field.names.index(text) + self.field.low
        if not re.fullmatch(r"[0-9]+", text):
            self.wrong(at, f"{text} is not known" if text else "a number is missing", self._hint_for(text))
        value = int(text[:9])
        if value < self.field.low:
            self.wrong(at, f"{text} is below {self.field.low}")
        if value > self.field.top:
            self.wrong(at, f"{text} is above {self.field.top}")
        return value


def stable_hash(text: str) -> int:
    """Hash a text to the same number in every process and Python version."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def compile_expression(expression: str, hash_id: str) -> Pattern:
    """Read an expression, or raise BadSchedule. Only an expression with an H depends on the hash id."""
    return _compile(expression, hash_id if HASHES.search(expression) else "")


@lru_cache(maxsize=16384)
def _compile(expression: str, hash_id: str) -> Pattern:
    seconds, minutes, hours, month_days, months, week_days = _fields(expression, hash_id)
    pattern = Pattern(
        seconds=tuple(sorted(seconds.values)),
        minutes=tuple(sorted(minutes.values)),
        hours=tuple(sorted(hours.values)),
        months=tuple(sorted(months.values)),
        days=Days(
            month_days=frozenset(month_days.values),
            last_day=month_days.last_day,
            week_days=frozenset(week_days.values),
            nth_week_days=frozenset(week_days.nth_week_days),
            last_week_days=frozenset(week_days.last_week_days),
            both=month_days.text.startswith("*") or week_days.text.startswith("*"),
        ),
        interval_like=re.fullmatch(r"\*(/[0-9]+)?", hours.text) is not None,
    )
    if not pattern.can_fire():
        detail = f"no date ever matches {expression.strip()}"
        raise BadSchedule("schedule.cron", detail, "the days of month must exist in the months named")
    return pattern


def _fields(expression: str, hash_id: str) -> list[FieldText]:
    expression = _expand_macro(expression)
    if len(expression) > MAX_LENGTH:
        detail = f"{len(expression)} characters are more than {MAX_LENGTH}"
        raise BadSchedule("schedule.cron", detail, FIELDS_HINT)
    words = [(match[0], match.start() + 1) for match in re.finditer(r"[^ \t]+", expression)]
    if len(words) == 5:
        return [FieldText(SECOND, "", "0", 1, hash_id).read(), *_read(words, FIELDS[1:], hash_id)]
    if len(words) == 6:
        return _read(words, FIELDS, hash_id)
    at = words[6][1] if len(words) > 6 else len(expression) + 1
    detail = f"5 or 6 fields are expected, {len(words)} found, at character {at}"
    raise BadSchedule("schedule.cron", detail, FIELDS_HINT)


def _read(words: list[tuple[str, int]], fields: tuple[CronField, ...], hash_id: str) -> list[FieldText]:
    placed = zip(fields, ORDINALS, words, strict=False)
    return [FieldText(field, place, text, at, hash_id).read() for field, place, (text, at) in placed]


def _expand_macro(expression: str) -> str:
    name = expression.strip().lower()
    if not name.startswith("@"):
        return expression
    if name in MACROS:
        return MACROS[name]
    why = "there is no start-up to run at" if name == "@reboot" else "it is not known"
    at = expression.index("@") + 1
    raise BadSchedule("schedule.cron", f"{name[:30]}: {why}, at character {at}", ", ".join(MACROS))
