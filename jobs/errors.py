"""Errors of the domain. Only scheduler_project/api/problems.py turns them into HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass

# An answer that named every mistake of a large body would be many times its size.
MAX_ERRORS = 20


@dataclass(frozen=True)
class FieldError:
    field: str
    detail: str
    hint: str = ""
    code: str = "invalid"


class DomainError(Exception):
    """The request is not done."""

    code = "refused"

    def __init__(
        self, detail: str = "", *, field: str = "", hint: str = "", link: str = "", code: str = ""
    ) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        super().__init__(self.detail)
        self.field, self.hint, self.link = field, hint, link
        self.code = code or self.code


def hinted(text: str, hint: str) -> str:
    return f"{text} ({hint})" if hint else text


class InvalidInput(DomainError):
    """The request cannot be used as written."""

    code = "invalid"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        first = errors[0]
        super().__init__(first.detail, field=first.field, hint=first.hint, code=first.code)
        self.errors = list(errors[:MAX_ERRORS])

    def __str__(self) -> str:
        return "; ".join(f"{error.field}: {error.detail}" for error in self.errors)


class Conflict(DomainError):
    """The present state does not allow it."""

    code = "conflict"


class TooMany(Conflict):
    """A tenant or a job has as many of something as it may have."""


class InUse(Conflict):
    """Jobs refer to what was to be deleted."""


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


class KeyReused(DomainError):
    """This Idempotency-Key was used for another request."""

    code = "idempotency_key_reused"


class BodyTooLarge(DomainError):
    code = "body_too_large"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is over {max_bytes} bytes")


class Missing(DomainError):
    """There is nothing at this address."""

    code = "not_found"
