"""What fails again and again, with real processes: a breaker that opens and closes, and a group redriven at a pace."""

import signal
from pathlib import Path

from runs.models import Breaker, DeadLetter, LiveRun, Redrive, Run
from runs.services import redrives
from tests.support.waiting import wait_until
from tests.system.platform import Platform, our_connection, send

ONCE = {"max_attempts": 1}

# More than a worker may have claimed together before the third of them failed.
RUNS = 100


def test_a_breaker_opens_holds_what_would_fail_and_lets_all_go_when_it_works_again(
    platform: Platform, gate: Path
) -> None:
    target = {"kind": "celery", "task": "tests.works_when", "kwargs": {"path": str(gate)}}
    platform.scheduler()
    platform.worker(slots=2)
    breaker = {"failures": 3, "cooldown": "PT1S"}
    job = platform.run_often(RUNS, target=target, retry=ONCE, breaker=breaker)

    def state() -> str:
        with our_connection():
            return Breaker.objects.get(job=job).state

    def held() -> int:
        with our_connection():
            return LiveRun.objects.filter(job=job, state="blocked", reason="breaker").count()

    wait_until(lambda: state() != "closed" and held() > 3, 30, "an open breaker that holds runs")
    gate.touch()
    platform.wait(lambda: len(platform.finished(job)) == RUNS, 30, "all of them to end")
    assert state() == "closed"
    died = [run for run in platform.finished(job) if run["state"] == "dead"]
    # Of those not held at that moment, and one probe that may have begun before the target worked again.
    assert 3 <= len(died) <= RUNS - 3, "what was held has been spared"


def test_a_group_on_its_way_survives_the_scheduler_and_runs_each_once(platform: Platform, gate: Path) -> None:
    target = {"kind": "celery", "task": "tests.works_when", "kwargs": {"path": str(gate)}}
    schedulers = [platform.scheduler(), platform.scheduler()]
    platform.worker(slots=2)
    job = platform.run_often(8, target=target, retry=ONCE)
    platform.wait(lambda: len(platform.finished(job)) == 8, 30, "all of them to die")
    gate.touch()
    recovering = platform.wait(
        lambda: next((one for one in schedulers if runs_recovery(platform, one.pid)), None),
        20,
        "one to say it runs recovery",
    )
    with our_connection():
        (fingerprint,) = set(DeadLetter.objects.values_list("fingerprint", flat=True))
        redrives.start(platform.tenant, fingerprint, 120, reason="mended")

    def made() -> int:
        with our_connection():
            return Redrive.objects.get().made

    wait_until(lambda: made() >= 2, 20, "the first of them")
    send(signal.SIGKILL, recovering.pid)
    wait_until(lambda: made() == 8, 30, "the rest of them, by the other scheduler")
    with our_connection():
        wait_until(lambda: Redrive.objects.get().state == "done", 20, "the end of it")
        again = Run.objects.filter(job=job, trigger="redrive")
        assert again.count() == again.values("retry_of").distinct().count() == 8
    platform.wait(
        lambda: sum(run["state"] == "succeeded" for run in platform.finished(job)) == 8, 30, "their success"
    )


def runs_recovery(platform: Platform, pid: int) -> bool:
    rows = platform.rows("SELECT pid FROM beatkeeper_scheduler_node WHERE runs_recovery AND left_at IS NULL")
    return pid in {row["pid"] for row in rows}
