"""Authenticate callers of the API as principals, and check their roles."""

from typing import TYPE_CHECKING

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from auditlog.context import identify
from auditlog.models import ActorKind
from jobs.access import api_keys, request_limits
from jobs.access.principal import Principal
from jobs.models import Role, Tenant

if TYPE_CHECKING:
    # The framework's views load this module while they are being loaded themselves.
    from rest_framework.views import APIView

SCHEME = "Bearer"
# What a 401 says of how to authenticate.
CHALLENGE = f'{SCHEME} realm="beatkeeper"'


class BearerAuthentication(BaseAuthentication):
    """Authenticate by a bearer token. A new way to log in is a subclass that reads its tokens."""

    def principal(self, token: str) -> Principal | None:
        """Return whose token this is, or None to leave it to the next authenticator of the settings."""
        raise NotImplementedError

    def authenticate(self, request: Request) -> tuple[Principal, Principal] | None:
        given = request.headers.get("Authorization", "")
        if not given:
            return None
        try:
            principal = self.principal(read_token(given))
        except AuthenticationFailed:
            request_limits.count_wrong_credentials()
            raise
        if principal is None:
            return None
        identify(principal.kind, principal.name)
        return principal, principal

    def authenticate_header(self, request: Request) -> str:
        return CHALLENGE


def read_token(header: str) -> str:
    scheme, _, text = header.partition(" ")
    if scheme.lower() != SCHEME.lower() or not text.strip():
        raise AuthenticationFailed("the Authorization header is not `Bearer <key>`")
    return text.strip()


class ApiKeyAuthentication(BearerAuthentication):
    """Authenticate by a tenant's key. The last authenticator: it refuses what is no valid key."""

    def principal(self, token: str) -> Principal:
        key = api_keys.find_key(token)
        if key is None:
            raise AuthenticationFailed("the key is wrong, expired or revoked")
        api_keys.note_use(key)
        return Principal(ActorKind.KEY, str(key.pk), str(key), key.tenant, Role(key.role), key.pool)


class RolePermission(BasePermission):
    """Require the lowest role for reading, and the view's `write_role` for writing."""

    message = "this needs a key with another role"

    def has_permission(self, request: Request, view: "APIView") -> bool:
        principal = request.auth
        if not isinstance(principal, Principal):
            return False
        writing = Role(getattr(view, "write_role", Role.ADMIN))
        needed = Role.VIEWER if request.method in SAFE_METHODS else writing
        self.message = f"this needs the role {needed}; the key has {principal.role}"
        return principal.may(needed)


class WorkerPermission(BasePermission):
    """Require the role worker: the worker's protocol is for no other."""

    message = "this needs a key with the role worker"

    def has_permission(self, request: Request, view: "APIView") -> bool:
        return isinstance(request.auth, Principal) and request.auth.may(Role.WORKER)


class KeyPermission(BasePermission):
    """Admit every valid key, whatever its role."""

    message = "this needs a key"

    def has_permission(self, request: Request, view: "APIView") -> bool:
        return isinstance(request.auth, Principal)


def principal_of(request: Request) -> Principal:
    principal = request.auth
    assert isinstance(principal, Principal)  # noqa: S101 - the permissions admit nobody else
    return principal


def tenant_of(request: Request) -> Tenant:
    return principal_of(request).tenant
