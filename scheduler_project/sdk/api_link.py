"""The link to the platform over its API: by a worker's key for its pool, or by a key of a person's role."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from .client import ApiClient, within
from .errors import KeyRefused
from .link import Answered, Asked
from .plan import Declared

T = TypeVar("T")

APPLY_SECONDS = 30.0
OF_WORKERS, OF_PEOPLE = "/worker", ""


class ApiLink:
    def __init__(
        self, url: str, key: str, pool: str, *, ca_file: str | None = None, timeout: float = 5.0
    ) -> None:
        self._open = partial(ApiClient, url, key, ca_file=ca_file)
        self._what = self._open().url
        self._pool, self._timeout = pool, timeout
        # Which of the two a key may use, only the platform knows.
        self._prefix = OF_WORKERS

    def __repr__(self) -> str:
        return f"ApiLink({self._what!r})"

    def declared(self) -> list[Declared]:
        return self._listed(
            self._call(lambda api, at: api.get(f"{at}/declarations", pool=self._pool or None))
        )

    def declare(
        self,
        declarations: Sequence[dict[str, Any]],
        *,
        again: Sequence[str] = (),
        withdraw: Sequence[str] = (),
    ) -> list[Declared]:
        body = {
            "pool": self._pool or None,
            "declarations": list(declarations),
            "again": list(again),
            "withdraw": list(withdraw),
        }
        seconds = max(self._timeout, APPLY_SECONDS)
        return self._listed(self._call(lambda api, at: api.post(f"{at}/declarations", body), seconds))

    def request(self, asked: Asked) -> Answered:
        at = asked.at.isoformat() if asked.at else None
        body = {"key": asked.key, "pool": self._pool or None, "spec": dict(asked.spec), "at": at}
        return _answered(self._call(lambda api, at: api.post(f"{at}/run-requests", body)))

    def requested(self, request_id: UUID) -> Answered:
        return _answered(self._call(lambda api, at: api.get(f"{at}/run-requests/{request_id}")))

    def cancel(self, request_id: UUID) -> Answered:
        return _answered(self._call(lambda api, at: api.post(f"{at}/run-requests/{request_id}/cancel")))

    def _call(self, ask: Callable[[ApiClient, str], T], seconds: float = 0.0) -> T:
        seconds = seconds or self._timeout

        def carry_out() -> T:
            api = self._open(timeout=seconds)
            try:
                return ask(api, self._prefix)
            except KeyRefused as refused:
                if refused.status != 403 or self._prefix == OF_PEOPLE:
                    raise
                answer = ask(api, OF_PEOPLE)
                self._prefix = OF_PEOPLE
                return answer
            finally:
                api.close()

        return within(seconds, carry_out, self._what)

    def _listed(self, answer: Any) -> list[Declared]:
        return [Declared.read(row) for row in answer["results"]]


def _answered(row: Mapping[str, Any]) -> Answered:
    return Answered(
        id=UUID(row["id"]),
        state=str(row["state"]),
        key=str(row["key"]),
        at=datetime.fromisoformat(row["at"].replace("Z", "+00:00")) if row.get("at") else None,
        job_id=UUID(row["job"]) if row.get("job") else None,
        run_id=UUID(row["run"]) if row.get("run") else None,
        result=row.get("result"),
        error=str(row.get("error_line") or ""),
    )
