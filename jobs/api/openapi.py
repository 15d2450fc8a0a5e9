"""Describe operations in OpenAPI."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.serializers import BaseSerializer, Serializer

from jobs.validation.schema import Schema, number, obj, ref, text

Decorator = Callable[[Any], Any]
REASONS = {
    400: "The request cannot be used as written; `field` names the part, `errors` all of them.",
    401: "No valid key.",
    403: "The key's role does not allow it.",
    404: "Missing, or of another tenant.",
    405: "The address has no such method; `Allow` lists those that it has.",
    409: "The present state does not allow it.",
    412: "Somebody has changed it since: `detail` says who, and when.",
    413: "The body is too large.",
    414: "The address is too long.",
    415: "The body is not of the media type that the operation takes.",
    422: "The Idempotency-Key was used for another request.",
    429: "Too many requests, or wrong keys from this address, in this minute; `Retry-After` says when it is over.",
    503: "Not now: the database is not available, or too many requests wait.",
}
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    text(maxLength=200, pattern="^[ -~]*$"),
    OpenApiParameter.HEADER,
    description="Any text of your own, a UUID for example. The same request with the same key is done once and "
    "answered the same for a day.",
)


class OfView:
    """Stand for the serializer of the view that an operation belongs to."""


def operation(
    name: str,
    summary: str,
    *,
    tag: str = "",
    takes: Schema | type[Serializer[Any]] | None = None,
    gives: Schema | type[Serializer[Any]] | BaseSerializer[Any] | type[OfView] | None = OfView,
    status: int = 200,
    repeated: int = 0,
    errors: Sequence[int] = (),
    bodiless: Mapping[int, str] | None = None,
    parameters: Sequence[OpenApiParameter] = (),
    once: bool = False,
    about: str = "",
) -> Decorator:
    """Describe a method of a view. Unless they are given, the view names the tag and the serializer of the answer.

    `repeated` is the status where the request finds done what it is for.
    """
    return extend_schema(
        operation_id=name,
        summary=summary,
        description=about,
        tags=[tag] if tag else None,
        request={"application/json": takes} if takes else None,
        responses={
            status: None if status == 204 else gives,
            **({repeated: gives} if repeated else {}),
            **{code: OpenApiResponse(None, says) for code, says in (bodiless or {}).items()},
            **problems(*errors),
        },
        parameters=[*parameters, *([IDEMPOTENCY_KEY] if once else [])],
    )


# It answers what it has made, and is done once for each Idempotency-Key.
creation = partial(operation, status=201, once=True)


class ViewSchema(AutoSchema):
    """Take from the view what its operations do not say: the tag and the serializer of the answer."""

    def get_tags(self) -> list[str]:
        tag: str = getattr(self.view, "tag", "")
        return [tag] if tag else list(super().get_tags())

    def _resolve_path_parameters(self, variables: list[str]) -> list[Schema]:
        """Describe ids, and other parts of the address as the view does."""
        found: list[Schema] = super()._resolve_path_parameters(variables)  # type: ignore[no-untyped-call]
        described = getattr(self.view, "path_schemas", {})
        for parameter in found:
            if parameter["name"].endswith("_id"):
                parameter["schema"] = text(format="uuid")
            elif parameter["name"] in described:
                parameter["schema"] = described[parameter["name"]]
        return found

    def _get_response_for_code(self, serializer: Any, *args: Any, **kwargs: Any) -> Schema:
        view: Any = self.view
        given = view.serializer_class if serializer is OfView else serializer
        found: Schema = super()._get_response_for_code(given, *args, **kwargs)  # type: ignore[no-untyped-call]
        return found


def problems(*errors: int) -> dict[Any, Any]:
    return {(code, "application/problem+json"): ref("Problem") for code in (401, 403, *errors)}


def query(name: str, about: str, kind: Any = str, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, kind, OpenApiParameter.QUERY, description=about, **more)


PROBLEM = obj(
    {
        "type": text(format="uri"),
        "title": text(),
        "status": number(),
        "code": text("Stable; for programs."),
        "field": text("The part of the request, as `schedule.cron`.", nullable=True),
        "detail": text("For people."),
        "hint": text("What is allowed, or what to do.", nullable=True),
        "request_id": text(nullable=True),
        "link": text("What stands in the way."),
        "errors": {
            "type": "array",
            "description": "All mistakes, when there are several.",
            "items": obj(
                {"field": text(nullable=True), "code": text(), "detail": text(), "hint": text(nullable=True)},
                title="ProblemError",
            ),
        },
    },
    may_lack=("link", "errors"),
)


class ClosedBody(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """State that bodies take no unknown fields."""

    target_class = "jobs.api.serializers.BodySerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: str) -> Schema:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return {**schema, "additionalProperties": False}


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "jobs.api.authentication.BearerAuthentication"
    match_subclasses = True
    name = "key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A key of your tenant: `bk_…`."}
