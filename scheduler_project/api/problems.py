"""Turn refusals into problem answers."""

import logging
import math
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from auditlog.context import current
from jobs.access.limiter import LimitExceeded
from jobs.api.authentication import CHALLENGE
from jobs.api.throttling import headers_of
from jobs.errors import (
    BodyTooLarge,
    ChangedMeanwhile,
    Conflict,
    DomainError,
    InvalidInput,
    KeyReused,
    Missing,
    Unauthenticated,
    UnsupportedBody,
)
from scheduler_project.sdk.errors import LedgerRefused, LedgerUnavailable

logger = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
STATUS: tuple[tuple[type[DomainError], int], ...] = (
    (InvalidInput, 400),
    (Unauthenticated, 401),
    (Missing, 404),
    (Conflict, 409),
    (ChangedMeanwhile, 412),
    (BodyTooLarge, 413),
    (UnsupportedBody, 415),
    (KeyReused, 422),
    (LimitExceeded, 429),
    (DomainError, 400),
)
CODES = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "body_too_large",
    414: "address_too_long",
    415: "unsupported_media_type",
    429: "throttled",
    431: "head_too_large",
    500: "internal_error",
    503: "database_unavailable",
}
HINTS = {
    401: "send `Authorization: Bearer <key>` with a key of your tenant",
    404: "missing, or of another tenant; addresses have no slash at their end",
    503: "try again in a few seconds",
}


def problem(error: Exception, context: Any = None) -> Response | None:
    """Turn every refusal into one form. None means our own mistake, which Django reports."""
    if isinstance(error, LimitExceeded):
        wait = {"Retry-After": str(error.standing.seconds)}
        return _response(_refusal(error), {**wait, **headers_of([error.standing])})
    if isinstance(error, DomainError):
        return _response(_refusal(error), _challenge(error))
    if isinstance(error, (OperationalError, InterfaceError, LedgerUnavailable)):
        logger.exception("the database is not available")
        return _response(problem_body(503, "the database is not available"), {"Retry-After": "5"})
    if isinstance(error, LedgerRefused):
        return _response(problem_body(409, str(error).rstrip("."), Conflict.code))
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    if isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    if isinstance(error, exceptions.APIException):
        return _framework_refusal(error)
    return None


def _challenge(error: DomainError) -> dict[str, str]:
    return {"WWW-Authenticate": CHALLENGE} if isinstance(error, Unauthenticated) else {}


def _refusal(error: DomainError) -> dict[str, Any]:
    status = next(status for kind, status in STATUS if isinstance(error, kind))
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
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(math.ceil(wait))
    detail = error.detail if isinstance(error.detail, str) else str(error)
    return _response(problem_body(error.status_code, str(detail)), headers)


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


def _response(body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(body, status=body["status"], headers=headers, content_type=PROBLEM_TYPE)
