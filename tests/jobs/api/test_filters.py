"""A filter reads its query parameter, and refuses it by name."""

from uuid import UUID

import pytest
from django.http import QueryDict

from jobs.api.filters import NamedFilterSet, QueryFilter, choice, read_uuid
from jobs.errors import InvalidInput
from jobs.models import Job

WORDS = ("red", "green")


class Filters(NamedFilterSet):
    colour = choice("The colour.", WORDS, "is not a colour")
    shades = choice("Alternatives.", WORDS, "is not a shade", many=True)
    run = QueryFilter("The run.", read=read_uuid)
    text = QueryFilter("Any text.")


def read(query: str) -> dict[str, object]:
    filters = Filters(QueryDict(query), queryset=Job.objects.none())
    assert filters.is_valid()
    return {name: value for name, value in filters.form.cleaned_data.items() if value not in (None, [])}


def test_what_is_not_given_has_no_value() -> None:
    assert read("") == {}


def test_of_a_parameter_given_twice_the_last_counts_or_all_do() -> None:
    assert read("colour=red&colour=green&shades=red&shades=green") == {
        "colour": "green",
        "shades": ["red", "green"],
    }


def test_text_is_taken_as_it_is() -> None:
    assert read("text=%20a%20") == {"text": " a "}


def test_an_id_is_read() -> None:
    assert read(f"run={UUID(int=7)}") == {"run": UUID(int=7)}


@pytest.mark.parametrize(
    ("query", "field", "detail", "hint"),
    [
        ("colour=blue", "colour", '"blue" is not a colour', "one of green, red"),
        ("colour=", "colour", '"" is not a colour', "one of green, red"),
        ("run=", "run", '"" is not an id', "ids are UUIDs"),
        ("text=", "text", "text is empty", "a value, or leave it out"),
        ("shades=red&shades=", "shades", '"" is not a shade', "one of green, red"),
        ("run=7", "run", '"7" is not an id', "ids are UUIDs"),
        ("run=7&colour=blue", "colour", '"blue" is not a colour', "one of green, red"),
    ],
)
def test_an_unusable_value_is_refused_by_its_name(query: str, field: str, detail: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(query)
    assert (refused.value.field, refused.value.detail, refused.value.hint) == (field, detail, hint)
