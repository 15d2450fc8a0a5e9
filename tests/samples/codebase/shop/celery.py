"""The one change to a code base that works already: Beatkeeper beside the app, a line above a task."""

import os

from beatkeeper import Beatkeeper
from celery import Celery

app = Celery("shop", broker=os.environ["SHOP_BROKER_URL"])
app.conf.update(task_default_queue=os.environ["SHOP_QUEUE"], task_ignore_result=True)
keeper = Beatkeeper(
    app,
    database_url=os.environ["BEATKEEPER_DATABASE_URL"],
    tenant="acme",
    pool="shop",
    log_store=os.environ["SHOP_LOG_STORE"],
)


def enter(line: str) -> None:
    """Into the shop's books."""
    with open(os.environ.get("SHOP_BOOKS", os.devnull), "a") as books:
        books.write(line + "\n")


@keeper.job(every="PT1S", overlap="allow_all", priority=700)
@app.task
def settle() -> str:
    """Unchanged: still called and sent as before."""
    print("settled the day")
    enter("settled")
    return "settled"


@app.task
def tidy() -> str:
    enter("tidied")
    return "tidied"
