import logging
import time

from celery.utils.log import get_task_logger

from . import books
from .extensions import celery

logger = get_task_logger(__name__)


@celery.task(bind=True)
def bill(self):
    """Bills whatever has been sold since the last time."""
    billed = books.bill_open_sales(self.request.id)
    books.write_down("billed", self.request)
    logger.info("billed %d sales", billed)
    return billed


@celery.task(bind=True, max_retries=5)
def order_stock(self, article):
    """Fail at the first call and succeed at the second."""
    books.write_down(f"ordered {article}", self.request)
    try:
        if self.request.retries == 0:
            raise ConnectionError("the supplier does not answer")
    except ConnectionError as error:
        raise self.retry(exc=error, countdown=0.2)
    return article


@celery.task(bind=True)
def count_stock(self, seconds=300):
    """Take some time."""
    books.write_down("counting", self.request)
    print("counting the shelves", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
    books.write_down("counted", self.request)


@celery.task(bind=True)
def thank(self, article):
    logging.getLogger("shop").info("thank you for %s", article)
    books.write_down(f"thanked for {article}", self.request)
