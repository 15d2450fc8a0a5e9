"""From a declared task to a run of it: `task.run_now(…)`, `task.schedule(at=…)`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.local import PromiseProxy, Proxy

from .declarations import instant
from .ids import whole_milliseconds
from .link import Asked, as_input

if TYPE_CHECKING:
    from celery import Celery

LONGEST_KEY = 200
LONGEST_BEGINNING = 70
# Of a one-time job these say nothing: it has one run, at one instant.
PLANNING = ("schedule", "overlap", "catch_up")


def run_at_once(
    declared: Mapping[str, Any], key: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Asked:
    return Asked(checked_key(key), {"name": declared["name"], "input": as_input(args, kwargs)})


def run_once(
    declared: Mapping[str, Any],
    key: str,
    at: datetime | str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> Asked:
    """A one-time job with all that was declared of the task, but for when it runs."""
    planned = whole_milliseconds(datetime.fromisoformat(instant(at)))
    target = {**declared["target"], **as_input(args, kwargs)}
    spec = {word: value for word, value in declared.items() if word not in PLANNING}
    return Asked(
        checked_key(key),
        {**spec, "name": one_time_name(declared["name"], planned, key), "target": target},
        planned,
    )


def one_time_name(name: str, at: datetime, key: str) -> str:
    """The same for the same key, so that it cannot be made twice."""
    mark = hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
    return f"{name[:LONGEST_BEGINNING]} at {at:%Y-%m-%d %H:%M:%S} {mark}"


def checked_key(key: str) -> str:
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
        raise ValueError(f"key={key!r} is not usable: 1 to {LONGEST_KEY} printable characters")
    return key


def the_one_of(declared: Sequence[Mapping[str, Any]], task: str, job: str | None) -> Mapping[str, Any] | None:
    """None: nobody has declared the task."""
    found = [one for one in declared if one["target"]["task"] == task]
    if job is not None:
        found = [one for one in found if one["name"] == job]
        if not found:
            raise ValueError(f"The task {task} is not declared as the job {job!r}")
    if len(found) > 1:
        names = ", ".join(repr(one["name"]) for one in found)
        raise ValueError(f"The task {task} is declared as {names}: say which with job=…")
    return found[0] if found else None


def give_methods(app: Celery, task: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
    """When the task exists: looking at it earlier would configure the app before its settings are read."""
    # isinstance would ask the proxy for its class, and with it for the task.
    kind = type(task)
    if issubclass(kind, PromiseProxy):
        task.__then__(_give, methods, task)
    elif issubclass(kind, Proxy) and not getattr(app, "finalized", True):
        app.on_after_finalize.connect(lambda **_options: _give_shared(app, methods, task), weak=False)
    elif issubclass(kind, Proxy):
        _give_shared(app, methods, task)
    else:
        _give(methods, task)


def _give_shared(app: Celery, methods: Mapping[str, Callable[..., Any]], task: Any) -> None:
    """A shared task is another in each app, and shows itself as that of the current one, which need not be ours."""
    own = app.tasks.get(task.name)
    if own is not None:
        _give(methods, own, instead=True)
    _give(methods, task)


def _give(methods: Mapping[str, Callable[..., Any]], task: Any, *, instead: bool = False) -> None:
    """With `instead` also where another app's keeper has given its own before."""
    for name, method in methods.items():
        # What the task's own class calls so stays what it is.
        if not hasattr(task, name) or (instead and isinstance(vars(task).get(name), partial)):
            setattr(task, name, partial(method, task))
