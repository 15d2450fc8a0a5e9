"""Calls a registered Celery task as a worker would, by its own name and with its own request.

Celery's tracer does it: signals, `bind`, `self.request`, `autoretry_for`, custom Task classes, Django's
fix-up and Sentry see an ordinary execution whose id is the run and whose retries are the attempts before.
Only the message that `self.retry` sends is left out: when the next attempt comes the ledger decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.app import trace
from celery.exceptions import Ignore, Reject, Retry

from .outcomes import BadArguments, PermanentError, UnknownTarget
from .targets import Attempt, RetryAfter, may_be_target

if TYPE_CHECKING:
    from celery import Celery


class CeleryTarget:
    def __init__(self, app: Celery) -> None:
        self._app = app
        self._tracers: dict[str, Any] = {}

    def __call__(self, attempt: Attempt) -> Any:
        task = self._task(attempt.target["task"])
        args, kwargs = arguments(attempt)
        check_arguments(task, args, kwargs)
        tracer = self._tracer(task, attempt.worker_name)
        request = request_of(attempt, args, kwargs)
        with retries_unsent(task):
            result, info, *_ = tracer(str(attempt.run_id), args, kwargs, request)
        if info is None:
            return result
        return self._ended(info.state, info.retval)

    def _task(self, name: str) -> Any:
        if not may_be_target(name):
            raise PermanentError(f"The task {name!r} is not for jobs")
        try:
            return self._app.tasks[name]
        except KeyError:
            raise UnknownTarget(f"This worker does not know the task {name!r}") from None

    def _tracer(self, task: Any, hostname: str) -> Any:
        if task.name not in self._tracers:
            # Looked up on the module: Sentry and others put their own in its place.
            self._tracers[task.name] = trace.build_tracer(
                task.name, task, self._app.loader, hostname, app=self._app
            )
        return self._tracers[task.name]

    def _ended(self, state: str, value: Any) -> Any:
        if isinstance(value, Retry):
            raise RetryAfter(value.exc if isinstance(value.exc, BaseException) else value, delay_of(value))
        if isinstance(value, Reject):
            # Reject(reason, requeue)
            reason, requeue = (*value.args, None, None)[:2]
            if requeue:
                raise RetryAfter(value, None)
            raise PermanentError(f"The task rejected the run: {reason}")
        if isinstance(value, Ignore):
            return None
        if isinstance(value, BaseException):
            raise value
        raise RuntimeError(f"The task ended as {state}")


def arguments(attempt: Attempt) -> tuple[list[Any], dict[str, Any]]:
    """The job's own, with what this run was given on top."""
    target, given = attempt.target, attempt.input
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


def request_of(attempt: Attempt, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    claim = attempt.claim
    run = str(claim.run_id)
    headers = {
        "beatkeeper_run": run,
        "beatkeeper_job": claim.job_name,
        "beatkeeper_attempt": claim.attempt,
        "beatkeeper_planned_at": claim.planned_at.isoformat(),
    }
    if claim.traceparent:
        headers["traceparent"] = claim.traceparent
    return {
        "id": run,
        "root_id": run,
        "correlation_id": run,
        "task": claim.target["task"],
        "args": args,
        "kwargs": kwargs,
        "retries": claim.attempt - 1,
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
def retries_unsent(task: Any) -> Iterator[None]:
    """`self.retry` builds a signature, publishes it and raises Retry. This signature is published nowhere."""
    original = task.signature_from_request

    def unsent(*args: Any, **options: Any) -> Any:
        signature = original(*args, **options)
        signature.apply_async = lambda *_args, **_options: None
        return signature

    task.signature_from_request = unsent
    try:
        yield
    finally:
        del task.signature_from_request


def delay_of(retry: Retry) -> float | None:
    if retry.when is None:
        return None
    if isinstance(retry.when, datetime):
        when = retry.when if retry.when.tzinfo else retry.when.replace(tzinfo=timezone.utc)
        return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())
    return float(retry.when)
