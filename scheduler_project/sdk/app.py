"""What an existing code base adds: `keeper = Beatkeeper(app)`, and `@keeper.job(...)` over its tasks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from celery.app.task import Task
from celery.local import Proxy

from .celery_target import CeleryTarget
from .declarations import declaration
from .permit_task import register_permit_task
from .runtime import Config, Runtime, default_spool_folder
from .targets import Executor, Targets
from .work import Workbench

if TYPE_CHECKING:
    from celery import Celery

T = TypeVar("T")

FEED_AFTER_OF_FED = 0.0
# Rescue takes a run back a minute after its time limit; by then the guard must be through with it.
LONGEST_GRACE = 30.0
# What each time may be. A body that has to end itself, because the guard does not end it, needs a margin of a second.
RANGES = {
    "DRAIN_SECONDS": (0.0, 3600.0),
    "FEED_AFTER_SECONDS": (0.0, 60.0),
    "GRACE_SECONDS": (0.0, LONGEST_GRACE),
    "FENCE_MARGIN_SECONDS": (1.0, 600.0),
    "LEASE_SECONDS": (2.0, 3600.0),
    "BEAT_SECONDS": (0.2, 600.0),
}


class Beatkeeper:
    """Makes a Celery app's workers take runs from Beatkeeper. No setting of the app is changed."""

    def __init__(
        self,
        app: Celery,
        *,
        ledger: str | None = None,
        database_url: str | None = None,
        pool: str = "default",
        tenant: str | None = None,
        log_store: str | None = None,
        lease_seconds: float | None = None,
        beat_seconds: float | None = None,
        margin_seconds: float | None = None,
        spool_folder: str | Path | None = None,
        region: str = "",
        executors: Mapping[str, Executor] | None = None,
    ) -> None:
        self.app = app
        self.pool = pool
        self.tenant = tenant or ""
        self._ledger_url = ledger or database_url
        self._log_store_url = log_store
        self._spool_folder = Path(spool_folder) if spool_folder else None
        self._lease, self._beat, self._margin = lease_seconds, beat_seconds, margin_seconds
        self._region = region
        self._declared: list[tuple[Any, dict[str, Any]]] = []
        self.targets = Targets(app)
        self.targets.add("celery", CeleryTarget(app))
        for kind, executor in (executors or {}).items():
            self.targets.add(kind, executor)
        self.bench: Workbench | None = None
        register_permit_task(app, self)
        _attach(app, self)

    def job(
        self,
        name: str | None = None,
        *,
        cron: str | None = None,
        every: Any = None,
        at: datetime | str | None = None,
        timezone: str | None = None,
        calendar: str | None = None,
        on_closed: str | None = None,
        jitter: Any = None,
        priority: int | None = None,
        retries: int | None = None,
        timeout: Any = None,
        overlap: str | None = None,
        catch_up: str | Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Callable[[T], T]:
        """Declares a job that runs the task below it. The task is returned as it is."""
        options = {key: value for key, value in locals().items() if key != "self"}
        # Said twice so that a mistake is raised here, where it was made, and not at the worker's start.
        declaration(task="", **options)

        def declare(task: T) -> T:
            # `@app.task` gives a proxy until the app is finalized; looking through it would do that too early.
            if not isinstance(task, (Proxy, Task)):
                raise TypeError("@keeper.job belongs above @app.task: it takes a Celery task")
            self._declared.append((task, options))
            return task

        return declare

    def executor(self, kind: str) -> Callable[[Executor], Executor]:
        """Registers how targets of a kind are run."""

        def add(executor: Executor) -> Executor:
            self.targets.add(kind, executor)
            return executor

        return add

    def known_targets(self) -> list[str]:
        return self.targets.known()

    def declarations(self) -> list[dict[str, Any]]:
        return [declaration(task=task.name, **options) for task, options in self._declared]

    # The worker's side.

    @property
    def ledger_url(self) -> str:
        return self._ledger_url or _environment("DATABASE_URL", "") or os.environ.get("DATABASE_URL", "")

    @property
    def spool_folder(self) -> Path:
        return self._spool_folder or default_spool_folder()

    def config(self, name: str, slots: int, *, fed: bool, app_path: str = "") -> Config:
        lease, beat, margin = self._times()
        return Config(
            name=name,
            host=socket.gethostname(),
            pool=self.pool,
            tenant=self.tenant,
            slots=slots,
            ledger_url=self.ledger_url,
            log_store_url=self._log_store_url or f"file://{self.spool_folder.absolute()}/logs",
            known_targets=self.known_targets(),
            region=self._region,
            lease=lease,
            beat=beat,
            margin=margin,
            grace=_seconds("GRACE_SECONDS", None, 5.0),
            drain=_seconds("DRAIN_SECONDS", None, 20.0),
            feed_after=FEED_AFTER_OF_FED if fed else _seconds("FEED_AFTER_SECONDS", None, 1.0),
            fed=fed,
            app=app_path,
            declarations=self.declarations(),
        )

    def _times(self) -> tuple[float, float, float]:
        lease = _seconds("LEASE_SECONDS", self._lease, 30.0)
        beat = _seconds("BEAT_SECONDS", self._beat, 5.0)
        margin = _seconds("FENCE_MARGIN_SECONDS", self._margin, 5.0)
        if beat + margin >= lease:
            raise ValueError(
                f"a lease of {lease:g} s is not above a beat of {beat:g} s and a margin of {margin:g} s"
            )
        return lease, beat, margin

    def work_in(self, runtime: Runtime) -> Workbench:
        self.bench = Workbench(runtime, self.targets)
        return self.bench


def keeper_of(app: Celery) -> Beatkeeper:
    keeper = getattr(app, "_beatkeeper", None)
    if not isinstance(keeper, Beatkeeper):
        raise LookupError(
            f"The app {app.main!r} has no Beatkeeper: write `keeper = Beatkeeper(app)` beside it"
        )
    return keeper


def _attach(app: Celery, keeper: Beatkeeper) -> None:
    app._beatkeeper = keeper  # type: ignore[attr-defined]
    # By name: a web process that only sends tasks never imports the worker's side.
    app.steps["worker"].add(f"{__package__}.worker:GuardedPool")
    app.steps["consumer"].add(f"{__package__}.permits:Permits")


def _environment(name: str, default: str) -> str:
    return os.environ.get(f"BEATKEEPER_{name}", "").strip() or default


def _seconds(name: str, given: float | None, default: float) -> float:
    value = str(given) if given is not None else _environment(name, str(default))
    smallest, largest = RANGES[name]
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"BEATKEEPER_{name}={value!r} is not a number of seconds") from None
    # NaN is within nothing.
    if not smallest <= number <= largest:
        raise ValueError(f"BEATKEEPER_{name}={number:g} is outside {smallest:g} to {largest:g}")
    return number
