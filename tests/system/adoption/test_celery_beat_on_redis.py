"""Periodic tasks of a code base whose broker is Redis, under two of our schedulers."""

import signal
from datetime import datetime, timedelta

from tests.runs.celery_beat.conftest import host, host_template
from tests.runs.celery_beat.host import HostProject
from tests.support.processes import Processes
from tests.support.servers.redis import PrivateRedis
from tests.support.waiting import wait_until
from tests.system.adoption.test_celery_beat import (
    EVERY_SECOND,
    amid_a_second,
    assert_none_is_doubled,
    assert_none_is_lost,
    lines,
    schedulers_of,
    settle_and_stop,
)

__all__ = ["host_template", "host"]

ROWS = f"""
import os
second = IntervalSchedule.objects.create(every=1, period="seconds")
hour = IntervalSchedule.objects.create(every=1, period="hours")
for name in {EVERY_SECOND!r}:
    PeriodicTask.objects.create(name=name, task="their.witness", interval=second)
PeriodicTask.objects.all().update(last_run_at=now.replace(microsecond=0))
PeriodicTask.objects.create(name="dressed", task="their.witness", interval=hour, start_time=now, priority=7,
    queue=os.environ["THEIR_QUEUE"] + ".other", headers='{{"colour": "red"}}', kwargs='{{"a": 1}}', expire_seconds=90)
PeriodicTask.objects.create(name="routed", task="their.routed", interval=hour, start_time=now)
"""


def test_rows_fire_once_while_a_scheduler_is_killed_and_redis_goes_and_comes_back(
    host: HostProject, private_redis: PrivateRedis, processes: Processes
) -> None:
    host.broker_url = private_redis.url
    worker = host.start_worker(processes)
    host.python(ROWS)
    schedulers = [host.start_beat(processes, name) for name in ("one", "other")]
    worker.wait_for_output("ready.", 60)
    for scheduler in schedulers:
        scheduler.wait_for_output("celery-beat is at work", 60)
    pids = {str(scheduler.pid) for scheduler in schedulers}
    wait_until(lambda: schedulers_of(host) == pids, 60, "both to send")
    wait_until(amid_a_second, 15, "a quiet moment", interval=0.01)
    killed, survivor = schedulers
    killed.send(signal.SIGKILL)
    wait_until(lambda: schedulers_of(host) == {str(survivor.pid)}, 30, "the other to have taken over")

    wait_until(amid_a_second, 15, "a quiet moment", interval=0.01)
    private_redis.kill()
    survivor.wait_for_output("the broker of the periodic tasks takes nothing: ", 10)
    before = len(host.firings())
    private_redis.start()
    wait_until(lambda: len(host.firings()) > before + len(EVERY_SECOND), 20, "firings after it came back")
    settle_and_stop(host, schedulers)

    noted = {str(firing["message_id"]) for firing in host.firings() if "may have arrived" in firing["error"]}
    assert_none_is_doubled(host, but=noted)
    assert_none_is_lost(host, EVERY_SECOND, timedelta(seconds=1))
    (dressed,), (routed,) = lines(host, "dressed"), lines(host, "routed")
    assert dressed["queue"] == f"{host.queue}.other" and dressed["priority"] == 7
    assert dressed["colour"] == "red" and dressed["kwargs"] == {"a": 1}
    assert 80 < datetime.fromisoformat(dressed["expires"]).timestamp() - dressed["at"] < 91
    assert routed["queue"] == f"{host.queue}.routed"
