"""What an existing code base adds: `keeper = Beatkeeper(app)`, and `@keeper.job(…)` above its tasks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from celery import Celery
from celery.app.task import Task
from celery.local import Proxy

from . import __version__
from .declarations.checks import InvalidDeclaration, text_of, with_texts
from .declarations.job_options import JobOptions, declaration, refuse_unknown_options
from .declarations.task_options import policy_of_task, timeout_of_task
from .execution.claim_loop import ClaimLoop
from .host import open_link
from .host.interface import NewRunRequest, PlatformLink, as_input
from .host.requested_run import RequestedRun
from .host.task_methods import declaration_of, give_methods, run_at_once, run_once
from .host.task_types import Declares
from .ledger import is_remote
from .ledger.https import HttpsLedger, remote_ledger_url
from .process.environment import seconds, variable
from .registry import ATTRIBUTE, keeper_of
from .shared.folder import Config, Runtime, default_spool_folder
from .targets.celery_task import CeleryTarget
from .targets.registry import Executor, Targets
from .worker.wakeup_task import register_wakeup_task

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .execution.eager import EagerRuns

# Slots of a worker of threads or greenlets; each is a process.
MAX_FEED_SLOTS = 1000


class Beatkeeper:
    """Let a Celery app's workers take runs from Beatkeeper. No setting of the app is changed.

    An app has one keeper: another one replaces it, and takes over all that was declared with it.
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
        """Reach the platform over HTTPS by `url` and `api_key`, or over its database by `database_url`."""
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
        self._link: PlatformLink | None = None
        # A factory may be called twice, but the decorators of its modules are executed once.
        earlier: Beatkeeper | None = getattr(app, ATTRIBUTE, None)
        self._declared: list[tuple[Any, str | None, JobOptions]] = earlier._declared if earlier else []
        self.targets: Targets = earlier.targets if earlier else Targets(app)
        self.targets.add("celery", CeleryTarget(app))
        for kind, executor in (executors or {}).items():
            self.targets.add(kind, executor)
        # A running worker goes on when another keeper is made in its process.
        self.claim_loop: ClaimLoop | None = earlier.claim_loop if earlier else None
        if not earlier:
            register_wakeup_task(app)
        setattr(app, ATTRIBUTE, self)
        # By name: a web process that only sends tasks never imports the worker's side.
        app.steps["worker"].add(f"{__package__}.worker.bootstep:SupervisorStep")
        app.steps["consumer"].add(f"{__package__}.worker.wakeup_consumer:WakeupConsumer")

    def job(self, name: str | None = None, **options: Unpack[JobOptions]) -> Declares:
        """Declare a job that runs the task below it. The task is returned as it is, with `run_now` and `schedule`."""
        refuse_unknown_options(options)
        # The class is looked at, because a task without the parentheses would be evaluated by isinstance.
        if name is not None and not issubclass(type(name), str):
            raise TypeError("@keeper.job takes a job's name and options: write @keeper.job() above @app.task")

        def declare(task: Any) -> Any:
            # `@app.task` returns a proxy until the app is finalized; evaluating it would finalize the app too early.
            if not isinstance(task, (Proxy, Task)):
                raise TypeError("@keeper.job belongs above @app.task: it takes a Celery task")
            # A mistake is raised here, where it was made, and not at the worker's start.
            try:
                declaration("", name, with_texts(options, lambda lazy: "its text"))
            except InvalidDeclaration as mistake:
                raise cannot_be_declared(task, mistake) from None
            self._declared.append((task, name, options))
            methods = {name: partial(self._of_present_keeper, name) for name in ("run_now", "schedule")}
            give_methods(self.app, task, methods)
            return task

        return declare

    def executor(self, kind: str) -> Callable[[Executor], Executor]:
        """Register the executor for targets of a kind."""
        return partial(self.targets.add, kind)

    def declarations(self) -> list[dict[str, Any]]:
        """List the declared jobs, each with the code base that declares it."""
        return [{**spec, "source": self.source} for spec in self._specs()]

    def _specs(self, task: str | None = None) -> list[dict[str, Any]]:
        """List the jobs that are declared, or those of one task.

        For a task that is declared twice by one name the later declaration counts.
        """
        found = [self._spec(*declared) for declared in self._declared if task in (None, declared[0].name)]
        return list({(one["name"], one["target"]["task"]): one for one in found}.values())

    def _spec(self, task: Any, name: str | None, options: JobOptions) -> dict[str, Any]:
        """Give a job without a policy or a timeout those of its task."""
        try:
            given = with_texts(options, text_of)
            if given.get("retry") is None and given.get("retries") is None:
                given["retry"] = policy_of_task(task)
            if given.get("timeout") is None:
                given["timeout"] = timeout_of_task(task)
            return declaration(task.name, name, given)
        except Exception as error:
            raise cannot_be_declared(task, error) from error

    @property
    def source(self) -> str:
        """The name of the code base in its declarations."""
        return str(self.app.main or "")

    def run_now(
        self,
        task: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        job: str | None = None,
        key: str | None = None,
    ) -> RequestedRun:
        """Request a run of the job that this task is declared as, with other arguments if they are given.

        The same `key` again is the same run. Raise PlatformAway without an answer in time, and PlatformRefused when the
        platform refuses.
        """
        declared = declaration_of(self._specs(task.name), task.name, job)
        if declared is None:
            raise ValueError(f"The task {task.name} is not declared: put @keeper.job() above it")
        return self._request(run_at_once(declared, key or uuid4().hex, as_input(args, kwargs)), declared)

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
        """Request one run of the task at an instant, as a job of its own with all that was declared for the task."""
        declared = declaration_of(self._specs(task.name), task.name, job) or declaration(task.name, None, {})
        return self._request(run_once(declared, key or uuid4().hex, at, as_input(args, kwargs)), declared)

    def _of_present_keeper(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Request it from the keeper that the app has by then."""
        return getattr(keeper_of(self.app), method)(*arguments, **options)

    def requested(self, request_id: UUID | str) -> RequestedRun:
        """Find an earlier request, maybe of another process, by its `id`."""
        identity = UUID(str(request_id))
        if self.app.conf.task_always_eager:
            return self._eager_runs.requested(identity)
        return RequestedRun(self.link, self.link().requested(identity))

    def link(self) -> PlatformLink:
        """Return the link to the platform; nothing is connected before its first call."""
        if self._link is None:
            timeout = seconds("REQUEST_SECONDS", self._request_seconds)
            self._link = open_link(self.ledger_url, self.tenant, self.pool, timeout)
        return self._link

    def _request(self, new: NewRunRequest, declared: Mapping[str, Any]) -> RequestedRun:
        if self.app.conf.task_always_eager:
            return self._eager_runs.run(new, declared)
        return RequestedRun(self.link, self.link().request(new))

    @cached_property
    def _eager_runs(self) -> EagerRuns:
        """Import them for tests only: they need the worker's modules."""
        from .execution.eager import EagerRuns

        return EagerRuns(self.app)

    @property
    def ledger_url(self) -> str:
        """The ledger's URL: code goes before the environment, and an address of the platform before a database."""
        if self._ledger_url:
            return self._ledger_url
        if url := self.url:
            return remote_ledger_url(url, self._api_key or variable("API_KEY"), self.ca_file)
        return variable("DATABASE_URL") or os.environ.get("DATABASE_URL", "")

    @property
    def url(self) -> str:
        return self._url or variable("URL")

    @property
    def ca_file(self) -> str:
        return str(self._ca_file or variable("CA_FILE"))

    @property
    def broker_url(self) -> str:
        """The URL of the broker that brings wake-ups; empty: the app's own."""
        return self._broker_url or variable("BROKER_URL")

    @property
    def pool(self) -> str:
        """The pool; a worker's key belongs to one, so that none need be named."""
        remote = is_remote(self._ledger_url) if self._ledger_url else bool(self.url)
        return self._pool or ("" if remote else "default")

    @property
    def spool_folder(self) -> Path:
        return self._spool_folder or default_spool_folder()

    @property
    def slots(self) -> int:
        """Runs at once in a worker of threads or greenlets; 0: the worker chooses."""
        value = str(self._slots if self._slots is not None else variable("SLOTS", "0"))
        if not value.isdecimal() or int(value) > MAX_FEED_SLOTS:
            raise ValueError(f"BEATKEEPER_SLOTS={value!r} is not a number from 0 to {MAX_FEED_SLOTS}")
        return int(value)

    def config(self, name: str, slots: int, *, without_wakeups: bool) -> Config:
        lease, beat = seconds("LEASE_SECONDS", self._lease), seconds("BEAT_SECONDS", self._beat)
        margin = seconds("FENCE_MARGIN_SECONDS", self._margin)
        if beat + margin >= lease:
            raise ValueError(
                f"a lease of {lease:g} s is not above a beat of {beat:g} s and a margin of {margin:g} s"
            )
        if is_remote(self.ledger_url):
            # A mistake in the address is raised here, and not by a guard that cannot start.
            HttpsLedger(self.ledger_url)
        return Config(
            name=name,
            host=socket.gethostname(),
            pool=self.pool,
            tenant=self.tenant,
            slots=slots,
            ledger_url=self.ledger_url,
            log_store_url=self._log_store_url or f"file://{self.spool_folder.absolute()}/logs",
            known_targets=self.targets.known(),
            version=__version__,
            region=self._region,
            lease=lease,
            beat=beat,
            margin=margin,
            grace=seconds("GRACE_SECONDS"),
            drain=seconds("DRAIN_SECONDS"),
            feed_after=0.0 if without_wakeups else seconds("FEED_AFTER_SECONDS"),
            look=seconds("LOOK_SECONDS"),
            without_wakeups=without_wakeups,
            declarations=self.declarations() if self._declare_at_start else [],
        )

    def work_in(self, runtime: Runtime) -> ClaimLoop:
        self.claim_loop = ClaimLoop(runtime, self.targets)
        return self.claim_loop


def cannot_be_declared(task: Any, mistake: Exception) -> InvalidDeclaration:
    """Name the task. A proxy is evaluated for its name, as there will be no app that this could be too early for."""
    name = "below @keeper.job"
    with suppress(Exception):
        name = task.name
    return InvalidDeclaration(f"The task {name} cannot be declared: {mistake}")
