"""The same task in Procrastinate, as its documentation sets it up."""

import os

import procrastinate

from tests.benchmarks.tick import tick

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"]))


@app.task(name="bench.tick", queue="bench")
def run(seconds: float) -> None:
    tick(seconds)
