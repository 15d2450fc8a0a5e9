"""Made without an application, as Flask's extensions are: whoever makes that brings both together."""

import os
from typing import Any

from celery import Celery

from scheduler_project.sdk.app import Beatkeeper

celery = Celery("factory", broker=os.environ.get("SAMPLE_BROKER_URL", "memory://"))
celery.conf.update(broker_connection_retry_on_startup=True)
keeper = Beatkeeper(celery)


@celery.task(name="tests.tells_application", bind=True)
def tells_application(self: Any) -> str:
    return str(self.app.application)
