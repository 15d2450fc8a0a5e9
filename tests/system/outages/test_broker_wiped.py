"""RabbitMQ holds no truth (promise 5): take its messages away, and every run still happens, once."""

import signal

from tests.support.factories import make_worker
from tests.system.platform import WITNESS, Platform, send

RUNS = 240


def test_runs_whose_wakeups_were_purged_all_happen_once(platform_with_own_broker: Platform) -> None:
    platform = platform_with_own_broker
    platform.scheduler()
    worker = platform.worker(slots=2)
    worker.wait_until_known()
    # A consumer would take messages out of the queue; one that stands still gets one for each slot.
    send(signal.SIGSTOP, *worker.whole())
    # Dispatch queues as much as living slots can take soon; so many real ones do not fit this machine.
    make_worker(platform.pool, slots=RUNS, known_targets=[WITNESS])
    job = platform.run_often(RUNS)
    queue = platform.wait(platform.broker_queue, 20, "the queue")
    platform.wait(lambda: platform.queue(queue)[0] >= RUNS - 2, 20, "all wake-ups")
    assert platform.purge(queue) >= RUNS - 2
    assert platform.queue(queue)[0] == 0
    assert not platform.witnessed()

    send(signal.SIGCONT, *worker.whole())
    platform.wait(lambda: len(platform.finished(job)) == RUNS, 45, "all runs to end")
    assert {run["state"] for run in platform.runs(job)} == {"succeeded"}
    assert {run["attempts"] for run in platform.runs(job)} == {1}
    platform.assert_each_ran_once(platform.runs(job))
