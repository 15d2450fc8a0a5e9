"""Call a registered Celery task as a worker would, by its own name and with its own request.

Celery's tracer does it: signals, `bind`, `self.request`, `autoretry_for`, custom Task classes, Django's fix-up and
Sentry see an ordinary execution whose id is the run and whose retries are the attempts before. Three things differ:
- `self.retry` sends no message: the ledger schedules the next attempt by the policy of the job. The task's
  `max_retries` is set to what the policy allows, so that the task gives up when the platform does.
- `self.replace` sends none either: another task would have the run's id, and its outcome would never be reported.
- The result backend stores nothing: the arguments of a run and what it raised may hold secrets.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from celery import Celery, states
from celery.app import trace
from celery.app.task import Task
from celery.exceptions import Ignore, Reject, Retry

from ..outcomes import BadArguments, CannotReplace, PermanentError, UnknownTarget
from ..retries import DEFAULT_RETRY
from .registry import RetryAfter, TargetCall, may_be_target

MAX_INPUT_BYTES = 64 * 1024
# Marks the input of a run whose task has changed its own arguments.
WHOLE = "beatkeeper_whole"


class ReplaceRequested(Ignore):
    """The task called `self.replace`. As an Ignore it is no error to `autoretry_for` and hooks of failures."""


class PolicyDelay(int):
    """The `default_retry_delay` of a task that sets none of its own."""


class UnstoredErrors(trace.TraceInfo):
    """Trace without storing errors in the result backend.

    Celery before 5.6 reads whether to store them from the task and not from the request, and in every release the
    setting `task_store_errors_even_if_ignored` overrides both.
    """

    def handle_error_state(self, task: Any, req: Any, eager: bool = False, call_errbacks: bool = True) -> Any:
        handle = self.handle_retry if self.state == states.RETRY else self.handle_failure
        return handle(task, req, store_errors=False, call_errbacks=call_errbacks)


class CeleryTarget:
    def __init__(self, app: Celery) -> None:
        self._app = app
        self._tracers: dict[str, Any] = {}

    def __call__(self, attempt: TargetCall) -> Any:
        task = self._task(attempt.target["task"])
        args, kwargs = arguments(attempt)
        check_arguments(task, args, kwargs)
        tracer = self._tracer(task, attempt.worker_name)
        request = request_of(attempt, args, kwargs)
        with prepared(task, attempt.claim.retry):
            result, info, *_ = tracer(str(attempt.run_id), args, kwargs, request)
        if info is None:
            return result
        return self._ended(info.state, info.retval, (args, kwargs))

    def _task(self, name: str) -> Any:
        if not may_be_target(name):
            raise PermanentError(f"The task {name!r} is not for jobs")
        if name not in self._app.tasks:
            raise UnknownTarget(f"This worker does not know the task {name!r}")
        return self._app.tasks[name]

    def _tracer(self, task: Any, hostname: str) -> Any:
        if task.name not in self._tracers:
            # Before 5.6 a tracer reads from its task, not from the request, whether to store the start.
            with with_attributes(task, track_started=False):
                # Looked up on the module: Sentry and others patch it there.
                self._tracers[task.name] = trace.build_tracer(
                    task.name, task, self._app.loader, hostname, Info=UnstoredErrors, app=self._app
                )
        return self._tracers[task.name]

    def _ended(self, state: str, value: Any, given: tuple[list[Any], dict[str, Any]]) -> Any:
        if isinstance(value, Retry):
            cause = value.exc if isinstance(value.exc, BaseException) else value
            raise RetryAfter(cause, delay_of(value), next_input(value, given))
        if isinstance(value, Reject):
            # Reject(reason, requeue)
            reason, requeue = (*value.args, None, None)[:2]
            if requeue:
                raise RetryAfter(value, None)
            raise PermanentError(f"The task rejected the run: {reason}")
        if isinstance(value, ReplaceRequested):
            raise CannotReplace(
                "A run cannot replace itself: call the other task with .delay(), "
                "or let the chain be what the job's task sends"
            )
        if isinstance(value, Ignore):
            return None
        if isinstance(value, BaseException):
            raise value
        raise RuntimeError(f"The task ended as {state}")


def arguments(attempt: TargetCall) -> tuple[list[Any], dict[str, Any]]:
    """Merge the run's input into the job's arguments; the arguments of `self.retry` replace both."""
    target, given = attempt.target, attempt.input
    if given.get(WHOLE):
        return list(given["args"]), dict(given["kwargs"])
    given = attempt.given("args", "kwargs")
    args = given.get("args", target.get("args") or [])
    return list(args), {**(target.get("kwargs") or {}), **(given.get("kwargs") or {})}


def check_arguments(task: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    check = getattr(task, "__header__", None)
    if check is None or not task.typing:
        return
    try:
        check(*args, **kwargs)
    except TypeError as error:
        raise BadArguments(str(error)) from None


def request_of(attempt: TargetCall, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    claim = attempt.claim
    run = str(claim.run_id)
    headers = {
        "beatkeeper_run": run,
        "beatkeeper_job": claim.job_name,
        "beatkeeper_attempt": claim.attempt,
        "beatkeeper_claim_seq": claim.claim_seq,
        "beatkeeper_planned_at": claim.planned_at.isoformat(),
    }
    if claim.traceparent:
        headers["traceparent"] = claim.traceparent
    return {
        **dict.fromkeys(("id", "root_id", "correlation_id"), run),
        "task": claim.target["task"],
        "args": args,
        "kwargs": kwargs,
        # Attempts that ended with their worker do not count as the task's retries.
        "retries": claim.attempt - 1 - claim.losses,
        "timelimit": [claim.timeout, None],
        "hostname": attempt.worker_name,
        "origin": "beatkeeper",
        "delivery_info": {"exchange": "", "routing_key": "", "priority": None, "redelivered": False},
        "headers": headers,
        "ignore_result": True,
        "utc": True,
        **headers,
    }


@contextlib.contextmanager
def with_attributes(task: Any, **changed: Any) -> Iterator[None]:
    """Set attributes of the task and restore them afterwards; those of its class only become visible again."""
    own = {name: vars(task)[name] for name in changed if name in vars(task)}
    vars(task).update(changed)
    try:
        yield
    finally:
        for name in changed:
            vars(task).pop(name, None)
        vars(task).update(own)


@contextlib.contextmanager
def prepared(task: Any, retry: Mapping[str, Any]) -> Iterator[None]:
    """Keep the task from publishing anything under the id of the run, and put it under the policy of the job.

    `self.retry` publishes the signature that it builds before it raises Retry, `self.replace` another task. The delay
    of the policy applies where the task has set none of its own.
    """
    original = task.signature_from_request

    def unsent(*args: Any, **options: Any) -> Any:
        signature = original(*args, **options)
        signature.apply_async = lambda *_args, **_options: None
        return signature

    def refuse(*_args: Any, **_options: Any) -> Any:
        raise ReplaceRequested

    most = int({**DEFAULT_RETRY, **(retry or {})}["max_attempts"]) - 1
    # Every way of replacing calls `on_replace`, also that of a task's own class.
    changed = {
        "signature_from_request": unsent,
        "replace": refuse,
        "on_replace": refuse,
        "max_retries": most,
    }
    if task.default_retry_delay == Task.default_retry_delay:
        changed["default_retry_delay"] = PolicyDelay(Task.default_retry_delay)
    try:
        with with_attributes(task, **changed):
            yield
    finally:
        # A limit given to one call of `self.retry` applies to that call alone.
        vars(task).pop("override_max_retries", None)


def next_input(retry: Retry, given: tuple[list[Any], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the arguments that `self.retry` was given; None: those of this attempt."""
    signature = getattr(retry, "sig", None)
    if signature is None:
        return None
    args, kwargs = list(signature.args or ()), dict(signature.kwargs or {})
    if (args, kwargs) == given:
        return None
    found = {"args": args, "kwargs": kwargs, WHOLE: True}
    try:
        size = len(json.dumps(found, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArguments(f"The next attempt cannot be given what self.retry was given: {error}") from None
    if size > MAX_INPUT_BYTES:
        raise BadArguments(
            f"self.retry was given {size} bytes of arguments; the next attempt takes {MAX_INPUT_BYTES} at most"
        )
    return found


def delay_of(retry: Retry) -> float | None:
    """Return the delay that `self.retry` was given; None: the policy of the job applies."""
    if retry.when is None or isinstance(retry.when, PolicyDelay):
        return None
    if isinstance(retry.when, datetime):
        when = retry.when if retry.when.tzinfo else retry.when.replace(tzinfo=timezone.utc)
        return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())
    return float(retry.when)
