"""Publish messages of plain Celery, each when it is due: `python -m tests.benchmarks.paced_publisher RATE COUNT`.

Prints the instant of the first due time once it is ready, and at the end how late the messages were and its CPU time.
The queues are those of BENCH_QUEUES. As in `stored.spread`, due times are whole milliseconds.
"""

import json
import os
import random
import sys
import time
from datetime import datetime, timezone
from typing import Any

from celery import Celery

from tests.benchmarks.stamps import PLANNED_AT
from tests.benchmarks.stored import TASK

READY, DONE = "first due at ", "published "
AHEAD_SECONDS = 0.5
PAYLOAD = {"seconds": 1.0, "payload": "0123456789abcdef" * 64}


def main(rate: float, count: int) -> None:
    queues = os.environ["BENCH_QUEUES"].split(",")
    # As many for each queue, in no order, as jobs of tenants become due.
    order = [queues[number % len(queues)] for number in range(count)]
    random.Random(count).shuffle(order)
    with Celery("plain", broker=os.environ["SAMPLE_BROKER_URL"], set_as_current=False) as app:
        app.conf.update(task_ignore_result=True)
        with app.producer_or_acquire() as producer:
            for queue in queues:
                producer.maybe_declare(app.amqp.queues[queue])
            begin = int((time.time() + AHEAD_SECONDS) * 1000) / 1000
            write(f"{READY}{begin:.3f}")
            time.sleep(begin - time.time())
            spent = time.process_time()
            lates = [publish(app, producer, queue, due(begin, rate, nth)) for nth, queue in enumerate(order)]
            write(DONE + json.dumps({"lates": lates, "cpu_seconds": time.process_time() - spent}))


def due(begin: float, rate: float, nth: int) -> float:
    return begin + int(nth / rate * 1000) / 1000


def publish(app: Celery, producer: Any, queue: str, planned: float) -> float:
    while (early := planned - time.time()) > 0:
        time.sleep(early)
    headers = {PLANNED_AT: datetime.fromtimestamp(planned, timezone.utc).isoformat()}
    app.send_task(TASK, kwargs=PAYLOAD, queue=queue, headers=headers, producer=producer, ignore_result=True)
    return round(time.time() - planned, 4)


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
