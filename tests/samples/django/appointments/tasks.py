import time

from celery import Task, shared_task
from celery.utils.log import get_task_logger
from celery.worker.request import Request

from .models import Appointment, Note

logger = get_task_logger(__name__)


class NotedRequest(Request):
    """The clinic looks at its own requests."""

    def on_failure(self, *arguments, **options):
        logger.warning("the clinic's own request saw a failure")
        return super().on_failure(*arguments, **options)


class NotedTask(Task):
    Request = NotedRequest

    def note(self, text):
        Note.objects.create(text=text, run=self.request.id, attempt=self.request.retries + 1)


@shared_task(bind=True, base=NotedTask)
def remind(self):
    """Reminds whoever has not been."""
    reminded = Appointment.objects.filter(reminded_by="").update(reminded_by=self.request.id)
    self.note("reminded")
    logger.info("reminded %d patients", reminded)
    return reminded


@shared_task(bind=True, base=NotedTask, autoretry_for=(ConnectionError,), retry_backoff=True, max_retries=4)
def fetch_results(self, laboratory="north"):
    """Succeed at the second call."""
    self.note(f"called {laboratory}")
    if self.request.retries == 0:
        raise ConnectionError("the laboratory does not answer")
    return laboratory


@shared_task(bind=True, base=NotedTask)
def recalculate(self, seconds=300):
    self.note("calculating")
    print("recalculating the year", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
    self.note("calculated")


@shared_task(bind=True, base=NotedTask)
def greet(self, patient):
    if not patient:
        raise ValueError("nobody to greet")
    self.note(f"greeted {patient}")
