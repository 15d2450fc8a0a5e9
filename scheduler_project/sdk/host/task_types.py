"""The type of `@keeper.job(…)` and of a declared task, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from celery.app.task import Task

    from .requested_run import RequestedRun

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class TaskLike(Protocol[P, R_co]):
    """A task, whether Celery's types are known or not; a function is none."""

    name: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...


class Declares(Protocol):
    """The decorator: it returns the task, typed as declared. The second overload is for Any."""

    @overload
    def __call__(self, task: TaskLike[P, R]) -> DeclaredTask[P, R]: ...
    @overload
    def __call__(self, task: TaskLike[..., R]) -> DeclaredTask[..., R]: ...


if TYPE_CHECKING:

    class DeclaredTask(Task[P, R], Generic[P, R]):
        """The task with both methods. Other attributes of its own class are Any: no type combines both."""

        def run_now(
            self,
            args: Sequence[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None,
            *,
            job: str | None = None,
            key: str | None = None,
        ) -> RequestedRun: ...

        def schedule(
            self,
            args: Sequence[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None,
            *,
            at: datetime | str,
            job: str | None = None,
            key: str | None = None,
        ) -> RequestedRun: ...

        def __getattr__(self, name: str) -> Any: ...
