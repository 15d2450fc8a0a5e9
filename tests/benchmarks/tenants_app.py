"""The app of our worker in `tenants`: its claims are counted, and its task notes when it began."""

import os
from typing import Any

from celery import Celery

from scheduler_project.sdk.app import Beatkeeper
from tests.benchmarks import counted_ledger
from tests.benchmarks.stamps import stamp

app = Celery("bench", broker=os.environ["SAMPLE_BROKER_URL"])
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
keeper = Beatkeeper(app, pool="default", log_store=os.environ.get("LOG_STORE_URL"), ledger=counted_ledger.URL)


@app.task(name="bench.noop", bind=True)
def noop(self: Any, /, **_: Any) -> None:
    stamp(self.request)
