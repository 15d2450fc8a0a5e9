"""The admin of what jobs stand on. `runs.admin` registers that of jobs, with their runs."""

from django.contrib import admin
from django.contrib.auth.models import Group, User

from auditlog.models import AuditEntry
from jobs import models
from jobs.admin.access import ApiKeyAdmin, MembershipAdmin, StaffUserAdmin, TenantAdmin
from jobs.admin.audit import AuditEntryAdmin
from jobs.admin.calendars import CalendarAdmin
from jobs.admin.declarations import DeclarationAdmin, RunRequestAdmin
from jobs.admin.overrides import OverrideAdmin
from jobs.admin.pools import PoolAdmin
from jobs.admin.secrets import SecretAdmin
from jobs.admin.suspensions import SuspensionAdmin
from jobs.admin.versions import JobClockAdmin, JobVersionAdmin

admin.site.unregister([Group, User])  # permissions come from memberships
for model, model_admin in (
    (models.JobVersion, JobVersionAdmin),
    (models.JobClock, JobClockAdmin),
    (models.Tenant, TenantAdmin),
    (models.Pool, PoolAdmin),
    (models.Calendar, CalendarAdmin),
    (models.Secret, SecretAdmin),
    (models.ApiKey, ApiKeyAdmin),
    (models.Membership, MembershipAdmin),
    (models.Declaration, DeclarationAdmin),
    (models.RunRequest, RunRequestAdmin),
    (models.Suspension, SuspensionAdmin),
    (models.Override, OverrideAdmin),
    (AuditEntry, AuditEntryAdmin),
    (User, StaffUserAdmin),
):
    admin.site.register(model, model_admin)
