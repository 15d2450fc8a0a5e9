"""Schedulers come and go under load: fair shares within moments, and each planned time has one run."""

import signal
import time
from datetime import timedelta

from jobs.models import JOB_SLICES
from runs.models import SchedulerNode
from tests.support.factories import make_pool, make_tenant
from tests.support.processes import Processes, RealProcess
from tests.support.waiting import wait_until
from tests.system.crashes.test_scheduler_killed import (
    Connection,
    database_now,
    hold_until,
    observer,
    post_jobs,
    slices_of,
    wait_until_planned_past,
)
from tests.system.ledger_checker import check

__all__ = ["observer"]
HALF = JOB_SLICES // 2


def start(processes: Processes, url: str, name: str) -> RealProcess:
    env = {
        "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
        "DATABASE_URL": url,
        "DATABASE_DIRECT_URL": url,
        "CELERY_BROKER_URL": "",
    }
    return processes.python("celery", "-A", "scheduler_project", "beat", "-l", "info", env=env, name=name)


def wait_for_slices(observer: Connection, scheduler: RealProcess, count: int, timeout: float = 40) -> float:
    """How long it took."""
    began = time.monotonic()
    what = f"{count} slices of {scheduler.output.name}; it wrote:\n{scheduler.text()[-2000:]}"
    wait_until(lambda: slices_of(observer, scheduler) == count, timeout, what, interval=0.02)
    return time.monotonic() - began


def status_of(scheduler: RealProcess) -> SchedulerNode | None:
    return SchedulerNode.objects.filter(pid=scheduler.pid).first()


def test_schedulers_join_leave_stand_still_and_resume(
    observer: Connection, database_url: str, processes: Processes
) -> None:
    first = start(processes, database_url, "first")
    wait_for_slices(observer, first, JOB_SLICES)
    make_pool(slug="default")
    post_jobs(make_tenant(), 60)

    second = start(processes, database_url, "second")
    wait_until(lambda: slices_of(observer, second) > 0, 40, "the second to take slices", interval=0.02)
    assert wait_for_slices(observer, second, HALF) < 3
    assert wait_for_slices(observer, first, HALF) < 3
    wait_until(
        lambda: (status := status_of(second)) and status.job_slices == HALF, 10, "what the second tells"
    )

    second.send(signal.SIGTERM)
    # A look around every 250 ms; the rest is what a busy machine needs.
    assert wait_for_slices(observer, first, JOB_SLICES) < 2
    assert second.wait(10) == 0
    assert (status := status_of(second)) and status.left_at is not None and status.job_slices == 0

    third = start(processes, database_url, "third")
    wait_for_slices(observer, third, HALF)
    third.send(signal.SIGSTOP)
    assert wait_for_slices(observer, first, JOB_SLICES) < 7
    third.send(signal.SIGCONT)
    wait_for_slices(observer, third, HALF)
    wait_for_slices(observer, first, HALF)

    end = database_now(observer) + timedelta(seconds=1)
    hold_until(observer, end, 10)
    wait_until_planned_past(observer, end, 20)
    verdict = check(observer, end)
    assert verdict.ok, verdict
    assert verdict.latest_ms < 6500, verdict
    nodes = SchedulerNode.objects.filter(left_at=None)
    assert {node.pid for node in nodes} == {first.pid, third.pid}
