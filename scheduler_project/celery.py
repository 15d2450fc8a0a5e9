"""The Celery app of the platform: routing and acks are said here, once."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")

from django.conf import settings  # noqa: E402 - needs the name of the settings

app = Celery("scheduler_project")
app.conf.update(
    # Without a broker workers are fed by their heartbeats, and nothing is ever published (promise 5).
    broker_url=settings.CELERY_BROKER_URL or "memory://",
    broker_connection_retry_on_startup=True,
    result_backend=None,
    task_ignore_result=True,
    accept_content=["json"],
    task_serializer="json",
    result_serializer="json",
    enable_utc=True,
    timezone="UTC",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=False,
    beat_scheduler="runs.beat:PartitionedScheduler",
)
