"""Who may do what: keys, memberships, roles. A tenant sees and touches only its own (promise 9)."""

import hmac
import re
import secrets
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from auditlog.actions import Action
from auditlog.record import record
from jobs.database_clock import database_now
from jobs.input_checks import refused
from jobs.models import ApiKey, Membership, Pool, Role, Tenant

KEY_TEXT = re.compile(r"bk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
USE_NOTED_EVERY = timedelta(minutes=1)
# What a person's role includes besides itself. A worker's includes nothing, and is in no other.
RANK = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}
# Compared with when no key has the prefix, so that the answer takes as long.
NO_DIGEST = "0" * 64


@transaction.atomic
def create_key(
    tenant: Tenant,
    name: str,
    role: Role = Role.ADMIN,
    expires_at: datetime | None = None,
    pool: Pool | None = None,
) -> tuple[ApiKey, str]:
    """The key's text is returned this once; only its digest is kept."""
    check_pool_of_key(tenant, role, pool)
    prefix, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    text = f"bk_{prefix}_{secret}"
    key = ApiKey.objects.create(
        tenant=tenant,
        name=name,
        role=role,
        pool=pool,
        prefix=prefix,
        digest=_digest(text),
        expires_at=expires_at,
    )
    record(Action.KEY_CREATED, key, tenant_id=tenant.pk, after=_key_facts(key))
    return key, text


def check_pool_of_key(tenant: Tenant, role: Role, pool: Pool | None) -> None:
    """A worker's key is for one pool that is open to its tenant; all others are for none."""
    if role != Role.WORKER:
        if pool is not None:
            raise refused("pool", f"a key with the role {role} is for no pool", "leave the pool empty")
    elif pool is None:
        raise refused("pool", "a worker's key is for one pool", "name the pool whose runs it may take")
    elif not Pool.objects.open_to(tenant).filter(pk=pool.pk).exists():
        raise refused("pool", f"the pool {pool} is not open to {tenant}", "an operator opens pools to teams")


@transaction.atomic
def revoke_key(key: ApiKey, reason: str = "") -> ApiKey:
    locked = ApiKey.objects.select_for_update().get(pk=key.pk)
    if locked.revoked_at is None:
        before = _key_facts(locked)
        locked.revoked_at = database_now()
        locked.save(update_fields=["revoked_at"])
        after = _key_facts(locked)
        record(
            Action.KEY_REVOKED, locked, tenant_id=locked.tenant_id, before=before, after=after, reason=reason
        )
    return locked


def find_key(text: str) -> ApiKey | None:
    """The valid key with this text: not revoked, not expired by the database's clock."""
    parts = KEY_TEXT.fullmatch(text)
    keys = ApiKey.objects.select_related("tenant", "pool").filter(
        prefix=parts[1] if parts else "", revoked_at=None
    )
    key = keys.filter(Q(expires_at=None) | Q(expires_at__gt=Now())).first()
    matches = hmac.compare_digest(key.digest if key else NO_DIGEST, _digest(text))
    return key if key and matches else None


def note_use(key: ApiKey) -> None:
    """At most once a minute: a busy key must not become a busy row. Whether to ask the database for it is this
    host's clock's to say, and whether a minute is over the database's."""
    if key.last_used_at is None or datetime.now(UTC) - key.last_used_at >= USE_NOTED_EVERY:
        stale = Q(last_used_at=None) | Q(last_used_at__lt=Now() - USE_NOTED_EVERY)
        ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=Now())


def may(role: str, needed: Role) -> bool:
    return role == needed or (role in RANK and needed in RANK and RANK[Role(role)] >= RANK[needed])


@transaction.atomic
def set_membership(user: User, tenant: Tenant, role: Role) -> Membership:
    member = Membership.objects.select_for_update().filter(user=user, tenant=tenant).first()
    before = _member_facts(member) if member else None
    if member is None:
        member = Membership(user=user, tenant=tenant)
    member.role = role
    member.save()
    action = Action.MEMBER_CHANGED if before else Action.MEMBER_ADDED
    record(action, member, tenant_id=tenant.pk, before=before, after=_member_facts(member))
    return member


@transaction.atomic
def remove_membership(member: Membership) -> None:
    record(Action.MEMBER_REMOVED, member, tenant_id=member.tenant_id, before=_member_facts(member))
    member.delete()


def _digest(text: str) -> str:
    # The secret is 256 random bits: a slow hash would protect nothing and cost every request.
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _key_facts(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "prefix": key.prefix,
        "role": key.role,
        "pool": key.pool.slug if key.pool else None,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }


def _member_facts(member: Membership) -> dict[str, Any]:
    return {"user": member.user.get_username(), "role": member.role}
