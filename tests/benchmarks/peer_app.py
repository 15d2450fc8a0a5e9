"""The Celery app of the peer: django-celery-beat's DatabaseScheduler as its documentation sets it up."""

import os

import django
from celery import Celery
from django.conf import settings

from scheduler_project import env

settings.configure(
    DATABASES={"default": env.database("DATABASE_URL")},
    INSTALLED_APPS=["django_celery_beat"],
    USE_TZ=True,
    TIME_ZONE="UTC",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

app = Celery("peer", broker=os.environ["CELERY_BROKER_URL"])
app.conf.update(
    timezone="UTC",
    enable_utc=True,
    task_ignore_result=True,
    task_create_missing_queues=True,
    beat_scheduler="django_celery_beat.schedulers:DatabaseScheduler",
    # As ours: a message counts once the broker has confirmed it.
    broker_transport_options={"confirm_publish": True},
)
