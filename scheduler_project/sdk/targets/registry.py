"""Executors by kind of target. An executor gets the call of a target and returns a result or raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from celery import Celery

from ..ledger import callback_token
from ..ledger.interface import Claim
from ..logs.capture import AttemptLog
from ..outcomes import BadArguments, UnknownTarget
from ..shared.owned_slot import OwnedSlot

MAX_TASK_NAME = 200


@dataclass(eq=False)
class TargetFailed(Exception):
    """A failure that is no exception: an exit code, a status."""

    error_class: str
    error_type: str
    line: str
    exit_code: int | None = None
    retry_after: float | None = None

    def __str__(self) -> str:
        return self.line


class RetryAfter(Exception):
    """The target requests another attempt, at a time of its choice, maybe with another input."""

    def __init__(
        self, cause: BaseException, delay: float | None, next_input: dict[str, Any] | None = None
    ) -> None:
        super().__init__(str(cause))
        self.cause, self.delay, self.next_input = cause, delay, next_input


class WaitForCallback(Exception):
    """The target has accepted the run and reports its outcome later, with the attempt's callback token."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the outcome follows within {seconds:g} s")
        self.seconds = seconds


class TargetCall:
    """One attempt of a run, as an executor sees it."""

    def __init__(self, claim: Claim, owned_slot: OwnedSlot, log: AttemptLog, name: str) -> None:
        self.claim = claim
        self.log = log
        self.worker_name = name
        # Of a body that has one and succeeds; a failure names its own.
        self.exit_code: int | None = None
        self._owned_slot = owned_slot

    @property
    def run_id(self) -> UUID:
        return self.claim.run_id

    @property
    def target(self) -> dict[str, Any]:
        return self.claim.target

    @property
    def input(self) -> dict[str, Any]:
        return self.claim.input or {}

    def given(self, *known: str) -> dict[str, Any]:
        """Return the run's input, of which the executor uses these parts; refuse what it would ignore."""
        if unknown := sorted(set(self.input) - set(known)):
            raise BadArguments(f"The input has no part {unknown[0][:60]!r}: allowed are {', '.join(known)}")
        return self.input

    @property
    def callback_token(self) -> str:
        return callback_token.token_of(self.claim.token, self.claim.run_id, self.claim.claim_seq)

    def body_is(self, group: int, leader_started: int) -> None:
        """Name the process group that is the body: time limits and cancels stop it instead of this process."""
        self._owned_slot.set_body(group, leader_started)


Executor = Callable[[TargetCall], Any]


class Targets:
    def __init__(self, app: Celery) -> None:
        self._app = app
        self._executors: dict[str, Executor] = {}

    def add(self, kind: str, executor: Executor) -> Executor:
        self._executors[kind] = executor
        return executor

    def executor(self, kind: str) -> Executor:
        if kind not in self._executors:
            raise UnknownTarget(f"This worker runs no targets of the kind {kind!r}")
        return self._executors[kind]

    def known(self) -> list[str]:
        """List the target keys that this worker may claim."""
        kinds = [f"kind:{kind}" for kind in self._executors if kind != "celery"]
        return sorted(name for name in self._app.tasks if may_be_target(name)) + sorted(kinds)


def may_be_target(task_name: str) -> bool:
    """Leave out names that are too long for the ledger, which would keep the worker from registering."""
    return len(task_name) <= MAX_TASK_NAME and not task_name.startswith(("celery.", "beatkeeper."))
