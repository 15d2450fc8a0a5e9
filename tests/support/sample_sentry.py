"""A code base with Sentry, initialised beside the app as everybody does it; what would be sent is in a file."""

import json
import os
from typing import Any

import sentry_sdk
from celery import Celery
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from scheduler_project.sdk.app import Beatkeeper


class ToFile(Transport):
    def capture_envelope(self, envelope: Any) -> None:
        with open(os.environ["SAMPLE_SENTRY"], "a") as file:
            for item in envelope.items:
                if item.type == "event":
                    file.write(json.dumps(item.payload.json, default=str) + "\n")


sentry_sdk.init("http://key@127.0.0.1:9/1", transport=ToFile, integrations=[CeleryIntegration()])
app = Celery("sentry", broker=os.environ.get("SAMPLE_BROKER_URL", "memory://"))
app.conf.update(broker_connection_retry_on_startup=True)
keeper = Beatkeeper(app)


@app.task(name="tests.raises")
def raises() -> None:
    raise ValueError("no luck")


@app.task(name="tests.succeeds")
def succeeds() -> None: ...
