"""Set and remove memberships: which people belong to a tenant, and with which role."""

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from auditlog.actions import Action
from auditlog.record import record
from jobs.models import Membership, Role, Tenant


@transaction.atomic
def set_membership(user: User, tenant: Tenant, role: Role) -> Membership:
    member = Membership.objects.select_for_update().filter(user=user, tenant=tenant).first()
    before = _audit_snapshot(member) if member else None
    if member is None:
        member = Membership(user=user, tenant=tenant)
    member.role = role
    member.save()
    action = Action.MEMBER_EDITED if before else Action.MEMBER_ADDED
    record(action, member, before=before, after=_audit_snapshot(member))
    return member


@transaction.atomic
def remove_membership(member: Membership) -> None:
    record(Action.MEMBER_REMOVED, member, before=_audit_snapshot(member))
    member.delete()


def _audit_snapshot(member: Membership) -> dict[str, Any]:
    return {"user": member.user.get_username(), "role": member.role}
