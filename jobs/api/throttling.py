"""Throttle requests, and say in the headers of answers what is left."""

from typing import TYPE_CHECKING

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from jobs.access import request_limits
from jobs.access.limiter import SECONDS, Standing
from jobs.access.principal import Principal

if TYPE_CHECKING:
    # The framework's views load this module while they are being loaded themselves.
    from rest_framework.views import APIView


class RequestLimits(BaseThrottle):
    """Count a request against the limits of its key and of its tenant."""

    def allow_request(self, request: Request, view: "APIView") -> bool:
        if isinstance(request.auth, Principal):
            view.headers.update(headers_of(request_limits.count_request(request.auth)))
        return True


def headers_of(standings: list[Standing]) -> dict[str, str]:
    """Write what draft-ietf-httpapi-ratelimit-headers-10 defines."""
    if not standings:
        return {}
    policies = [f'"{limit.name}";q={limit.per_minute};w={SECONDS}' for limit, _, _ in standings]
    left = [f'"{limit.name}";r={left};t={seconds}' for limit, left, seconds in standings]
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(left)}
