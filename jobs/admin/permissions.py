"""Decide what a member of staff sees and changes: superusers everything, others by membership (promise 9)."""

from django.http import HttpRequest

from jobs.access.roles import may
from jobs.models import Membership, Role


def roles(request: HttpRequest) -> dict[int, str]:
    """Return the user's role in each of their tenants, read once per request."""
    found: dict[int, str] | None = getattr(request, "_roles", None)
    if found is None:
        found = dict(Membership.objects.filter(user_id=request.user.pk or 0).values_list("tenant_id", "role"))
        request._roles = found  # type: ignore[attr-defined]
    return found


def is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and getattr(request.user, "is_superuser", False))


def own_tenants(request: HttpRequest, needed: Role = Role.VIEWER) -> list[int]:
    return [tenant for tenant, role in roles(request).items() if may(role, needed)]


def may_act(request: HttpRequest, tenant_id: int | None, needed: Role) -> bool:
    """Check the user's role in a tenant, or in any of their tenants where `tenant_id` is None."""
    if is_superuser(request):
        return True
    allowed = own_tenants(request, needed)
    return tenant_id in allowed if tenant_id is not None else bool(allowed)
