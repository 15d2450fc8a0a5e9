"""Read a row of several tables by a statement that is composed once.

The ORM composes its SQL anew for each query, which takes several times as long as PostgreSQL's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from django.db import connection
from django.db.models import Model


class Joined:
    """One row of each model, by aliases that the rest of the statement uses, and what else it finds out."""

    def __init__(self, models: Mapping[str, type[Model]], rest: str, *more: str) -> None:
        self.models = models
        self.rest = rest
        self.more = more

    def first(self, values: Mapping[str, Any]) -> list[Any] | None:
        """Return an instance of each model, None for one that the join did not find; None without a row."""
        with connection.cursor() as cursor:
            cursor.execute(self._statement, values)
            row = cursor.fetchone()
        if row is None:
            return None
        rest = iter(row)
        return [*(part.instance([next(rest) for _ in part.names]) for part in self._parts), *rest]

    @cached_property
    def _parts(self) -> list[Part]:
        return [Part(model) for model in self.models.values()]

    @cached_property
    def _statement(self) -> str:
        columns = [
            f"{alias}.{connection.ops.quote_name(column)}"
            for alias, part in zip(self.models, self._parts, strict=True)
            for column in part.columns
        ]
        return f"SELECT {', '.join([*columns, *self.more])} {self.rest} LIMIT 1"


class Part:
    """Make instances of one model from their columns."""

    def __init__(self, model: type[Model]) -> None:
        fields = model._meta.concrete_fields
        self.model = model
        self.names = [field.attname for field in fields]
        self.columns = [field.column or "" for field in fields]
        self.key = self.names.index(model._meta.pk.attname)
        self.converters = [
            (place, convert)
            for place, field in enumerate(fields)
            for convert in field.get_db_converters(connection)
        ]

    def instance(self, row: list[Any]) -> Model | None:
        if row[self.key] is None:
            return None
        for place, convert in self.converters:
            row[place] = convert(row[place], None, connection)
        return self.model.from_db(connection.alias, self.names, row)
