"""Read the parts that requests of several resources share."""

from collections.abc import Callable
from datetime import datetime
from typing import overload
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import tenant_of
from jobs.api.idempotency import StoredResponse, once, read_key
from jobs.errors import Missing
from jobs.validation.checks import Json, abbreviate, invalid, refuse_unknown


def read_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Missing(f"{text[:60]} is not an id", hint="ids are UUIDs") from None


def answer_once(
    request: Request,
    act: Callable[[], StoredResponse],
    distinguished_by: object = None,
    more: Callable[[Json], dict[str, str]] = lambda body: {},
) -> Response:
    """Act, and with an Idempotency-Key act only once.

    Another body is another request. Where no digest of the body may be stored, `distinguished_by` replaces it.
    `more` makes headers from the answer, which may be the stored one.
    """
    given = request.headers.get("Idempotency-Key", "")
    if given:
        what = f"{request.method} {request.path}"
        body = request.data if distinguished_by is None else distinguished_by
        answer = once(tenant_of(request), read_key(given), what, body, act)
    else:
        answer = act()
    headers = {"Idempotency-Replayed": "true"} if answer.replayed else {}
    if answer.status == 201:
        headers["Location"] = answer.body["links"]["self"]
    return Response(answer.body, status=answer.status, headers={**headers, **more(answer.body)})


def refuse_unknown_query(request: Request, known: tuple[str, ...]) -> None:
    """Refuse unknown parameters: a filter with a typing mistake would answer with everything."""
    refuse_unknown(dict(request.query_params), known, "")
    for name, values in request.query_params.lists():
        if any("\x00" in value for value in values):
            raise invalid(name, f"{name} holds a NUL character")


def read_limit(request: Request, default: int, largest: int) -> int:
    """Read how many rows or times are asked for."""
    given = request.query_params.get("limit")
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 3 and 1 <= int(given) <= largest):
        raise invalid("limit", f"{abbreviate(given)} is not a limit", f"1 to {largest}")
    return int(given)


BASE = "/api/v1"


@overload
def instant(value: datetime) -> str: ...
@overload
def instant(value: None) -> None: ...
def instant(value: datetime | None) -> str | None:
    if value is None:
        return None
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
