"""Says in OpenAPI what an operation takes and answers. The schemas themselves are named components."""

from collections.abc import Callable, Sequence
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiParameter, extend_schema

Schema = dict[str, Any]
Decorator = Callable[[Any], Any]
REASONS = {
    400: "The request cannot be used as written; `field` names the part, `errors` all of them.",
    401: "No valid key.",
    403: "The key's role does not allow it.",
    404: "Missing, or of another tenant.",
    409: "The present state does not allow it.",
    422: "The Idempotency-Key was used for another request.",
}
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Any text of your own, a UUID for example. The same request with the same key is done once and "
    "answered the same for a day.",
)


def operation(
    name: str,
    summary: str,
    *,
    tag: str,
    takes: Schema | None = None,
    gives: Schema | None = None,
    status: int = 200,
    errors: Sequence[int] = (),
    parameters: Sequence[OpenApiParameter] = (),
    about: str = "",
) -> Decorator:
    responses: dict[Any, Any] = {status: gives}
    for code in (401, 403, *errors):
        responses[code, "application/problem+json"] = {**ref("Problem"), "description": REASONS[code]}
    return extend_schema(
        operation_id=name,
        summary=summary,
        description=about,
        tags=[tag],
        request={"application/json": takes} if takes else None,
        responses=responses,
        parameters=list(parameters),
    )


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def query(name: str, about: str, kind: Any = str, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, kind, OpenApiParameter.QUERY, description=about, **more)


def obj(properties: Schema, *, required: Sequence[str] = (), **more: Any) -> Schema:
    schema = {"type": "object", "properties": properties, **more}
    return {**schema, "required": list(required)} if required else schema


def text(about: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": about} if about else {}), **more}


def number(about: str = "", **more: Any) -> Schema:
    return {"type": "integer", **({"description": about} if about else {}), **more}


def page_of(name: str) -> Schema:
    link = text(format="uri", nullable=True)
    return obj(
        {"results": {"type": "array", "items": ref(name)}, "next": link, "previous": link},
        required=("results", "next", "previous"),
    )


PAGING = (
    query("limit", "Rows of a page, 1 to 200.", int, default=50),
    query("cursor", "A place in the list: follow `next` and `previous` as they are."),
)
INSTANT = text("UTC, whole milliseconds.", format="date-time")
MAYBE_INSTANT = {**INSTANT, "nullable": True}
DURATION = {
    "oneOf": [
        text("ISO 8601: PT30S, PT1H30M, P1D.", format="duration"),
        {"type": "number", "description": "Seconds."},
    ]
}
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
                {"field": text(nullable=True), "code": text(), "detail": text(), "hint": text(nullable=True)}
            ),
        },
    },
    required=("type", "title", "status", "code", "detail"),
)


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "jobs.api.authentication.ApiKeyAuthentication"
    name = "key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A key of your tenant: `bk_…`."}
