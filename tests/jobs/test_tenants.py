"""Keys, memberships, roles."""

from datetime import timedelta

import pytest

from auditlog.models import AuditEntry
from jobs import tenants
from jobs.database_clock import database_now
from jobs.models import ApiKey, Membership, Pool, Role
from tests.factories import make_pool, make_tenant, make_user

pytestmark = pytest.mark.django_db


def test_a_key_is_shown_once_and_kept_as_a_digest() -> None:
    tenant = make_tenant()
    key, text = tenants.create_key(tenant, "ci", Role.OPERATOR)
    start, prefix, secret = text.split("_", 2)
    assert (start, prefix) == ("bk", key.prefix) and len(secret) == 43
    kept = ApiKey.objects.values().get()
    assert text not in str(kept) and secret not in str(kept)
    assert secret not in str(list(AuditEntry.objects.values()))
    entry = AuditEntry.objects.get(action="key.created")
    assert entry.after is not None and entry.after["role"] == "operator" and entry.tenant_id == tenant.pk


def test_a_key_is_found_by_its_whole_text() -> None:
    key, text = tenants.create_key(make_tenant(), "ci")
    tenants.create_key(make_tenant(), "other")
    assert tenants.find_key(text) == key
    for wrong in (text[:-1], text + "x", text.upper(), "", "bk", text.replace("bk_", "kb_"), f" {text}"):
        assert tenants.find_key(wrong) is None


def test_an_expired_or_revoked_key_is_not_found() -> None:
    key, text = tenants.create_key(make_tenant(), "ci", expires_at=database_now() - timedelta(seconds=1))
    assert tenants.find_key(text) is None
    ApiKey.objects.update(expires_at=database_now() + timedelta(hours=1))
    assert tenants.find_key(text) == key
    tenants.revoke_key(key, "left the team")
    assert tenants.find_key(text) is None
    tenants.revoke_key(key)
    entry = AuditEntry.objects.get(action="key.revoked")
    assert entry.reason == "left the team"


def test_roles_include_the_lower_ones() -> None:
    allowed = {(role, needed) for role in Role for needed in Role if tenants.may(role, needed)}
    assert allowed == {
        (Role.VIEWER, Role.VIEWER),
        (Role.OPERATOR, Role.VIEWER),
        (Role.OPERATOR, Role.OPERATOR),
        (Role.ADMIN, Role.VIEWER),
        (Role.ADMIN, Role.OPERATOR),
        (Role.ADMIN, Role.ADMIN),
        (Role.WORKER, Role.WORKER),
    }


def test_memberships_are_audited() -> None:
    tenant, user = make_tenant(), make_user()
    tenants.set_membership(user, tenant, Role.VIEWER)
    member = tenants.set_membership(user, tenant, Role.ADMIN)
    tenants.remove_membership(member)
    entries = AuditEntry.objects.filter(object_type="membership").order_by("id")
    assert [entry.action for entry in entries] == ["member.added", "member.changed", "member.removed"]
    assert (entries[1].before, entries[1].after) == ({"role": "viewer"}, {"role": "admin"})
    assert not Membership.objects.exists()


def test_a_pool_is_open_to_its_tenants_or_to_all() -> None:
    tenant = make_tenant()
    make_pool(slug="open")
    make_pool(slug="closed", shared=False)
    make_pool(slug="ours", shared=False).tenants.add(tenant)
    slugs = set(Pool.objects.open_to(tenant).values_list("slug", flat=True))
    assert slugs == {"open", "ours"}
