"""What should have happened, by arithmetic of its own: which times each job planned, as it was changed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Stretch:
    """Planned times of one schedule in (after, until]; it goes on while there is no `until`."""

    schedule: dict[str, Any]
    anchor: datetime
    after: datetime
    until: datetime | None = None

    def times(self, now: datetime) -> Iterator[datetime]:
        step, first = self._step()
        end = now if self.until is None else min(now, self.until)
        passed = (self.after - first) // step
        at = first + max(0, passed) * step
        while at <= end:
            if at > self.after:
                yield at
            at += step

    def _step(self) -> tuple[timedelta, datetime]:
        """Count an interval from its anchor, `*/n` minutes from the hour; n divides 60."""
        if "every" in self.schedule:
            step = timedelta(seconds=self.schedule["every"])
            return step, self.anchor + step
        step = timedelta(minutes=int(self.schedule["cron"].split()[0].removeprefix("*/")))
        hour = self.after.replace(minute=0, second=0, microsecond=0)
        return step, hour


@dataclass
class ModelJob:
    stretches: list[Stretch] = field(default_factory=list)
    # Not planned while it lasts; told when it ends.
    paused: bool = False
    # Paused by the scheduler, which could not plan it: what an edit or a pause then finds is told.
    unrunnable: bool = False
    ended: bool = False

    @property
    def present(self) -> Stretch:
        return self.stretches[-1]

    def begin(self, schedule: dict[str, Any], now: datetime) -> None:
        self.stretches.append(Stretch(schedule, now, now))

    def end(self, now: datetime) -> None:
        last = self.stretches.pop()
        self.stretches.append(Stretch(last.schedule, last.anchor, last.after, now))

    def go_on(self, now: datetime) -> None:
        """After a pause: its times are owed an outcome from now on, as those that follow are."""
        last = self.present
        assert last.until is not None
        self.stretches.append(Stretch(last.schedule, last.anchor, last.until))

    def expected(self, now: datetime) -> set[datetime]:
        return {at for stretch in self.stretches for at in stretch.times(now)}
