"""Give every request an id and an actor."""

import ipaddress
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from auditlog.context import SYSTEM, Acting, Actor, acting, clean_request_id
from auditlog.models import ActorKind


class AuditContextMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = clean_request_id(request.headers.get("X-Request-Id", ""))
        with acting(Acting(lambda: user_of(request), request_id, address_of(request))):
            response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


def user_of(request: HttpRequest) -> Actor:
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return SYSTEM
    return Actor(ActorKind.USER, user.get_username())


def address_of(request: HttpRequest) -> str | None:
    """Return the caller's address. Of X-Forwarded-For, trust only what our own proxies added."""
    hops = [request.META.get("REMOTE_ADDR", "")]
    if settings.TRUSTED_PROXIES:
        forwarded = request.headers.get("X-Forwarded-For", "")
        hops = [*(hop.strip() for hop in forwarded.split(",") if hop.strip()), *hops]
    found = hops[-min(settings.TRUSTED_PROXIES + 1, len(hops))]
    try:
        return str(ipaddress.ip_address(found))
    except ValueError:
        return None
