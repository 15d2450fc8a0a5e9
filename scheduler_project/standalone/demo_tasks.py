"""The Celery tasks of the demo tenant."""

import logging
from datetime import datetime, timezone

from celery import shared_task

logger = logging.getLogger(__name__)


class Unlucky(Exception):
    """This demo task always fails; nothing is wrong with the installation."""


@shared_task(name="demo.hello")
def hello(name: str = "world") -> dict[str, str]:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    print(f"Hello, {name}. It is {now}.")  # noqa: T201 - what a task prints is its log
    logger.info("what a task logs is kept as well")
    return {"greeted": name, "at": now}


@shared_task(name="demo.flaky")
def flaky() -> None:
    print("trying something that will not work ...")  # noqa: T201 - what a task prints is its log
    logger.warning("this attempt is about to fail")
    raise Unlucky(Unlucky.__doc__)
