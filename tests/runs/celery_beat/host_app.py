"""A code base that uses django-celery-beat: settings, app and tasks of its own, and nothing of ours."""

import json
import os
import time
from typing import Any
from urllib.parse import urlsplit

import django
from celery import Celery
from django.conf import settings

address = urlsplit(os.environ["THEIR_DATABASE_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": address.path[1:],
            "USER": address.username,
            "PASSWORD": address.password or "",
            "HOST": address.hostname,
            "PORT": str(address.port or 5432),
        }
    },
    INSTALLED_APPS=["django_celery_beat"],
    USE_TZ=True,
    TIME_ZONE="Europe/Berlin",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

QUEUE = os.environ["THEIR_QUEUE"]

app = Celery("host", broker=os.environ["THEIR_BROKER_URL"])
app.conf.update(
    timezone="Europe/Berlin",
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_routes={"their.routed": {"queue": f"{QUEUE}.routed"}},
    beat_schedule={
        "from the code": {"task": "their.witness", "schedule": 3600.0, "args": ["from the code"]},
    },
)


def _write(request: Any, args: Any, kwargs: Any) -> None:
    headers = {name: request.get(name) for name in ("periodic_task_name", "celery_beat_task", "colour")}
    received = {
        "id": request.id,
        "at": time.time(),
        "args": list(args),
        "kwargs": kwargs,
        "queue": request.delivery_info["routing_key"],
        "priority": request.delivery_info["priority"],
        "expires": request.expires,
        **headers,
    }
    line = os.open(os.environ["THEIR_JOURNAL"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(line, (json.dumps(received) + "\n").encode())
        os.fsync(line)
    finally:
        os.close(line)


@app.task(bind=True, name="their.witness")
def witness(self: Any, *args: Any, **kwargs: Any) -> None:
    _write(self.request, args, kwargs)


@app.task(bind=True, name="their.routed")
def routed(self: Any, *args: Any, **kwargs: Any) -> None:
    _write(self.request, args, kwargs)
