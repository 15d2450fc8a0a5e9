"""The app of the real workers of the benchmarks; their tasks do next to nothing."""

import os
import time
from typing import Any

from celery import Celery

from scheduler_project.sdk.app import Beatkeeper
from tests.benchmarks.tick import tick

app = Celery("bench", broker=os.environ.get("SAMPLE_BROKER_URL", "memory://"))
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
keeper = Beatkeeper(app, pool="default", log_store=os.environ.get("LOG_STORE_URL"))


@app.task(name="bench.noop")
def noop(**_: Any) -> None:
    """Whatever it is given."""


@app.task(name="bench.rests")
def rests() -> None:
    """So long that no machine gets through too many of them."""
    time.sleep(0.01)


@app.task(name="bench.tick")
def run(seconds: float, lines: int) -> None:
    tick(seconds, lines)
