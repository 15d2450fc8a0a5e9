"""Made without an application, as Flask's extensions are: whoever makes that brings both together."""

import os
from typing import Any

from celery import Celery

from scheduler_project.sdk.app import Beatkeeper

celery = Celery("factory", broker=os.environ.get("SAMPLE_BROKER_URL", "memory://"))
celery.conf.update(broker_connection_retry_on_startup=True)
keeper = Beatkeeper(celery)


@celery.task(name="tests.names_application", bind=True)
def names_application(self: Any) -> str:
    return str(self.app.application)
