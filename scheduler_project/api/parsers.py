"""Read the body of a request."""

import json
from collections import Counter
from itertools import islice
from typing import Any

from django.conf import settings
from django.utils.http import parse_header_parameters
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from jobs.errors import MAX_ERRORS, BodyTooLarge, InvalidInput, UnsupportedBody
from jobs.validation.checks import Json, abbreviate, invalid, printable, unstorable

UTF_8 = ("utf-8", "utf8")
NO_TYPE = "the request has a body and no Content-Type"
# RFC 7396. A PATCH is one, whichever of the two types its body has.
MERGE_PATCH = "application/merge-patch+json"


class JsonBody(BaseParser):
    """Read JSON, and refuse what the database cannot store, naming its field: NUL, lone surrogates, infinities."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        _check_coding(parser_context["request"])
        body = stream.read(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise BodyTooLarge(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        try:
            text = body.decode("utf-8-sig")
            value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_read_object)
            errors = list(islice(unstorable(value), MAX_ERRORS))
        except UnicodeDecodeError as error:
            raise exceptions.ParseError(f"the body is not UTF-8 at byte {error.start}") from None
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise exceptions.ParseError(f"the body is not JSON at {place}: {error.msg}") from None
        except ValueError:
            raise exceptions.ParseError(
                "the body is not JSON that is read here: a number is too long"
            ) from None
        except RecursionError:
            raise exceptions.ParseError("the body is not JSON that is read here: nested too deeply") from None
        if errors:
            raise InvalidInput(errors)
        return value


class JsonAlways(BaseContentNegotiation):
    """Read a body by its Content-Type, and answer in JSON whatever the Accept header says."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        given = request.content_type.partition(";")[0].strip().lower()
        if request.method == "PATCH" and given == MERGE_PATCH:
            given = JsonBody.media_type
        found = next((parser for parser in parsers if parser.media_type == given), None)
        if found is None:
            detail = f"a body of the type {abbreviate(given)} is not read here" if given else NO_TYPE
            hint = f"send Content-Type: {' or '.join(parser.media_type for parser in parsers)}"
            raise UnsupportedBody(detail, field="Content-Type", hint=hint)
        return found

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


def _check_coding(request: Request) -> None:
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding not in ("", "identity"):
        detail = f"the body has the coding {abbreviate(coding)}, which is not read here"
        raise UnsupportedBody(
            detail, field="Content-Encoding", hint="send it as it is, without Content-Encoding"
        )
    charset = parse_header_parameters(request.content_type)[1].get("charset", "utf-8").lower()
    if charset not in UTF_8:
        detail = f"the body has the charset {abbreviate(charset)}, and JSON is UTF-8"
        raise UnsupportedBody(
            detail, field="Content-Type", hint="send UTF-8, and no charset or charset=utf-8"
        )


def _refuse_constant(name: str) -> None:
    raise exceptions.ParseError(f"the body is not JSON: {name} is no number in JSON")


def _read_object(pairs: list[tuple[str, Any]]) -> Json:
    """Build an object, and refuse one in which a name is given twice: which of the two is meant cannot be known."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = Counter(name for name, _ in pairs)
        twice = next(name for name, count in names.items() if count > 1)
        raise invalid(
            printable(twice), "it is given twice in one object", "give each name once", "given_twice"
        )
    return found
