"""Simple fields are declared by one call; the call says everything that follows from it."""

from datetime import timedelta
from typing import Any, cast

import pytest

from jobs.errors import InvalidInput
from jobs.models import Tenant
from jobs.spec.field_types import Field, Origin, choice, duration, integer

ORIGIN = Origin(cast(Tenant, None), "")
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
LIMIT = duration("max_duration", SECOND, DAY, "All attempts together.")
TIMEOUT = duration("timeout", SECOND, DAY, "Of an attempt.", default="PT1H")
NUMBER = integer("most", 1, 10, "Runs at once.")
WORD = choice(
    "order", "an order", {"oldest": "the oldest first", "newest": "the newest first"}, "Which go first."
)


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        (LIMIT, None, {"max_duration_ms": None}),
        (LIMIT, "PT2S", {"max_duration_ms": 2000}),
        (TIMEOUT, 0.5 + 0.5, {"timeout_ms": 1000}),
        (NUMBER, None, {"most": None}),
        (NUMBER, 10, {"most": 10}),
        (WORD, "newest", {"order": "newest"}),
    ],
)
def test_what_is_read_is_stored_and_shown_again(field: Field, value: Any, stored: dict[str, Any]) -> None:
    assert field.read_columns(value, ORIGIN) == stored
    [kept] = stored.values()
    assert field.read_columns(field.as_json(kept), ORIGIN) == stored


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        (LIMIT, "P2D", "out_of_range"),
        (TIMEOUT, None, "invalid"),
        (NUMBER, 0, "out_of_range"),
        (NUMBER, "2", "wrong_type"),
        (WORD, "last", "invalid"),
        (WORD, ["newest"], "invalid"),
    ],
)
def test_what_is_refused_names_the_field(field: Field, value: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        field.read_columns(value, ORIGIN)
    [error] = refused.value.errors
    assert (error.field, error.code) == (field.name, code) and error.hint


def test_the_document_says_what_is_read() -> None:
    assert NUMBER.property["minimum"] == 1 and NUMBER.property["nullable"]
    assert TIMEOUT.property["default"] == "PT1H" and "nullable" not in TIMEOUT.property
    assert LIMIT.property["nullable"] and WORD.property["enum"] == ["oldest", "newest"]


def test_an_input_left_empty_is_null_where_null_is_allowed() -> None:
    assert LIMIT.join({"max_duration": ""}) is None and LIMIT.join({"max_duration": 2.0}) == 2.0
    assert TIMEOUT.join({"timeout": ""}) == ""
