"""Give a declared task the methods that request a run of it: `task.run_now(…)`, `task.schedule(at=…)`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.local import PromiseProxy, Proxy

from ..declarations.checks import instant
from ..ids import whole_milliseconds
from .interface import NewRunRequest

if TYPE_CHECKING:
    from celery import Celery

MAX_KEY = 200
MAX_PREFIX = 70
# A one-time job has one run at one instant, so these fields do not apply.
PLANNING = ("schedule", "overlap", "catch_up")


def run_at_once(declared: Mapping[str, Any], key: str, given: Mapping[str, Any]) -> NewRunRequest:
    return NewRunRequest(checked_key(key), {"name": declared["name"], "input": given})


def run_once(
    declared: Mapping[str, Any], key: str, at: datetime | str, given: Mapping[str, Any]
) -> NewRunRequest:
    """Request a one-time job with all that was declared for the task, except when it runs."""
    planned = whole_milliseconds(datetime.fromisoformat(instant(at)))
    target = {**declared["target"], **given}
    spec = {word: value for word, value in declared.items() if word not in PLANNING}
    # Named by its key, so that the same request cannot create the job twice.
    mark = hashlib.blake2b(checked_key(key).encode(), digest_size=6).hexdigest()
    name = f"{declared['name'][:MAX_PREFIX]} at {planned:%Y-%m-%d %H:%M:%S} {mark}"
    return NewRunRequest(key, {**spec, "name": name, "target": target}, planned)


def checked_key(key: str) -> str:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        raise ValueError(f"key={key!r} is not usable: 1 to {MAX_KEY} printable characters")
    return key


def declaration_of(
    declared: Sequence[Mapping[str, Any]], task: str, job: str | None
) -> Mapping[str, Any] | None:
    """Return the task's declaration; None: it is not declared."""
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
    """Give them when the task exists: evaluating it earlier would configure the app before its settings are read."""
    # isinstance would read the class through the proxy, and with it evaluate the task.
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
    """Give them to a shared task, which is another object in each app and shows itself as the current app's."""
    own = app.tasks.get(task.name)
    if own is not None:
        _give(methods, own, instead=True)
    _give(methods, task)


def _give(methods: Mapping[str, Callable[..., Any]], task: Any, *, instead: bool = False) -> None:
    """With `instead`, replace methods that another app's keeper has given."""
    for name, method in methods.items():
        # A method of that name of the task's own class stays.
        if not hasattr(task, name) or (instead and isinstance(vars(task).get(name), partial)):
            setattr(task, name, partial(method, task))
