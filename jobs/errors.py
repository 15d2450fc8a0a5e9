"""Errors of the domain. Only scheduler_project/api/problems.py turns them into HTTP."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

    def __init_subclass__(cls, code: str = "") -> None:
        cls.code = code or cls.code

    def __init__(
        self, detail: str = "", *, field: str = "", hint: str = "", link: str = "", code: str = ""
    ) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        super().__init__(self.detail)
        self.field, self.hint, self.link = field, hint, link
        self.code = code or self.code


def hinted(text: str, hint: str) -> str:
    return f"{text} ({hint})" if hint else text


class InvalidInput(DomainError, code="invalid"):
    """The request cannot be used as written."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        first = errors[0]
        super().__init__(first.detail, field=first.field, hint=first.hint, code=first.code)
        self.errors = list(errors[:MAX_ERRORS])

    def __str__(self) -> str:
        return "; ".join(f"{error.field}: {error.detail}" for error in self.errors)


def refuse_any(errors: Sequence[FieldError]) -> None:
    if errors:
        raise InvalidInput(errors)


@contextmanager
def collecting(errors: list[FieldError]) -> Iterator[None]:
    """Add what the block refuses to the errors, so that a response names all mistakes of a request."""
    try:
        yield
    except InvalidInput as refused:
        errors += refused.errors


class Conflict(DomainError, code="conflict"):
    """The present state does not allow it."""


class TooMany(Conflict):
    """A tenant or a job has as many of something as it may have."""


class InUse(Conflict):
    """Jobs refer to what was to be deleted."""


class DuplicateName(Conflict, code="duplicate_name"):
    """The name is taken."""


class ChangedMeanwhile(DomainError, code="changed_meanwhile"):
    """What was to be changed is no longer what was seen."""


class InstantTaken(Conflict, code="instant_has_run"):
    """The planned time has its run."""


class JobNotRunnable(Conflict, code="job_status"):
    """The status of the job does not allow it."""


class RunIsFinal(Conflict, code="run_is_final"):
    """A finished run never changes."""


class RunIsUnfinished(Conflict, code="run_is_unfinished"):
    """Only a finished run can be retried."""


class KeyReused(DomainError, code="idempotency_key_reused"):
    """This Idempotency-Key was used for another request."""


class Unauthenticated(DomainError, code="unauthenticated"):
    """The credentials are missing or wrong."""


class BodyTooLarge(DomainError, code="body_too_large"):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is over {max_bytes} bytes")


class UnsupportedBody(DomainError, code="unsupported_media_type"):
    """The body is in a form that is not read here."""


class Missing(DomainError, code="not_found"):
    """There is nothing at this address."""
