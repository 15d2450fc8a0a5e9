"""Runs of an app whose tasks are eager (`task_always_eager`), as in a code base's tests: at once, where they are asked
for, and of no platform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from celery import states

from .errors import UnknownToPlatform
from .execute import storable
from .link import Answered, Asked, RequestedRun
from .masking import Masker

if TYPE_CHECKING:
    from celery import Celery

MOST_KEPT = 1000


class EagerRuns:
    def __init__(self, app: Celery) -> None:
        self._app = app
        self._ended: dict[UUID, Answered] = {}

    def run(self, asked: Asked, declared: Mapping[str, Any]) -> RequestedRun:
        """What the task raises is raised where `task_eager_propagates` says so, as by `.delay()`."""
        target = {**declared["target"], **asked.spec.get("target", {})}
        given, run_id = asked.spec.get("input", {}), uuid4()
        ended = self._app.tasks[target["task"]].apply(
            given.get("args", target["args"]),
            {**target["kwargs"], **given.get("kwargs", {})},
            task_id=str(run_id),
        )
        well = ended.state in (states.SUCCESS, states.IGNORED)
        answered = Answered(
            id=uuid4(),
            state="succeeded" if well else "dead",
            key=asked.key,
            at=asked.at,
            run_id=run_id,
            result=storable(ended.result, Masker()) if ended.state == states.SUCCESS else None,
        )
        self._ended[answered.id] = answered
        if len(self._ended) > MOST_KEPT:
            del self._ended[next(iter(self._ended))]
        return self.requested(answered.id)

    def requested(self, request_id: UUID) -> RequestedRun:
        if request_id not in self._ended:
            raise UnknownToPlatform(
                f"there is no request {request_id} of this process, whose tasks are eager"
            )
        return EndedRun(self._ended[request_id])


class EndedRun(RequestedRun):
    """It has its outcome; there is nothing to ask again."""

    def __init__(self, answered: Answered) -> None:
        super().__init__(_no_link, answered)

    def refresh(self) -> RequestedRun:
        return self

    def cancel(self) -> RequestedRun:
        return self


def _no_link() -> Any:
    raise LookupError("A run whose outcome is known asks nobody")
