"""Memberships, the roles they give, and the pools that are open to a tenant."""

import pytest

from auditlog.models import AuditEntry
from jobs.access import memberships
from jobs.access.roles import may
from jobs.models import Membership, Pool, Role
from tests.support.factories import make_pool, make_tenant, make_user

pytestmark = pytest.mark.django_db


def test_roles_include_the_lower_ones() -> None:
    allowed = {(role, needed) for role in Role for needed in Role if may(role, needed)}
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
    memberships.set_membership(user, tenant, Role.VIEWER)
    member = memberships.set_membership(user, tenant, Role.ADMIN)
    memberships.remove_membership(member)
    entries = AuditEntry.objects.filter(object_type="membership").order_by("id")
    assert [entry.action for entry in entries] == ["member.added", "member.edited", "member.removed"]
    assert (entries[1].before, entries[1].after) == ({"role": "viewer"}, {"role": "admin"})
    assert not Membership.objects.exists()


def test_a_pool_is_open_to_its_tenants_or_to_all() -> None:
    tenant = make_tenant()
    make_pool(slug="open")
    make_pool(slug="closed", shared=False)
    make_pool(slug="ours", shared=False).tenants.add(tenant)
    slugs = set(Pool.objects.open_to(tenant).values_list("slug", flat=True))
    assert slugs == {"open", "ours"}
