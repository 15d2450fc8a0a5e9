"""Find and insert rows, with the errors of the domain for what is missing or there already."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.db import IntegrityError, transaction
from django.db.models import Model, QuerySet

from jobs.errors import DuplicateName, Missing

Row = TypeVar("Row", bound=Model)


def first_or_missing(rows: QuerySet[Row], detail: str = "", hint: str = "") -> Row:
    found = rows.first()
    if found is None:
        raise Missing(detail, hint=hint)
    return found


@contextmanager
def refusing_duplicate_name(constraint: str, detail: str, hint: str) -> Iterator[None]:
    """Turn a violated name constraint into an error. The savepoint keeps the transaction usable."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        if constraint not in str(error):
            raise
        raise DuplicateName(detail, field="name", hint=hint) from None
