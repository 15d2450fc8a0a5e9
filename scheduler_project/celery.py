"""The Celery app of the platform, with its routing and acknowledgements."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")

from django.conf import settings  # noqa: E402 - needs the name of the settings
from django.utils.module_loading import import_string  # noqa: E402

from jobs.spec.targets import KINDS  # noqa: E402
from scheduler_project.sdk.app import Beatkeeper  # noqa: E402
from scheduler_project.sdk.transport.broker_tls import CheckedAMQP  # noqa: E402

app = Celery("scheduler_project", amqp=CheckedAMQP)
app.conf.update(
    imports=["scheduler_project.standalone.demo_tasks"],
    # Without a broker workers are fed by their heartbeats, and nothing is ever published (promise 5).
    broker_url=settings.CELERY_BROKER_URL or "memory://",
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    # A worker declares its default queue: Celery's own name for it may be another application's on a shared broker.
    task_default_queue=f"{settings.QUEUE_PREFIX}.celery",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    beat_scheduler="runs.beat:PartitionedScheduler",
)

keeper = Beatkeeper(
    app,
    database_url=settings.DATABASE_URL,
    pool=settings.POOL,
    log_store=settings.LOG_STORE_URL,
    spool_folder=settings.SPOOL_DIR,
    executors={kind.name: import_string(kind.executor) for kind in KINDS.values() if kind.executor},
)
