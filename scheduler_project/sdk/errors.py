"""Errors of the platform and its ledger, as a code base or a worker may have to handle them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LedgerUnavailable(Exception):
    """The ledger gave no answer; the request may or may not have been carried out."""


class LedgerRefused(Exception):
    """The ledger refused the request, and would refuse it again."""


class BeatkeeperError(Exception):
    """The platform did not carry out a request."""


class PlatformAway(BeatkeeperError):
    """The platform gave no answer in time; the request may or may not have been carried out.

    Sending it again with the same key carries it out once.
    """


class PlatformRefused(BeatkeeperError):
    """The platform refused the request: `field` names the part, `detail` the reason, `hint` what would be right."""

    def __init__(
        self,
        detail: str,
        *,
        code: str = "refused",
        field: str | None = None,
        hint: str | None = None,
        status: int | None = None,
        errors: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.detail, self.code, self.field, self.hint, self.status = detail, code, field, hint, status
        self.errors = [dict(error) for error in errors]
        described = self.errors or [{"field": field, "detail": detail, "hint": hint}]
        super().__init__("; ".join(map(_describe, described)))


class KeyRefused(PlatformRefused, LedgerRefused):
    """The key is wrong, expired, revoked, or of another role; the request itself may be good."""


class UnknownToPlatform(PlatformRefused):
    """Nothing has that name or id, or it belongs to another team."""


class PlatformConflict(PlatformRefused):
    """The present state does not allow it."""


KINDS = {
    401: KeyRefused,
    403: KeyRefused,
    404: UnknownToPlatform,
    409: PlatformConflict,
    422: PlatformConflict,
}


def error_of(status: int, problem: Mapping[str, Any]) -> PlatformRefused:
    """Make the error for an answer in problem+json. Fields that it lacks are filled in."""
    return KINDS.get(status, PlatformRefused)(
        str(problem.get("detail") or f"the platform answered {status}"),
        code=str(problem.get("code") or "refused"),
        field=problem.get("field") or None,
        hint=problem.get("hint") or None,
        status=status,
        errors=[error for error in problem.get("errors") or [] if isinstance(error, dict)],
    )


def _describe(error: Mapping[str, Any]) -> str:
    where = f"{error['field']}: " if error.get("field") else ""
    hint = f" ({error['hint']})" if error.get("hint") else ""
    return f"{where}{error.get('detail')}{hint}"
