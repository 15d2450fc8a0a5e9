"""Resume paused jobs whose pause has an end, once it has come."""

import logging
from uuid import UUID

import psycopg
from django.db import DatabaseError, OperationalError, transaction

from auditlog.context import acting_as
from auditlog.models import ActorKind
from jobs.clock import database_now
from jobs.errors import Missing
from jobs.models import Job, JobClock, JobStatus
from jobs.services.locking import limit_waiting
from jobs.services.status import resume_when_due

logger = logging.getLogger(__name__)

# For other locks that a transaction may hold on a job: the next round tries again, and recovery continues.
MAX_WAIT = "200ms"
BUSY = (OperationalError, psycopg.OperationalError)


def resume_due_jobs(limit: int = 100) -> int:
    """Resume each in its own transaction, the longest overdue first; a locked one waits for the next round.

    Returns how many went on.
    """
    due = Job.objects.present().filter(status=JobStatus.PAUSED, paused_until__lte=database_now())
    found = list(due.order_by("paused_until").values_list("pk", flat=True)[:limit])
    with acting_as(ActorKind.SYSTEM, "scheduler"):
        return sum(_resume(job_id) for job_id in found)


def _resume(job_id: UUID) -> bool:
    try:
        with transaction.atomic():
            limit_waiting(MAX_WAIT)
            free = JobClock.objects.select_for_update(skip_locked=True).filter(job_id=job_id)
            return free.first() is not None and resume_when_due(job_id) is not None
    except Missing:
        return False
    except BUSY as error:
        logger.warning("the job %s is not resumed yet: %s", job_id, type(error).__name__)
        return False
    except (DatabaseError, psycopg.DatabaseError):  # what the database refuses of one costs no other its time
        logger.exception("the job %s is not resumed", job_id)
        return False
