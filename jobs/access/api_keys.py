"""Create, find and revoke API keys."""

import hmac
import re
import secrets
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from auditlog.actions import Action
from auditlog.record import record
from jobs.clock import database_now
from jobs.models import ApiKey, Pool, Role, Tenant
from jobs.models.joined import Joined
from jobs.validation.checks import invalid

KEY_TEXT = re.compile(r"bk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
USE_NOTED_EVERY = timedelta(minutes=1)
# Compared with if no key has the prefix, so that the response takes as long.
NO_DIGEST = "0" * 64
# Each request begins with it.
VALID_KEY = Joined(
    {"key": ApiKey, "tenant": Tenant, "pool": Pool},
    """
    FROM beatkeeper_api_key key JOIN beatkeeper_tenant tenant ON tenant.id = key.tenant_id
        LEFT JOIN beatkeeper_pool pool ON pool.id = key.pool_id
    WHERE key.prefix = %(prefix)s AND key.revoked_at IS NULL AND (key.expires_at IS NULL OR key.expires_at > now())
    """,
)


@transaction.atomic
def create_key(
    tenant: Tenant,
    name: str,
    role: Role = Role.ADMIN,
    expires_at: datetime | None = None,
    pool: Pool | None = None,
) -> tuple[ApiKey, str]:
    """Create a key and return it with its text, which is not kept: only its digest is."""
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
    record(Action.KEY_CREATED, key, after=_audit_snapshot(key))
    return key, text


def check_pool_of_key(tenant: Tenant, role: Role, pool: Pool | None) -> None:
    """Require one pool, open to the tenant, for a worker's key, and none for all others."""
    if role != Role.WORKER:
        if pool is not None:
            raise invalid("pool", f"a key with the role {role} is for no pool", "leave the pool empty")
    elif pool is None:
        raise invalid("pool", "a worker's key is for one pool", "name the pool whose runs it may take")
    elif not Pool.objects.open_to(tenant).filter(pk=pool.pk).exists():
        raise invalid("pool", f"the pool {pool} is not open to {tenant}", "an operator opens pools to teams")


@transaction.atomic
def revoke_key(key: ApiKey, reason: str = "") -> ApiKey:
    locked = ApiKey.objects.select_for_update().get(pk=key.pk)
    if locked.revoked_at is None:
        before = _audit_snapshot(locked)
        locked.revoked_at = database_now()
        locked.save(update_fields=["revoked_at"])
        after = _audit_snapshot(locked)
        record(Action.KEY_REVOKED, locked, before=before, after=after, reason=reason)
    return locked


def find_key(text: str) -> ApiKey | None:
    """Return the key with this text if it is neither revoked nor expired by the database's clock."""
    parts = KEY_TEXT.fullmatch(text)
    key, tenant, pool = VALID_KEY.first({"prefix": parts[1] if parts else ""}) or (None, None, None)
    matches = hmac.compare_digest(key.digest if key else NO_DIGEST, _digest(text))
    if key is None or not matches:
        return None
    key.tenant, key.pool = tenant, pool
    found: ApiKey = key
    return found


def note_use(key: ApiKey) -> None:
    """Store when a key was last used, at most once a minute, so that a busy key does not become a busy row.

    This host's clock decides whether to ask the database, and the database's clock whether a minute has passed.
    """
    if key.last_used_at is None or datetime.now(UTC) - key.last_used_at >= USE_NOTED_EVERY:
        stale = Q(last_used_at=None) | Q(last_used_at__lt=Now() - USE_NOTED_EVERY)
        ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=Now())


def _digest(text: str) -> str:
    # The secret is 256 random bits: a slow hash would protect nothing and cost every request.
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _audit_snapshot(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "prefix": key.prefix,
        "role": key.role,
        "pool": key.pool.slug if key.pool else None,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }
