"""Who is asking: a tenant's key. What it may do: its role."""

from typing import TYPE_CHECKING

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from auditlog.context import identify
from auditlog.models import ActorKind
from jobs import tenants
from jobs.models import ApiKey, Role, Tenant

if TYPE_CHECKING:
    # The framework's views load this module while they are being loaded themselves.
    from rest_framework.views import APIView

SCHEME = "Bearer"


class KeyHolder:
    """What DRF calls the user. Nobody in Django's sense: a key belongs to a tenant, not to a person."""

    is_authenticated = True
    is_active = True
    pk = None

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.tenant = key.tenant

    def __str__(self) -> str:
        return str(self.key)


class ApiKeyAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[KeyHolder, ApiKey] | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return None
        if scheme.lower() != SCHEME.lower() or not text.strip():
            raise AuthenticationFailed("the Authorization header is not `Bearer <key>`")
        key = tenants.find_key(text.strip())
        if key is None:
            raise AuthenticationFailed("the key is wrong, expired or revoked")
        tenants.note_use(key)
        identify(ActorKind.KEY, str(key))
        return KeyHolder(key), key

    def authenticate_header(self, request: Request) -> str:
        return f'{SCHEME} realm="beatkeeper"'


class RolePermission(BasePermission):
    """Reading needs the lowest role; a view says in `write_role` what its writing needs."""

    message = "this needs a key with another role"

    def has_permission(self, request: Request, view: "APIView") -> bool:
        if not isinstance(request.auth, ApiKey):
            return False
        needed = (
            Role.VIEWER if request.method in SAFE_METHODS else Role(getattr(view, "write_role", Role.ADMIN))
        )
        self.message = f"this needs the role {needed}; the key has {request.auth.role}"
        return tenants.may(request.auth.role, needed)


class WorkerPermission(BasePermission):
    """The worker's protocol: for keys with the role worker, and for them alone."""

    message = "this needs a key with the role worker"

    def has_permission(self, request: Request, view: "APIView") -> bool:
        return isinstance(request.auth, ApiKey) and tenants.may(request.auth.role, Role.WORKER)


def key_of(request: Request) -> ApiKey:
    key = request.auth
    assert isinstance(key, ApiKey)  # noqa: S101 - RolePermission let nobody else in
    return key


def tenant_of(request: Request) -> Tenant:
    return key_of(request).tenant
