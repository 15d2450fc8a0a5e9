"""The result of catching up: of one step, or of all steps of a pass."""

from dataclasses import dataclass, field
from datetime import datetime

from runs.events import Event, RunsCreated, emit
from runs.states import Trigger


@dataclass(slots=True)
class CaughtUp:
    now: datetime
    runs: int = 0
    # Spans of suspensions that are over, and suspensions that nothing waits for any more.
    settled: int = 0
    ended: int = 0
    counted: int = 0
    # There is more to do at once.
    more: bool = False
    # Reported once the transaction of the step has committed.
    events: list[Event] = field(default_factory=list)

    def add(self, step: "CaughtUp") -> None:
        """Report a step, after its commit, and count what it did."""
        created = [RunsCreated(trigger=Trigger.CATCH_UP, runs=step.runs)] if step.runs else []
        emit(*created, *step.events)
        self.runs += step.runs
        self.settled += step.settled
        self.ended += step.ended
        self.more |= step.more

    def counts(self) -> dict[str, int]:
        return {
            "runs": self.runs,
            "settled_spans": self.settled,
            "ended_suspensions": self.ended,
            "counted_spans": self.counted,
        }
