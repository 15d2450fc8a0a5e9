"""Identify what a client has read of a job: ETag, If-Match, If-None-Match."""

from django.utils.http import parse_etags
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from jobs.services.locking import edition_of
from jobs.validation.checks import Json, abbreviate, invalid

ANY = "*"
ETAG = OpenApiParameter(
    "ETag",
    str,
    OpenApiParameter.HEADER,
    description="Of the definition and the status of the job; `next_run_at` and `warnings` are no part of it.",
    response=[200, 201, 304],
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The ETag that you have read, so that you undo no change of others: 412 if it is no longer that "
    "of the job.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    str,
    OpenApiParameter.HEADER,
    description="The ETag that you have read: 304 while it is that of the job.",
)


def etag_of(job_json: Json) -> str:
    """Write the ETag of a job as it is answered, also of an answer that was stored for an Idempotency-Key."""
    return f'"{edition_of(job_json["version"], job_json["status"], job_json["updated_at"])}"'


def editions_seen(request: Request) -> list[str] | None:
    """Read the editions that If-Match names; None: any will do."""
    seen = _named(request, "If-Match")
    return None if seen is None or ANY in seen else seen


def has_seen(request: Request, edition: str) -> bool:
    seen = _named(request, "If-None-Match")
    return seen is not None and (ANY in seen or edition in seen)


def _named(request: Request, header: str) -> list[str] | None:
    given = request.headers.get(header)
    if given is None:
        return None
    # What compresses an answer makes its ETag a weak one.
    found = [tag.removeprefix("W/").strip('"') for tag in parse_etags(given)]
    if not found:
        hint = "as the answer's ETag has it, with the quotes"
        raise invalid(header, f"{abbreviate(given)} is not an ETag", hint)
    return found
