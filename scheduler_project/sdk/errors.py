"""What a code base may have to handle when it asks the platform for something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .ledger import LedgerRefused


class BeatkeeperError(Exception):
    """The platform did not do what it was asked."""


class PlatformAway(BeatkeeperError):
    """The platform gave no answer in time; what it was asked may or may not have happened.

    Asking again with the same key does it once.
    """


class PlatformRefused(BeatkeeperError):
    """The platform answered that this cannot be: `field` names the part, `detail` the reason, `hint` what would do."""

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
        super().__init__(self._words())

    def _words(self) -> str:
        named = self.errors or [{"field": self.field, "detail": self.detail, "hint": self.hint}]
        return "; ".join(_in_words(error) for error in named)


class KeyRefused(PlatformRefused, LedgerRefused):
    """The key is wrong, expired, revoked, or of another role; what was asked with it may be good."""


class UnknownToPlatform(PlatformRefused):
    """There is nothing of that name or id, or it is another team's."""


class PlatformConflict(PlatformRefused):
    """The present state does not allow it."""


def refusal(status: int, problem: Mapping[str, Any]) -> PlatformRefused:
    """Of an answer in problem+json; whatever it lacks is made good."""
    kinds = {
        401: KeyRefused,
        403: KeyRefused,
        404: UnknownToPlatform,
        409: PlatformConflict,
        422: PlatformConflict,
    }
    return kinds.get(status, PlatformRefused)(
        str(problem.get("detail") or f"the platform answered {status}"),
        code=str(problem.get("code") or "refused"),
        field=problem.get("field") or None,
        hint=problem.get("hint") or None,
        status=status,
        errors=[error for error in problem.get("errors") or [] if isinstance(error, dict)],
    )


def _in_words(error: Mapping[str, Any]) -> str:
    where = f"{error['field']}: " if error.get("field") else ""
    hint = f" ({error['hint']})" if error.get("hint") else ""
    return f"{where}{error.get('detail')}{hint}"
