"""Runs of an app whose tasks are eager (`task_always_eager`), as in a code base's tests.

They run at once, in the process that requests them, and no platform knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

from celery import Celery, states

from ..errors import UnknownToPlatform
from ..host.interface import NewRunRequest, RequestStatus
from ..host.requested_run import RequestedRun
from ..secret_values.masking import Masker
from .attempt import storable_result

MAX_KEPT = 1000


class EagerRuns:
    def __init__(self, app: Celery) -> None:
        self._app = app
        self._ended: dict[UUID, RequestStatus] = {}

    def run(self, new: NewRunRequest, declared: Mapping[str, Any]) -> RequestedRun:
        """Run the task; an exception propagates where `task_eager_propagates` says so, as from `.delay()`."""
        target = {**declared["target"], **new.spec.get("target", {})}
        given, run_id = new.spec.get("input", {}), uuid4()
        args, kwargs = given.get("args", target["args"]), {**target["kwargs"], **given.get("kwargs", {})}
        ended = self._app.tasks[target["task"]].apply(args, kwargs, task_id=str(run_id))
        succeeded = ended.state in (states.SUCCESS, states.IGNORED)
        status = RequestStatus(
            id=uuid4(),
            state="succeeded" if succeeded else "dead",
            key=new.key,
            at=new.at,
            run_id=run_id,
            result=storable_result(ended.result, Masker()) if ended.state == states.SUCCESS else None,
        )
        self._ended[status.id] = status
        if len(self._ended) > MAX_KEPT:
            del self._ended[next(iter(self._ended))]
        return self.requested(status.id)

    def requested(self, request_id: UUID) -> RequestedRun:
        if request_id not in self._ended:
            raise UnknownToPlatform(
                f"there is no request {request_id} of this process, whose tasks are eager"
            )
        return EndedRun(_no_link, self._ended[request_id])


class EndedRun(RequestedRun):
    """A run that has its outcome, so that there is nothing to refresh or cancel."""

    def refresh(self) -> RequestedRun:
        return self

    cancel = refresh


def _no_link() -> Any:
    raise LookupError("An eager run needs no platform")
