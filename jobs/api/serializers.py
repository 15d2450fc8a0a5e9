"""Define the fields and bodies that several resources share."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from drf_spectacular.drainage import set_override
from rest_framework import serializers
from rest_framework.fields import SkipField, empty
from rest_framework.request import Request

from jobs.api.requests import BASE, instant
from jobs.validation import instants
from jobs.validation.checks import MAX_REASON, Json, expect_object, read_reason
from jobs.validation.schema import Schema, obj, text


class InstantField(serializers.DateTimeField):
    """Write an instant in UTC and whole milliseconds."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"help_text": "UTC, whole milliseconds; what is finer is cut off.", **kwargs})

    def to_representation(self, value: datetime) -> str:
        return instant(value)


class GivenInstantField(InstantField):
    """Read an instant of a body, if there is one."""

    def run_validation(self, data: Any = empty) -> datetime | None:
        if data is empty:
            raise SkipField
        return None if data is None else instants.read(data, str(self.field_name))


class PlainField(serializers.Field[Any, Any, Any, Any]):
    """Pass a value through as it is, described by its own schema."""

    def __init__(self, schema: Schema, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        set_override(self, "field", schema)

    def run_validation(self, data: Any = empty) -> Any:
        return super().run_validation(data) if data is empty else data

    def to_representation(self, value: Any) -> Any:
        return value


class LinksField(PlainField):
    """Write addresses below /api/v1. One of `may_lack` is left out if its function returns nothing."""

    def __init__(self, may_lack: Sequence[str] = (), /, **addresses: Callable[[Any], str | None]) -> None:
        super().__init__(obj({name: text() for name in addresses}, may_lack=may_lack), source="*")
        self.addresses = addresses

    def to_representation(self, value: Any) -> dict[str, str]:
        found: dict[str, str | None] = {name: address(value) for name, address in self.addresses.items()}
        return {name: f"{BASE}{address}" for name, address in found.items() if address}


# A body without unknown fields; its fields refuse in `run_validation` what they cannot use. A docstring would stand in
# OpenAPI with every body.
class BodySerializer(serializers.Serializer[Any]):
    def to_internal_value(self, data: Any) -> Json:
        given = expect_object(data, "", self.fields)
        found: Json = super().to_internal_value(given)
        return found

    @classmethod
    def read(cls, request: Request) -> Json:
        return cls(context={"request": request}).to_internal_value(request.data)


class ReasonField(serializers.CharField):
    def __init__(self, about: str = "Kept in the audit trail.") -> None:
        super().__init__(required=False, max_length=MAX_REASON, help_text=about)

    def run_validation(self, data: Any = empty) -> str:
        return read_reason("" if data is empty else data)


class ReasonSerializer(BodySerializer):
    reason = ReasonField()
