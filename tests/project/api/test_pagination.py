"""Read cursors that somebody else wrote."""

import base64
import json

import pytest

from jobs.models import Role
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_tenant


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("secrets", ["2026-01-01T00:00:00+00:00", "a\x00"]),
        ("secrets", ["2026-01-01T00:00:00+00:00", "\ud800"]),
        ("secrets", ["2026-01-01", "a"]),
        ("secrets", ["9999-12-31T23:59:59-23:59", "a"]),
        ("secrets", ["0001-01-01T00:00:00+23:59", "a"]),
        ("pools", ["2026-01-01T00:00:00", "a"]),
    ],
)
def test_a_cursor_that_we_would_not_write_is_refused(path: str, values: list[str]) -> None:
    caller = Caller(make_tenant(), Role.VIEWER)
    text = json.dumps(["older", *values]).encode()
    refusal(caller.get(path, cursor=base64.urlsafe_b64encode(text).decode()), 400, "cursor")


@pytest.mark.django_db
@pytest.mark.parametrize("at", ["9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+00:00"])
def test_the_ends_of_time_are_places_in_a_list(at: str) -> None:
    caller = Caller(make_tenant(), Role.VIEWER)
    cursor = base64.urlsafe_b64encode(json.dumps(["older", at, "a"]).encode()).decode()
    assert caller.get("secrets", cursor=cursor).json()["results"] == []
