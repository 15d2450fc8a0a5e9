"""What can be done that is worth an entry. One word per deed, the same in code, admin and API."""

from django.db.models import TextChoices


class Action(TextChoices):
    JOB_CREATED = "job.created"
    JOB_EDITED = "job.edited"
    JOB_PAUSED = "job.paused"
    JOB_RESUMED = "job.resumed"
    JOB_CANCELLED = "job.cancelled"
    JOB_DELETED = "job.deleted"
    JOB_UNRUNNABLE = "job.unrunnable"
    RUN_REQUESTED = "run.requested"
    RUN_CANCELLED = "run.cancelled"
    RUN_CANCEL_REQUESTED = "run.cancel_requested"
    RUN_RETRIED = "run.retried"
    RUN_HURRIED = "run.hurried"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    MEMBER_ADDED = "member.added"
    MEMBER_CHANGED = "member.changed"
    MEMBER_REMOVED = "member.removed"
    TENANT_CREATED = "tenant.created"
    TENANT_EDITED = "tenant.edited"
    POOL_CREATED = "pool.created"
    POOL_EDITED = "pool.edited"
    POOL_PAUSED = "pool.paused"
    POOL_RESUMED = "pool.resumed"
