"""Identify what a client has read of a job: ETag, If-Match, If-None-Match."""

import re

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from jobs.services.locking import edition_of
from jobs.validation.checks import Json, abbreviate, invalid
from jobs.validation.schema import text

ANY = "*"
# RFC 9110: in quotes, several with commas between them.
TAG = re.compile(r'(?:W/)?"([!#-~]*)"')
NAMED = re.compile(rf"\*|{TAG.pattern}(?:[ \t]*,[ \t]*{TAG.pattern})*")
NAMED_SCHEMA = text(format="entity-tags", pattern=f"^({NAMED.pattern})$", example="*")
ETAG = OpenApiParameter(
    "ETag",
    str,
    OpenApiParameter.HEADER,
    description="Of the definition and the status of the job; `next_run_at` and `warnings` are no part of it.",
    response=[200, 201, 304],
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    NAMED_SCHEMA,
    OpenApiParameter.HEADER,
    description="The ETag that you have read, so that you undo no change of others: 412 if it is no longer that "
    "of the job.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    NAMED_SCHEMA,
    OpenApiParameter.HEADER,
    description="The ETag that you have read: 304 while it is that of the job.",
)


def etag_of(job_json: Json) -> str:
    """Write the ETag of a job as it is answered, also of an answer that was stored for an Idempotency-Key."""
    return f'"{edition_of(job_json["version"], job_json["status"], job_json["updated_at"])}"'


def editions_seen(request: Request) -> list[str] | None:
    """Read the editions that If-Match names; None: any will do."""
    given = _given(request, "If-Match")
    return None if given in ("", ANY) else _editions(given)


def has_seen(request: Request, edition: str) -> bool:
    given = _given(request, "If-None-Match")
    return given == ANY or edition in _editions(given)


def _given(request: Request, header: str) -> str:
    """Return what the header says, or an empty text without the header."""
    given: str | None = request.headers.get(header)
    if given is None:
        return ""
    if not NAMED.fullmatch(given.strip()):
        hint = "as the answer's ETag has it, with the quotes"
        raise invalid(header, f"{abbreviate(given)} is not an ETag", hint)
    return given.strip()


def _editions(given: str) -> list[str]:
    # What compresses an answer makes its ETag a weak one.
    return TAG.findall(given)
