"""Read a row of several tables by a statement that is composed once.

The ORM composes its SQL anew for each query, which takes several times as long as PostgreSQL's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from django.db import connection
from django.db.models import Field, Model


class Joined:
    """One row of each model, by aliases that the rest of the statement uses."""

    def __init__(self, models: Mapping[str, type[Model]], rest: str) -> None:
        self.models = models
        self.rest = rest

    def first(self, values: Mapping[str, Any]) -> list[Any] | None:
        """Return an instance of each model, None for one that the join did not find; None without a row."""
        with connection.cursor() as cursor:
            cursor.execute(self._statement, values)
            row = cursor.fetchone()
        if row is None:
            return None
        rest = iter(row)
        return [self._instance(model, fields, [next(rest) for _ in fields]) for model, fields in self._fields]

    @cached_property
    def _fields(self) -> list[tuple[type[Model], list[Field[Any, Any]]]]:
        return [(model, list(model._meta.concrete_fields)) for model in self.models.values()]

    @cached_property
    def _statement(self) -> str:
        columns = [
            f"{alias}.{connection.ops.quote_name(field.column or '')}"
            for alias, (_, fields) in zip(self.models, self._fields, strict=True)
            for field in fields
        ]
        return f"SELECT {', '.join(columns)} {self.rest} LIMIT 1"

    def _instance(self, model: type[Model], fields: list[Field[Any, Any]], row: list[Any]) -> Model | None:
        values = []
        for field, value in zip(fields, row, strict=True):
            for convert in field.get_db_converters(connection):
                value = convert(value, None, connection)
            values.append(value)
        found = model.from_db(connection.alias, [field.attname for field in fields], values)
        return None if found.pk is None else found
