"""Page lists by key."""

import base64
import json
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from django.core.exceptions import ValidationError
from django.db.models import Model, Q
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.requests import read_limit
from jobs.validation.checks import invalid, is_storable
from jobs.validation.schema import Schema, number, obj, text

DEFAULT_LIMIT, MAX_LIMIT = 50, 200
PAGING = ("limit", "cursor")
CURSOR_HINT = "follow `next` and `previous` as they are"


class NewestFirst(BasePagination):
    """Page by key, never by offset or count: a page costs the same at any depth, and no row is shown twice."""

    request: Request
    keys: tuple[str, ...]
    page: list[Model]
    older: str | None
    newer: str | None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.request, self.keys = request, view.newest_first
        limit = read_limit(request, DEFAULT_LIMIT, MAX_LIMIT)
        backwards, position = _position(request.query_params.get("cursor"), queryset.model, self.keys)
        if position:
            queryset = queryset.filter(_beyond(self.keys, position, "gt" if backwards else "lt"))
        sign = "" if backwards else "-"
        ordered = queryset.order_by(*(sign + key for key in self.keys))
        rows = view.read_page(ordered, limit + 1, position, backwards)
        more, self.page = len(rows) > limit, rows[:limit]
        if backwards:
            self.page.reverse()
        self.older = self._cursor(-1) if self.page and (more or backwards) else None
        self.newer = self._cursor(0) if self.page and (more if backwards else bool(position)) else None
        return self.page

    def get_schema_operation_parameters(self, view: Any) -> list[Schema]:
        rows = number(minimum=1, maximum=MAX_LIMIT, default=DEFAULT_LIMIT)
        limit = {"schema": rows, "description": f"Rows of a page, 1 to {MAX_LIMIT}."}
        cursor = {"schema": text(minLength=1), "description": f"A place in the list: {CURSOR_HINT}."}
        return [{"name": "limit", "in": "query", **limit}, {"name": "cursor", "in": "query", **cursor}]

    def get_paginated_response_schema(self, schema: Schema) -> Schema:
        link = text(format="uri", nullable=True)
        name = schema["items"]["$ref"].rpartition("/")[2]
        cursor = text("The same place, as `cursor`.", nullable=True)
        links = {"next": link, "previous": link}
        cursors = {"next_cursor": cursor, "previous_cursor": cursor}
        return obj({"results": schema, **links, **cursors}, title=f"Paginated{name}List")

    def get_paginated_response(self, data: Any) -> Response:
        return Response(
            {
                "results": data,
                "next": self._link(self.older),
                "previous": self._link(self.newer),
                "next_cursor": self.older,
                "previous_cursor": self.newer,
            }
        )

    def _cursor(self, edge: int) -> str:
        row = self.page[edge]
        fields = [getattr(row, key) for key in self.keys]
        values = [value.isoformat() if hasattr(value, "isoformat") else str(value) for value in fields]
        text = json.dumps(["newer" if edge == 0 else "older", *values], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def _link(self, cursor: str | None) -> str | None:
        if cursor is None:
            return None
        parts = urlsplit(self.request.build_absolute_uri())
        query = [(n, v) for n, v in parse_qsl(parts.query, keep_blank_values=True) if n != "cursor"]
        return urlunsplit(parts._replace(query=urlencode([*query, ("cursor", cursor)])))


def _position(cursor: str | None, model: type[Model], keys: tuple[str, ...]) -> tuple[bool, list[Any]]:
    if cursor is None:
        return False, []
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        direction, *values = json.loads(base64.urlsafe_b64decode(padded))
        if direction not in ("newer", "older") or not all(isinstance(value, str) for value in values):
            raise ValueError(cursor)
        fields = [model._meta.get_field(key) for key in keys]
        read = [_key(field, value) for field, value in zip(fields, values, strict=True)]
    except (ValueError, TypeError, ValidationError, RecursionError):
        raise invalid("cursor", "is not a place in this list", CURSOR_HINT, "unknown_cursor") from None
    return direction == "newer", read


def _key(field: Any, value: str) -> Any:
    """Read a key as we write it: an instant in UTC, a text that a row can have."""
    read = field.to_python(value)
    if isinstance(read, datetime) and read.utcoffset() != timedelta(0) or not is_storable(value):
        raise ValueError(value)
    return read


def _beyond(keys: tuple[str, ...], values: list[Any], comparison: str) -> Q:
    """Write (a, b) < (x, y) in a form whose first part the index and the partitions can use."""
    found = Q()
    for depth in range(len(keys)):
        equal = dict(zip(keys[:depth], values, strict=False))
        found |= Q(**equal, **{f"{keys[depth]}__{comparison}": values[depth]})
    return found & Q(**{f"{keys[0]}__{comparison}e": values[0]})
