"""What all of the API shares: how a body is read, how a refusal looks, how a list is paged."""

import base64
import json
import logging
import math
from http import HTTPStatus
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from django.conf import settings
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import InterfaceError, OperationalError
from django.db.models import Model, Q
from django.http import Http404
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.pagination import BasePagination
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from auditlog.context import current
from jobs.input_checks import unstorable
from jobs.refusals import MOST_ERRORS, Conflict, FieldError, InvalidInput, KeyReused, Missing, Refused
from scheduler_project.sdk.ledger import LedgerRefused, LedgerUnavailable

logger = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
DEFAULT_LIMIT, MAX_LIMIT = 50, 200
STATUS: tuple[tuple[type[Refused], int], ...] = (
    (InvalidInput, 400),
    (Missing, 404),
    (Conflict, 409),
    (KeyReused, 422),
    (Refused, 400),
)
CODES = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    411: "length_required",
    413: "body_too_large",
    415: "unsupported_media_type",
    429: "throttled",
    500: "internal_error",
    503: "database_unavailable",
}
HINTS = {
    401: "send `Authorization: Bearer <key>` with a key of your tenant",
    404: "missing, or of another tenant; addresses have no slash at their end",
    411: "send Content-Length",
    415: "send Content-Type: application/json",
    503: "try again in a few seconds",
}


class BodyTooLarge(exceptions.APIException):
    status_code = 413

    def __init__(self) -> None:
        super().__init__(f"the body is over {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes")


class LengthMissing(exceptions.APIException):
    status_code = 411
    default_detail = "a body sent in chunks says no length"


class JsonBody(BaseParser):
    """Refuses what the database could not keep, with the field it stands in: NUL, lone surrogates, infinities."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        body = stream.read(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise BodyTooLarge
        try:
            value = json.loads(body, parse_constant=_refuse_constant)
            errors = list(islice(unstorable(value), MOST_ERRORS))
        except (ValueError, RecursionError) as error:
            raise exceptions.ParseError(f"the body is not JSON: {error}") from None
        if errors:
            raise InvalidInput(errors)
        return value


class JsonAlways(BaseContentNegotiation):
    """One representation for everybody: an Accept header changes nothing."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        given = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == given), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        # WSGI has no length for such a body, so it would be taken for an empty one.
        if request.headers.get("Transfer-Encoding") and not request.headers.get("Content-Length"):
            raise LengthMissing
        return renderers[0], renderers[0].media_type


class NewestFirst(BasePagination):
    """Pages by key, never by offset or count: a page costs the same at any depth, and no row is seen twice."""

    page: list[Model]
    older: str | None
    newer: str | None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.keys: tuple[str, ...] = view.newest_first
        limit = _limit(request.query_params.get("limit"))
        backwards, position = _position(request.query_params.get("cursor"), queryset.model, self.keys)
        if position:
            queryset = queryset.filter(_beyond(self.keys, position, "gt" if backwards else "lt"))
        sign = "" if backwards else "-"
        rows = list(queryset.order_by(*(sign + key for key in self.keys))[: limit + 1])
        more, self.page = len(rows) > limit, rows[:limit]
        if backwards:
            self.page.reverse()
        self.older = self._url(request, -1) if self.page and (more or backwards) else None
        self.newer = self._url(request, 0) if self.page and (more if backwards else bool(position)) else None
        return self.page

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"results": data, "next": self.older, "previous": self.newer})

    def _url(self, request: Request, edge: int) -> str:
        row = self.page[edge]
        values = [_plain(getattr(row, key)) for key in self.keys]
        text = json.dumps(["newer" if edge == 0 else "older", *values], separators=(",", ":"))
        cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        parts = urlsplit(request.build_absolute_uri())
        query = [(n, v) for n, v in parse_qsl(parts.query, keep_blank_values=True) if n != "cursor"]
        return urlunsplit(parts._replace(query=urlencode([*query, ("cursor", cursor)])))


def problem(error: Exception, context: Any = None) -> Response | None:
    """DRF's exception handler: every refusal in one form. None: it is our own mistake, and Django's to report."""
    if isinstance(error, Refused):
        return _response(_status(error), _refusal(error))
    if isinstance(error, (OperationalError, InterfaceError, LedgerUnavailable)):
        logger.exception("the database is not available")
        return _response(503, problem_body(503, "the database is not available"), {"Retry-After": "5"})
    if isinstance(error, LedgerRefused):
        return _response(409, problem_body(409, str(error).rstrip("."), Conflict.code))
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    if isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    if isinstance(error, exceptions.APIException):
        return _framework_refusal(error)
    return None


def _status(error: Refused) -> int:
    return next(status for kind, status in STATUS if isinstance(error, kind))


def _refusal(error: Refused) -> dict[str, Any]:
    status = _status(error)
    body = problem_body(status, error.detail, error.code, error.field, error.hint)
    if isinstance(error, InvalidInput) and len(error.errors) > 1:
        body["errors"] = [
            {"field": e.field or None, "code": e.code, "detail": e.detail, "hint": e.hint or None}
            for e in error.errors
        ]
    if error.link:
        body["link"] = error.link
    return body


def _framework_refusal(error: exceptions.APIException) -> Response:
    status = error.status_code
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(math.ceil(wait))
    detail = error.detail if isinstance(error.detail, str) else str(error)
    return _response(status, problem_body(status, str(detail)), headers)


def problem_body(status: int, detail: str, code: str = "", field: str = "", hint: str = "") -> dict[str, Any]:
    code = code or CODES.get(status, "refused")
    return {
        "type": f"urn:beatkeeper:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "field": field or None,
        "detail": detail,
        "hint": hint or HINTS.get(status),
        "request_id": current().request_id or None,
    }


def _response(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(body, status=status, headers=headers, content_type=PROBLEM_TYPE)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not (given.isascii() and given.isdigit() and len(given) <= 3 and 1 <= int(given) <= MAX_LIMIT):
        raise InvalidInput([FieldError("limit", f"{given[:20]!r} is not a page size", f"1 to {MAX_LIMIT}")])
    return int(given)


def _position(cursor: str | None, model: type[Model], keys: tuple[str, ...]) -> tuple[bool, list[Any]]:
    if cursor is None:
        return False, []
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        direction, *values = json.loads(base64.urlsafe_b64decode(padded))
        if direction not in ("newer", "older") or not all(isinstance(value, str) for value in values):
            raise ValueError(cursor)
        fields = [model._meta.get_field(key) for key in keys]
        read = [field.to_python(value) for field, value in zip(fields, values, strict=True)]  # type: ignore[union-attr]
    except (ValueError, TypeError, ValidationError, RecursionError):
        raise _bad_cursor() from None
    return direction == "newer", read


def _bad_cursor() -> InvalidInput:
    return InvalidInput(
        [FieldError("cursor", "is not a place in this list", "follow `next` and `previous` as they are")]
    )


def _beyond(keys: tuple[str, ...], values: list[Any], comparison: str) -> Q:
    """(a, b) < (x, y), in a form whose first part the index and the partitions can use."""
    found = Q()
    for depth in range(len(keys)):
        equal = dict(zip(keys[:depth], values, strict=False))
        found |= Q(**equal, **{f"{keys[depth]}__{comparison}": values[depth]})
    return found & Q(**{f"{keys[0]}__{comparison}e": values[0]})


def _plain(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
