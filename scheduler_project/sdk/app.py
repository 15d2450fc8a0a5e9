"""What an existing code base adds: `keeper = Beatkeeper(app)`, and `@keeper.job(...)` over its tasks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from celery.app.task import Task
from celery.local import Proxy

from .asked_runs import give_methods, run_at_once, run_once, the_one_of
from .celery_target import CeleryTarget
from .declarations import declaration, timeout_of_task
from .declared_task import Declares
from .https import HttpsLedger
from .https import ledger_url as remote_ledger_url
from .link import Asked, Link, RequestedRun
from .links import open_link
from .permit_task import register_permit_task
from .retry_options import policy_of_task
from .runtime import Config, Runtime, default_spool_folder, is_remote
from .targets import Executor, Targets
from .work import Workbench

if TYPE_CHECKING:
    from celery import Celery

    from .eager_runs import EagerRuns

FEED_AFTER_WITHOUT_PERMITS = 0.0
# Rescue takes a run back a minute after its time limit; by then the guard must be through with it.
LONGEST_GRACE = 30.0
# Of a worker of threads or greenlets; each is a process.
MOST_FEED_SLOTS = 1000
# What each time may be. A body that has to end itself, because the guard does not end it, needs a margin of a second.
RANGES = {
    "DRAIN_SECONDS": (0.0, 3600.0),
    "FEED_AFTER_SECONDS": (0.0, 60.0),
    "LOOK_SECONDS": (0.2, 600.0),
    "GRACE_SECONDS": (0.0, LONGEST_GRACE),
    "FENCE_MARGIN_SECONDS": (1.0, 600.0),
    "LEASE_SECONDS": (2.0, 3600.0),
    "BEAT_SECONDS": (0.2, 600.0),
    "REQUEST_SECONDS": (0.1, 300.0),
}


class Beatkeeper:
    """Makes a Celery app's workers take runs from Beatkeeper. No setting of the app is changed.

    An app has one: another takes the place of the one before, with all that was declared there.
    """

    def __init__(
        self,
        app: Celery,
        *,
        url: str | None = None,
        api_key: str | None = None,
        ca_file: str | Path | None = None,
        broker_url: str | None = None,
        ledger: str | None = None,
        database_url: str | None = None,
        pool: str | None = None,
        tenant: str | None = None,
        log_store: str | None = None,
        lease_seconds: float | None = None,
        beat_seconds: float | None = None,
        margin_seconds: float | None = None,
        spool_folder: str | Path | None = None,
        region: str = "",
        slots: int | None = None,
        executors: Mapping[str, Executor] | None = None,
        declare_at_start: bool = True,
        request_seconds: float | None = None,
    ) -> None:
        """By `url` and `api_key` the platform is reached over HTTPS, by `database_url` over its database."""
        self.app = app
        self.tenant = tenant or ""
        self._pool = pool
        self._url, self._api_key, self._ca_file = url, api_key, ca_file
        self._broker_url = broker_url
        self._ledger_url = ledger or database_url
        self._log_store_url = log_store
        self._spool_folder = Path(spool_folder) if spool_folder else None
        self._lease, self._beat, self._margin = lease_seconds, beat_seconds, margin_seconds
        self._region = region
        self._slots = slots
        self._declare_at_start, self._request_seconds = declare_at_start, request_seconds
        self._link: Link | None = None
        self._eager: EagerRuns | None = None
        # A factory that is called twice: the decorators of its modules are not carried out again.
        earlier: Beatkeeper | None = getattr(app, "_beatkeeper", None)
        self._declared: list[tuple[Any, dict[str, Any]]] = earlier._declared if earlier else []
        self.targets: Targets = earlier.targets if earlier else Targets(app)
        self.targets.add("celery", CeleryTarget(app))
        for kind, executor in (executors or {}).items():
            self.targets.add(kind, executor)
        # A worker that is at work goes on, whoever makes another keeper in it.
        self.bench: Workbench | None = earlier.bench if earlier else None
        if not earlier:
            register_permit_task(app)
        _attach(app, self)

    def job(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        cron: str | None = None,
        every: Any = None,
        at: datetime | str | None = None,
        timezone: str | None = None,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        calendar: str | None = None,
        on_closed: str | None = None,
        jitter: Any = None,
        priority: int | None = None,
        retries: int | None = None,
        timeout: Any = None,
        overlap: str | None = None,
        max_concurrency: int | None = None,
        catch_up: str | Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        retry: Mapping[str, Any] | None = None,
        breaker: Mapping[str, Any] | None = None,
    ) -> Declares:
        """Declares a job that runs the task below it. The task is returned as it is, with `run_now` and `schedule`."""
        options = {key: value for key, value in locals().items() if key != "self"}
        # Said twice so that a mistake is raised here, where it was made, and not at the worker's start.
        declaration(task="", **options)

        def declare(task: Any) -> Any:
            # `@app.task` gives a proxy until the app is finalized; looking through it would do that too early.
            if not isinstance(task, (Proxy, Task)):
                raise TypeError("@keeper.job belongs above @app.task: it takes a Celery task")
            self._declared.append((task, options))
            give_methods(self.app, task, {"run_now": self._run_now, "schedule": self._schedule})
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
        """A task that is declared twice by the same name is one job, by what was said last."""
        found = [
            {**self._declaration(task, options), "source": self.source} for task, options in self._declared
        ]
        return list({(one["name"], one["target"]["task"]): one for one in found}.values())

    def _declaration(self, task: Any, options: dict[str, Any]) -> dict[str, Any]:
        """A job without a policy or a timeout has its task's."""
        of_task: dict[str, Any] = {}
        if options["retry"] is None and options["retries"] is None:
            of_task["retry"] = policy_of_task(task)
        if options["timeout"] is None:
            of_task["timeout"] = timeout_of_task(task)
        return declaration(task=task.name, **{**options, **of_task})

    @property
    def source(self) -> str:
        """The name of the code base beside its declared jobs."""
        return str(self.app.main or "")

    # What the code base asks for.

    def run_now(
        self,
        task: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        job: str | None = None,
        key: str | None = None,
    ) -> RequestedRun:
        """One more run of the job that this task is declared as, with other arguments if they are given.

        The same `key` again is the same run. PlatformAway when there is no answer in time, PlatformRefused when the
        answer is no.
        """
        declared = the_one_of(self.declarations(), task.name, job)
        if declared is None:
            raise ValueError(f"The task {task.name} is not declared: put @keeper.job() above it")
        return self._ask(run_at_once(declared, key or uuid4().hex, args, kwargs), declared)

    def schedule(
        self,
        task: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        at: datetime | str,
        job: str | None = None,
        key: str | None = None,
    ) -> RequestedRun:
        """One run of the task at an instant, as a job of its own with all that was declared of the task."""
        declared = the_one_of(self.declarations(), task.name, job) or {
            "name": task.name,
            "target": {"kind": "celery", "task": task.name, "args": [], "kwargs": {}},
        }
        return self._ask(run_once(declared, key or uuid4().hex, at, args, kwargs), declared)

    def _run_now(self, *arguments: Any, **options: Any) -> RequestedRun:
        """By whichever keeper the app has by then."""
        return keeper_of(self.app).run_now(*arguments, **options)

    def _schedule(self, *arguments: Any, **options: Any) -> RequestedRun:
        return keeper_of(self.app).schedule(*arguments, **options)

    def requested(self, request_id: UUID | str) -> RequestedRun:
        """What was asked for earlier, maybe by another process, by the `id` it was given."""
        identity = UUID(str(request_id))
        if self.app.conf.task_always_eager:
            return self._eager_runs().requested(identity)
        return RequestedRun(self.link, self.link().requested(identity))

    def link(self) -> Link:
        """What plan, apply and drift ask; nothing is connected before it is asked something."""
        if self._link is None:
            seconds = _seconds("REQUEST_SECONDS", self._request_seconds, 5.0)
            self._link = open_link(self.ledger_url, self.tenant, self.pool, seconds)
        return self._link

    def _ask(self, asked: Asked, declared: Mapping[str, Any]) -> RequestedRun:
        if self.app.conf.task_always_eager:
            return self._eager_runs().run(asked, declared)
        return RequestedRun(self.link, self.link().request(asked))

    def _eager_runs(self) -> EagerRuns:
        """Imported by those who test; it needs the worker's side."""
        from .eager_runs import EagerRuns

        if self._eager is None:
            self._eager = EagerRuns(self.app)
        return self._eager

    # The worker's side.

    @property
    def ledger_url(self) -> str:
        """What was said in code goes before the environment, and an address of the platform before a database."""
        if self._ledger_url:
            return self._ledger_url
        if url := self.url:
            key = self._api_key or _environment("API_KEY", "")
            return remote_ledger_url(url, key, self.ca_file)
        return _environment("DATABASE_URL", "") or os.environ.get("DATABASE_URL", "")

    @property
    def url(self) -> str:
        return self._url or _environment("URL", "")

    @property
    def ca_file(self) -> str:
        return str(self._ca_file or _environment("CA_FILE", ""))

    @property
    def broker_url(self) -> str:
        """Of the broker that brings permits; empty: the app's own."""
        return self._broker_url or _environment("BROKER_URL", "")

    @property
    def pool(self) -> str:
        """A worker's key has its own pool, so that none need be named."""
        remote = is_remote(self._ledger_url) if self._ledger_url else bool(self.url)
        return self._pool or ("" if remote else "default")

    @property
    def spool_folder(self) -> Path:
        return self._spool_folder or default_spool_folder()

    @property
    def slots(self) -> int:
        """How many runs at once in a worker of threads or greenlets; 0: as many as the worker finds right."""
        value = str(self._slots if self._slots is not None else _environment("SLOTS", "0"))
        if not value.isdecimal() or int(value) > MOST_FEED_SLOTS:
            raise ValueError(f"BEATKEEPER_SLOTS={value!r} is not a number from 0 to {MOST_FEED_SLOTS}")
        return int(value)

    def config(
        self,
        name: str,
        slots: int,
        *,
        without_permits: bool,
        app_path: str = "",
        keeps_feed: bool = False,
        runs_per_child: int | None = None,
        memory_per_child: int | None = None,
    ) -> Config:
        lease, beat, margin = self._times()
        if is_remote(self.ledger_url):
            # A mistake in the address is said here, and not by a guard that cannot start.
            HttpsLedger(self.ledger_url)
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
            feed_after=FEED_AFTER_WITHOUT_PERMITS
            if without_permits
            else _seconds("FEED_AFTER_SECONDS", None, 1.0),
            look=_seconds("LOOK_SECONDS", None, 0.8),
            without_permits=without_permits,
            app=app_path,
            keeps_feed=keeps_feed,
            declarations=self.declarations() if self._declare_at_start else [],
            runs_per_child=runs_per_child or 0,
            memory_per_child=memory_per_child or 0,
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
