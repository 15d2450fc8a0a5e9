"""Read the body of a request."""

import json
from itertools import islice
from typing import Any

from django.conf import settings
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from jobs.errors import MAX_ERRORS, BodyTooLarge, InvalidInput
from jobs.validation.checks import unstorable


class JsonBody(BaseParser):
    """Read JSON, and refuse what the database cannot store, naming its field: NUL, lone surrogates, infinities."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        body = stream.read(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise BodyTooLarge(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        try:
            value = json.loads(body, parse_constant=_refuse_constant)
            errors = list(islice(unstorable(value), MAX_ERRORS))
        except (ValueError, RecursionError) as error:
            raise exceptions.ParseError(f"the body is not JSON: {error}") from None
        if errors:
            raise InvalidInput(errors)
        return value


class JsonAlways(BaseContentNegotiation):
    """Answer in JSON, whatever the Accept header says."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        given = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == given), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")
