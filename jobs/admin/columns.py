"""Declare a column of a list, or a read-only field of a page, in one line."""

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import admin

from jobs.admin.formatting import NOTHING, as_json, moment
from jobs.admin.html import link, page_of, state_label


def column(description: str, show: Callable[[Any], object], *, ordering: str | None = None) -> Any:
    """Show the value of `show(row)`, or a dash where it is empty."""

    @admin.display(description=description, ordering=ordering)
    def shown(model_admin: object, row: Any) -> object:
        value = show(row)
        return NOTHING if value is None or value == "" else value

    return shown


def moment_column(field: str, description: str = "", *, empty: str = NOTHING) -> Any:
    """Show an instant; without a description, `created_at` is described as `created`."""
    return column(
        description or field.removesuffix("_at").replace("_", " "),
        lambda row: moment(getattr(row, field)) if getattr(row, field) else empty,
        ordering=field,
    )


def label_column(field: str, colours: Mapping[Any, str], description: str = "state") -> Any:
    """Show a state as a coloured label."""
    return column(description, lambda row: state_label(getattr(row, field), colours), ordering=field)


def link_column(name: str) -> Any:
    """Show a related row as a link to its page."""
    return column(name, lambda row: link(page_of(getattr(row, name)), getattr(row, name)))


def json_column(field: str, description: str = "") -> Any:
    """Show JSON, with its secrets masked."""
    return column(description or field, lambda row: as_json(getattr(row, field)))
