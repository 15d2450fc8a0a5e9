"""A code base adds the wheel and one line above a task; its own worker runs the job beside its own tasks."""

from collections import Counter
from pathlib import Path

import pytest
from django.conf import settings

from jobs.models import Job
from jobs.services.status import pause_job
from tests.support.factories import make_pool, make_tenant
from tests.support.processes import Processes, RealProcess
from tests.system.adoption.adopter import SAMPLE
from tests.system.platform import Platform, our_connection

OWN_TASKS = 20
DECLARED = "shop.celery.settle"


class Shop:
    """Its environment is its own: nothing of ours is on its path."""

    def __init__(self, platform: Platform, processes: Processes, python: Path) -> None:
        self.platform = platform
        self.books = platform.folder / "books"
        self._processes, self._python = processes, python

    def env(self) -> dict[str, str | None]:
        ours = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "CELERY_BROKER_URL", "LOG_STORE_URL", "SECRET_KEY")
        return {
            **self.platform.env(),
            **dict.fromkeys(ours),
            "SHOP_BROKER_URL": self.platform.broker_url,
            "SHOP_QUEUE": self.platform.own_queue,
            "SHOP_LOG_STORE": self.platform.log_store_url,
            "SHOP_BOOKS": str(self.books),
            "BEATKEEPER_SPOOL_DIR": str(self.platform.spool / "shop"),
        }

    def python(self, *arguments: str) -> RealProcess:
        return self._processes.start(str(self._python), *arguments, env=self.env(), name="shop", cwd=SAMPLE)

    def worker(self) -> RealProcess:
        return self.python(
            *("-m", "celery", "-A", "shop.celery", "worker", "-l", "info", "-c", "2"),
            *("-n", f"shop@{settings.TEST_ID}-{self.platform.folder.name}", "-Q", self.platform.own_queue),
        )

    def send_its_own(self) -> None:
        send = f"from shop.celery import tidy\nfor _ in range({OWN_TASKS}): tidy.delay()"
        assert self.python("-c", send).wait() == 0

    def entered(self) -> Counter[str]:
        return Counter(self.books.read_text().split() if self.books.exists() else [])


@pytest.fixture
def shop(platform: Platform, processes: Processes, adopter: Path) -> Shop:
    pool = make_pool(slug="shop", shared=False, exported_tasks=[], exported_kinds=[])
    pool.tenants.add(make_tenant(slug="acme"))
    return Shop(platform, processes, adopter)


def test_a_declared_job_runs_in_the_code_bases_own_worker_beside_its_own_tasks(
    platform: Platform, shop: Shop
) -> None:
    platform.scheduler()
    worker = shop.worker()
    job = platform.wait(lambda: declared_job(), 40, "the declared job")
    platform.wait(lambda: succeeded(platform, job) >= 2, 30, "two runs")
    asked_for_over_the_database(shop)
    shop.send_its_own()
    before = succeeded(platform, job)
    platform.wait(lambda: shop.entered()["tidied"] == OWN_TASKS, 30, "the shop's own tasks")
    platform.wait(lambda: succeeded(platform, job) >= before + 2, 30, "two more runs")

    with our_connection():
        pause_job(job)
    platform.wait(lambda: not in_hand(platform, job), 20, "runs in hand to end")
    assert shop.entered() == {"tidied": OWN_TASKS, "settled": succeeded(platform, job)}
    run = platform.finished(job)[0]
    assert "settled the day" in platform.log_of(run)
    assert run["result"] == "settled"
    assert worker.terminate() == 0


def asked_for_over_the_database(shop: Shop) -> None:
    """Where no API is: the request and its answer are rows, and a scheduler carries it out."""
    asks = shop.python("-c", "from shop.celery import settle\nprint(settle.run_now(key='k').wait(60).state)")
    assert asks.wait(90) == 0, asks.text()
    assert asks.text().splitlines()[-1] == "succeeded"
    plan = shop.python("-m", "beatkeeper", "plan", "--app", "shop.celery")
    assert plan.wait() == 0 and "0 drifted, 1 unchanged" in plan.text(), plan.text()


def declared_job() -> Job | None:
    with our_connection():
        return Job.objects.filter(tenant__slug="acme", pool__slug="shop", name=DECLARED).first()


def succeeded(platform: Platform, job: Job) -> int:
    return sum(run["state"] == "succeeded" for run in platform.finished(job))


def in_hand(platform: Platform, job: Job) -> bool:
    return any(live["state"] != "blocked" for live in platform.live(job))
