"""The link to the platform over its API: by a worker's key for its pool, or by a key of a person's role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from ..declarations.plan import DeclaredJob
from ..errors import KeyRefused
from ..transport.http import ApiClient, within
from .interface import Declarations, NewRunRequest, RequestStatus

T = TypeVar("T")

APPLY_SECONDS = 30.0
OF_WORKERS, OF_PEOPLE = "/worker", ""


class ApiLink:
    def __init__(
        self, url: str, key: str, pool: str, *, ca_file: str | None = None, timeout: float = 5.0
    ) -> None:
        self._open = partial(ApiClient, url, key, ca_file=ca_file)
        self._what = self._open().url
        self._pool, self._timeout = pool or None, timeout
        # Only the platform knows which of the two a key may use.
        self._prefix = OF_WORKERS

    def __repr__(self) -> str:
        return f"ApiLink({self._what!r})"

    def declared(self) -> list[DeclaredJob]:
        return self._listed(self._call(lambda api, at: api.get(f"{at}/declarations", pool=self._pool)))

    def declare(
        self, declarations: Declarations, *, again: Sequence[str] = (), withdraw: Sequence[str] = ()
    ) -> list[DeclaredJob]:
        body = {
            "pool": self._pool,
            "declarations": list(declarations),
            "again": list(again),
            "withdraw": list(withdraw),
        }
        seconds = max(self._timeout, APPLY_SECONDS)
        return self._listed(self._call(lambda api, at: api.post(f"{at}/declarations", body), seconds))

    def request(self, new: NewRunRequest) -> RequestStatus:
        at = new.at.isoformat() if new.at else None
        body = {"key": new.key, "pool": self._pool, "spec": dict(new.spec), "at": at}
        return RequestStatus.read(self._call(lambda api, at: api.post(f"{at}/run-requests", body)))

    def requested(self, request_id: UUID) -> RequestStatus:
        return RequestStatus.read(self._call(lambda api, at: api.get(f"{at}/run-requests/{request_id}")))

    def cancel(self, request_id: UUID) -> RequestStatus:
        return RequestStatus.read(
            self._call(lambda api, at: api.post(f"{at}/run-requests/{request_id}/cancel"))
        )

    def _call(self, request: Callable[[ApiClient, str], T], seconds: float = 0.0) -> T:
        seconds = seconds or self._timeout

        def carry_out() -> T:
            api = self._open(timeout=seconds)
            try:
                return request(api, self._prefix)
            except KeyRefused as refused:
                if refused.status != 403 or self._prefix == OF_PEOPLE:
                    raise
                answer = request(api, OF_PEOPLE)
                self._prefix = OF_PEOPLE
                return answer
            finally:
                api.close()

        return within(seconds, carry_out, self._what)

    def _listed(self, answer: Any) -> list[DeclaredJob]:
        return [DeclaredJob.read(row) for row in answer["results"]]
