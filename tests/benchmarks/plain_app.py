"""The same task as a plain Celery worker runs it: acked late, one message reserved for each child."""

import os
from typing import Any

from celery import Celery

from tests.benchmarks.stamps import stamp
from tests.benchmarks.tick import tick

app = Celery("plain", broker=os.environ["SAMPLE_BROKER_URL"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ["BENCH_QUEUE"],
)


@app.task(name="bench.tick")
def run(seconds: float, lines: int) -> None:
    tick(seconds, lines)


@app.task(name="bench.noop", bind=True)
def noop(self: Any, /, **_: Any) -> None:
    stamp(self.request)
