"""A column is declared in one line and behaves like a method of the admin."""

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.admin.columns import column, json_column, label_column, moment_column
from jobs.admin.formatting import NOTHING
from jobs.admin.html import GOOD

AT = datetime(2026, 11, 18, 12, 0, tzinfo=timezone.utc)


class Page:
    """An admin's stand-in: columns are bound to it as methods are."""

    name = column("name", lambda row: row.name, ordering="name")
    created = moment_column("created_at")
    used = moment_column("used_at", "last used", empty="never")
    state = label_column("state", {"in_use": GOOD})
    target = json_column("target")


def show(shown: str, /, **values: Any) -> str:
    return str(getattr(Page(), shown)(SimpleNamespace(**values)))


@pytest.mark.parametrize("value", [None, ""])
def test_an_empty_value_is_a_dash(value: Any) -> None:
    assert show("name", name=value) == NOTHING


def test_a_value_is_shown_also_if_it_is_zero() -> None:
    assert (show("name", name="settle"), show("name", name=0)) == ("settle", "0")


def test_a_column_says_what_it_is_and_by_what_it_is_sorted() -> None:
    page: Any = Page()
    assert (page.name.short_description, page.name.admin_order_field) == ("name", "name")
    assert (page.created.short_description, page.created.admin_order_field) == ("created", "created_at")
    assert (page.used.short_description, page.used.admin_order_field) == ("last used", "used_at")


def test_an_instant_may_be_missing() -> None:
    assert "18 Nov" in show("created", created_at=AT)
    assert (show("created", created_at=None), show("used", used_at=None)) == (NOTHING, "never")


def test_a_state_is_a_label_in_its_colour() -> None:
    assert "in use" in show("state", state="in_use") and "green" in show("state", state="in_use")


def test_json_hides_its_secrets() -> None:
    shown = show(
        "target", target={"url": "https://example.com", "headers": {"Authorization": "Bearer xyzzy"}}
    )
    assert "example.com" in shown and "xyzzy" not in shown
