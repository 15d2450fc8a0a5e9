"""Represent an authenticated caller of the API, whatever the caller logged in with."""

from dataclasses import dataclass

from auditlog.models import ActorKind
from jobs.access.roles import may
from jobs.models import Pool, Role, Tenant


@dataclass(frozen=True)
class Principal:
    """Say who acts, in which tenant and with which role. Authentication makes it; everything behind reads only this."""

    kind: ActorKind
    # The id of the key or account, as the authenticator knows it, and the name that audit entries show.
    id: str
    name: str
    tenant: Tenant
    role: Role
    # The one pool that a worker's principal is limited to.
    pool: Pool | None = None

    # Django REST framework calls it the user of a request.
    is_authenticated = True
    is_active = True
    pk = None

    def __post_init__(self) -> None:
        if (self.role == Role.WORKER) != (self.pool is not None):
            raise ValueError("a principal has a pool if its role is worker, and only then")

    def __str__(self) -> str:
        return self.name

    def may(self, needed: Role) -> bool:
        return may(self.role, needed)
