"""Why a request is not done. scheduler_project/api.py alone turns these into HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass

# An answer that named every mistake of a large body would be many times its size.
MOST_ERRORS = 20


@dataclass(frozen=True)
class FieldError:
    field: str
    detail: str
    hint: str = ""
    code: str = "invalid"


class Refused(Exception):
    """The request is not done."""

    code = "refused"

    def __init__(self, detail: str = "", *, field: str = "", hint: str = "", link: str = "") -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        super().__init__(self.detail)
        self.field = field
        self.hint = hint
        self.link = link


def hinted(text: str, hint: str) -> str:
    return f"{text} ({hint})" if hint else text


class InvalidInput(Refused):
    """The request cannot be used as written."""

    code = "invalid"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        first = errors[0]
        super().__init__(first.detail, field=first.field, hint=first.hint)
        self.code = first.code
        self.errors = list(errors[:MOST_ERRORS])

    def __str__(self) -> str:
        return "; ".join(f"{error.field}: {error.detail}" for error in self.errors)


class Conflict(Refused):
    """The present state does not allow it."""

    code = "conflict"


class DuplicateName(Conflict):
    code = "duplicate_name"


class ChangedMeanwhile(Conflict):
    """What was to be changed is no longer what was seen."""

    code = "changed_meanwhile"


class InstantTaken(Conflict):
    code = "instant_has_run"


class JobNotRunnable(Conflict):
    code = "job_status"


class RunIsFinal(Conflict):
    """A finished run never changes."""

    code = "run_is_final"


class RunIsUnfinished(Conflict):
    """Only a finished run can be retried."""

    code = "run_is_unfinished"


class KeyReused(Refused):
    """This Idempotency-Key was used for another request."""

    code = "idempotency_key_reused"


class Missing(Refused):
    """There is nothing at this address."""

    code = "not_found"
