"""Filter lists. Each query parameter has a reader that refuses an unusable value in the API's words."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from django import forms
from django_filters import Filter, FilterSet
from drf_spectacular.drainage import set_override

from jobs.validation.checks import abbreviate, invalid, listed
from jobs.validation.schema import Schema, text

# Takes what stands in the query and the parameter's name.
Reader = Callable[[str, str], Any]


class QueryField(forms.Field):
    """Read the text of a parameter: all of a repeated one with `many`, else the last."""

    def __init__(self, read: Callable[[str], Any], *, many: bool) -> None:
        super().__init__(required=False, widget=forms.MultipleHiddenInput if many else forms.HiddenInput)
        self.read = read
        self.many = many

    def clean(self, value: Any) -> Any:
        if self.many:
            return [self.read(one) for one in value]
        return None if value is None else self.read(value)


def read_text(value: str, field: str) -> str:
    if not value:
        raise invalid(field, f"{field} is empty", "a value, or leave it out")
    return value


class QueryFilter(Filter):  # type: ignore[misc]
    """Filter by a query parameter, and describe it in OpenAPI."""

    name = ""

    def __init__(self, about: str, *, read: Reader = read_text, many: bool = False, **kwargs: Any) -> None:
        schema: Schema = kwargs.pop("schema", text(minLength=1))
        super().__init__(**kwargs)
        self.read, self.many = read, many
        shape = {"type": "array", "items": schema} if many else schema
        set_override(self, "field", {**shape, "description": about})

    @property
    def field(self) -> QueryField:
        return QueryField(lambda value: self.read(value, self.name), many=self.many)


class NamedFilterSet(FilterSet):  # type: ignore[misc]
    """Tell each filter the name of its parameter, which its refusals need."""

    @classmethod
    def get_filters(cls) -> dict[str, QueryFilter]:
        filters: dict[str, QueryFilter] = super().get_filters()
        for name, found in filters.items():
            found.name = name
        return filters


def choice(about: str, allowed: Iterable[str], wrong: str, **kwargs: Any) -> QueryFilter:
    """Filter by one of the allowed words."""
    allowed = [str(value) for value in allowed]

    def read(value: str, field: str) -> str:
        if value not in allowed:
            raise invalid(field, f"{abbreviate(value)} {wrong}", listed(allowed, "one of"))
        return value

    return QueryFilter(about, read=read, schema=text(enum=allowed), **kwargs)


def read_uuid(value: str, field: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise invalid(field, f"{abbreviate(value)} is not an id", "ids are UUIDs") from None
