"""A code base with a result backend, whose declared tasks send chains, groups and chords of declared tasks."""

import os
from typing import Any

from celery import Celery, chain, chord, group

from scheduler_project.sdk.app import Beatkeeper
from tests.support.sample_tasks import note

app = Celery("canvas", broker=os.environ["SAMPLE_BROKER_URL"], backend=os.environ["CANVAS_RESULTS"])
app.conf.update(
    task_default_queue=os.environ["CANVAS_QUEUE"],
    result_chord_retry_interval=0.2,
    worker_hijack_root_logger=False,
)
keeper = Beatkeeper(app)


@keeper.job("adds", every=3600)
@app.task(name="canvas.adds")
def adds(one: int, two: int) -> int:
    return one + two


@keeper.job("reports")
@app.task(name="canvas.reports", bind=True)
def reports(self: Any, value: Any, of: str) -> None:
    note(of, value=value, run=self.request.id)


@keeper.job("sends")
@app.task(name="canvas.sends")
def sends() -> None:
    chain(adds.s(1, 2), adds.s(3), reports.s("chain")).delay()
    group(reports.s(number, "group") for number in range(3)).delay()
    chord((adds.s(number, 1) for number in range(3)), reports.s("chord")).delay()


@keeper.job("replaces")
@app.task(name="canvas.replaces", bind=True)
def replaces(self: Any) -> None:
    raise self.replace(reports.s("replaced", "replaced"))
