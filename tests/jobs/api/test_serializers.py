"""The fields and bodies that resources share."""

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from rest_framework import serializers

from jobs.api.serializers import BodySerializer, InstantField, LinksField, PlainField, ReasonField
from jobs.errors import InvalidInput


class ThingSerializer(serializers.Serializer[Any]):
    at = InstantField()
    ended_at = InstantField(allow_null=True)
    spec = PlainField({"type": "object"})
    links = LinksField(self=lambda thing: f"/things/{thing.pk}", parent=lambda thing: thing.parent)


class ThingBodySerializer(BodySerializer):
    reason = ReasonField()
    spec = PlainField({"type": "object"}, required=False)


def test_an_answer_spells_instants_and_leaves_out_links_to_nothing() -> None:
    at = datetime(2026, 11, 18, 12, 0, 0, 123_999, timezone.utc)
    thing = SimpleNamespace(pk=7, at=at, ended_at=None, spec={"a": [1]}, parent=None)
    assert ThingSerializer(thing).data == {
        "at": "2026-11-18T12:00:00.123Z",
        "ended_at": None,
        "spec": {"a": [1]},
        "links": {"self": "/api/v1/things/7"},
    }


def read(body: object) -> dict[str, Any]:
    return ThingBodySerializer().to_internal_value(body)


def test_a_body_is_read_with_what_is_left_out() -> None:
    assert read({}) == {"reason": ""}
    assert read({"reason": "so", "spec": None}) == {"reason": "so", "spec": None}


@pytest.mark.parametrize(
    ("body", "field", "detail", "code"),
    [
        ([], "", "[] is not an object", "wrong_type"),
        (None, "", "null is not an object", "wrong_type"),
        ({"reasons": 1, "reason": 1}, "reasons", '"reasons" is not known', "unknown_field"),
        ({"reason": 1}, "reason", "1 is not a reason", "invalid"),
        ({"reason": None}, "reason", "null is not a reason", "invalid"),
        ({"reason": "x" * 501}, "reason", '"' + "x" * 58 + "… is not a reason", "invalid"),
    ],
)
def test_a_body_is_refused_in_the_words_of_the_api(body: Any, field: str, detail: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(body)
    assert (refused.value.field, refused.value.detail, refused.value.code) == (field, detail, code)
