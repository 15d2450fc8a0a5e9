"""Another code base's periodic tasks under two of our schedulers, with its own worker: nothing in it changes."""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from io import StringIO

import pytest
from django.conf import LazySettings
from django.core.management import call_command

from tests.runs.celery_beat.conftest import host, host_template
from tests.runs.celery_beat.host import HostProject, Row
from tests.runs.celery_beat.rows import add, interval, now
from tests.support.factories import make_pool, make_tenant
from tests.support.processes import Processes, RealProcess
from tests.support.waiting import wait_until
from tests.system.platform import WITNESS, Platform, our_connection

__all__ = ["host_template", "host"]

UTC = timezone.utc
EVERY_SECOND = [f"every second {number}" for number in range(6)]
# What has its first time some seconds after the rows are made, and no second one.
ONCE = [
    "minutes",
    "hours",
    "days",
    "berlin",
    "new york",
    "both days",
    "sunrise",
    "clocked",
    "one off",
    "starts",
    "routed",
    "dressed",
]
JOBS = ["minutes", "hours", "days", "berlin", "new york", "starts", "routed", "dressed"]
# What no job can do, and what is over.
LEFT = ["half a second", "both days", "sunrise", "clocked", "one off"]
ROWS = f"""
begin = now.replace(microsecond=0) - timedelta(seconds=1)
second = IntervalSchedule.objects.create(every=1, period="seconds")

def make(name, ago=None, task="their.witness", **fields):
    last = None if ago is None else now - ago + timedelta(seconds=4)
    made = PeriodicTask.objects.create(name=name, task=task, args='["' + name + '"]', **fields)
    PeriodicTask.objects.filter(pk=made.pk).update(last_run_at=last)

def cron(zone, **fields):
    return CrontabSchedule.objects.create(timezone=zone, **fields)

for name in {EVERY_SECOND!r}:
    make(name, interval=second)
PeriodicTask.objects.filter(name__startswith="every second").update(last_run_at=begin)
for period in ("minutes", "hours", "days"):
    length = timedelta(**{{period: 3}})
    make(period, length, interval=IntervalSchedule.objects.create(every=3, period=period))
half = IntervalSchedule.objects.create(every=500000, period="microseconds")
make("half a second", timedelta(seconds=4), interval=half)
day = timedelta(days=40)
make("berlin", day, crontab=cron("Europe/Berlin", minute="30", hour="2"))
make("new york", day, crontab=cron("America/New_York", minute="0,30", hour="1-3", month_of_year="*/1"))
make("both days", 20 * day, crontab=cron("UTC", minute="0", hour="0", day_of_month="13", day_of_week="fri"))
make("sunrise", day, solar=SolarSchedule.objects.create(event="sunrise", latitude=52.5, longitude=13.4))
clocked = ClockedSchedule.objects.create(clocked_time=now + timedelta(seconds=4))
make("clocked", clocked=clocked, one_off=True)
make("one off", interval=second, one_off=True)
hour = IntervalSchedule.objects.create(every=1, period="hours")
make("starts", interval=hour, start_time=now + timedelta(seconds=4))
make("expires", interval=second, expires=now + timedelta(hours=1))
make("routed", timedelta(hours=1), task="their.routed", interval=hour)
dress = dict(queue="{{queue}}.other", priority=7, headers='{{"colour": "red"}}', kwargs='{{"a": 1}}', expire_seconds=90)
make("dressed", timedelta(hours=1), interval=hour, **{{k: v.format(queue=__import__("os").environ["THEIR_QUEUE"])
     if k == "queue" else v for k, v in dress.items()}})
make("switched off", timedelta(hours=1), interval=hour, enabled=False)
make("waits", timedelta(minutes=30), interval=hour)
broken = PeriodicTask.objects.create(name="broken", task="their.witness", interval=hour)
PeriodicTask.objects.filter(pk=broken.pk).update(args="[1,", last_run_at=now - timedelta(hours=2))
"""


@pytest.fixture
def stage(host: HostProject, processes: Processes) -> Iterator[tuple[HostProject, list[RealProcess]]]:
    """Their rows, their worker, two schedulers of ours, both at work."""
    worker = host.start_worker(processes)
    host.python(ROWS)
    schedulers = [host.start_beat(processes, name) for name in ("one", "other")]
    worker.wait_for_output("ready.", 60)
    for scheduler in schedulers:
        scheduler.wait_for_output("celery-beat is at work", 60)
    yield host, schedulers
    processes.stop_all()


def lines(host: HostProject, name: str) -> list[Row]:
    return [line for line in host.journal() if line["periodic_task_name"] == name]


def schedulers_of(host: HostProject) -> set[str]:
    rows = host.rows(
        "SELECT DISTINCT scheduler FROM beatkeeper_celery_firing WHERE claimed_at > now() - interval '2 s'"
    )
    return {row["scheduler"].split()[1] for row in rows}


def amid_a_second() -> bool:
    """When rows that are due on the second have nothing in hand."""
    return 0.45 < time.time() % 1 < 0.65


def settle_and_stop(host: HostProject, schedulers: list[RealProcess]) -> None:
    for scheduler in schedulers:
        if scheduler.is_alive():
            assert scheduler.terminate() == 0

    def all_are_run() -> bool:
        sent = {str(firing["message_id"]) for firing in host.firings() if firing["state"] == "sent"}
        return sent <= {line["id"] for line in host.journal()}

    wait_until(all_are_run, 20, "the worker to have run what was sent")


def assert_none_is_lost(host: HostProject, names: list[str], length: timedelta) -> None:
    """Each time of a row's rhythm has its firing, or lies in the gap that one was made up for."""
    for name in names:
        firings = [firing for firing in host.firings() if firing["name"] == name]
        assert len(firings) > 3
        for before, firing in zip(firings, firings[1:], strict=False):
            assert before["planned_at"] + length == (firing["missed_since"] or firing["planned_at"])
            assert firing["state"] == "sent", firing


def assert_none_is_doubled(host: HostProject, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    ran = Counter(line["id"] for line in host.journal())
    assert {message: count for message, count in ran.items() if count > 1 and message not in but} == {}
    times = Counter((firing["task_id"], firing["planned_at"]) for firing in host.firings())
    assert max(times.values()) == 1


def test_every_kind_of_row_runs_under_two_schedulers_of_which_one_is_killed_and_is_imported(
    stage: tuple[HostProject, list[RealProcess]], transactional_db: None, settings: LazySettings
) -> None:
    host, schedulers = stage
    pids = {str(scheduler.pid) for scheduler in schedulers}
    wait_until(lambda: schedulers_of(host) == pids, 30, "both to send")
    wait_until(lambda: all(lines(host, name) for name in [*ONCE, "expires"]), 30, "what runs once")
    expire = "UPDATE django_celery_beat_periodictask SET expires = clock_timestamp() WHERE name = 'expires'"
    host.rows(expire)
    wait_until(lambda: not host.task("expires")["enabled"], 10, "the row to be seen as expired")
    wait_until(amid_a_second, 15, "a quiet moment", interval=0.01)
    schedulers[0].send(signal.SIGKILL)
    killed_at = datetime.now(UTC)
    survivor = {str(schedulers[1].pid)}
    wait_until(lambda: schedulers_of(host) == survivor, 30, "the other to have taken over")

    # An edit that no signal tells of.
    host.rows(
        "UPDATE django_celery_beat_periodictask SET last_run_at = now() - interval '2 h' WHERE name = 'waits'"
    )
    edited_at = time.time()
    (line,) = wait_until(lambda: lines(host, "waits"), 10, "the edited row to run")
    assert line["at"] - edited_at < 3, "it should take below a second; this is what a loaded machine gets"
    settle_and_stop(host, schedulers)

    assert_none_is_doubled(host)
    assert_none_is_lost(host, EVERY_SECOND, timedelta(seconds=1))
    assert_none_is_lost(host, ["half a second"], timedelta(microseconds=500_000))
    assert any(firing["claimed_at"] > killed_at for firing in host.firings())
    assert {name: len(lines(host, name)) for name in ONCE} == dict.fromkeys(ONCE, 1)
    assert lines(host, "switched off") == []
    assert_as_asked_for(host)
    settings.CELERY_BEAT_URL = host.url
    assert_all_are_imported_and_given_back(host)


def assert_all_are_imported_and_given_back(host: HostProject) -> None:
    make_pool(slug="default", exported_tasks=["their.witness", "their.routed"])
    given = ("--tenant", make_tenant().slug)
    before = enabled_rows(host)
    assert "Nothing was changed" in import_them(*given)
    assert "minutes: 480 times are the same" in import_them(*given, "--shadow")
    output = import_them(*given, "--apply", "--disable-imported")
    created, left = said(output, "created"), said(output, "not imported")
    assert created >= {*EVERY_SECOND, *JOBS, "switched off", "waits", "from the code"}
    assert left == {*LEFT, "broken", "expires", "celery.backend_cleanup"}
    assert enabled_rows(host) == before - created
    assert said(import_them(*given, "--undo"), "given back") == created
    assert enabled_rows(host) == before


def said(output: str, what: str) -> set[str]:
    """Of which rows."""
    begin = f"{what}  "
    return {line.removeprefix(begin).split(":")[0] for line in output.splitlines() if line.startswith(begin)}


def enabled_rows(host: HostProject) -> set[str]:
    return {
        row["name"] for row in host.rows("SELECT name FROM django_celery_beat_periodictask WHERE enabled")
    }


def assert_as_asked_for(host: HostProject) -> None:
    (dressed,), (routed,) = lines(host, "dressed"), lines(host, "routed")
    assert dressed["queue"] == f"{host.queue}.other" and dressed["priority"] == 7
    assert dressed["colour"] == "red" and dressed["kwargs"] == {"a": 1} and dressed["args"] == ["dressed"]
    assert dressed["celery_beat_task"] is True
    assert 80 < datetime.fromisoformat(dressed["expires"]).timestamp() - dressed["at"] < 91
    assert routed["queue"] == f"{host.queue}.routed"
    for name in ("one off", "clocked", "expires"):
        task = host.task(name)
        assert not task["enabled"] and task["last_run_at"] is None
    expired = host.task("expires")["expires"] + timedelta(seconds=2)
    assert all(firing["planned_at"] < expired for firing in host.firings() if firing["name"] == "expires")
    minutes = host.task("minutes")
    assert minutes["total_run_count"] == 1 and minutes["last_run_at"] is not None
    assert "not JSON" in next(firing["error"] for firing in host.firings() if firing["name"] == "broken")
    assert host.task("from the code")["args"] == '["from the code"]'


@pytest.mark.chaos
def test_schedulers_that_are_killed_at_any_moment_lose_nothing_and_tell_what_may_be_doubled(
    stage: tuple[HostProject, list[RealProcess]], processes: Processes
) -> None:
    host, schedulers = stage
    for number in range(20):
        victim = random.choice(schedulers)
        time.sleep(random.uniform(1.0, 2.0))  # the moment is what is random here
        victim.send(random.choice([signal.SIGKILL, signal.SIGSTOP]))
        schedulers.append(host.start_beat(processes, f"further-{number}"))
        schedulers[-1].wait_for_output("celery-beat is at work", 60)
        time.sleep(random.uniform(0.0, 4.0))
        victim.kill()
        schedulers.remove(victim)
    settle_and_stop(host, schedulers)
    noted = {str(firing["message_id"]) for firing in host.firings() if "may have arrived" in firing["error"]}
    assert_none_is_doubled(host, but=noted)
    assert_none_is_lost(host, EVERY_SECOND, timedelta(seconds=1))


def import_them(*arguments: str) -> str:
    out = StringIO()
    call_command("import_celery_beat", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def planned_times(host: HostProject, platform: Platform) -> list[tuple[datetime, datetime]]:
    """Of the row and its job together: each time, or the first that it stands for, and its end."""
    by_row = [
        (firing["missed_since"] or firing["planned_at"], firing["planned_at"]) for firing in host.firings()
    ]
    by_job = [
        (run["planned_at"], run["planned_at"])
        for run in platform.rows("SELECT planned_at FROM beatkeeper_run")
    ]
    return sorted(by_row + by_job)


def test_a_row_is_served_by_the_platform_then_imported_and_given_back_without_a_gap(
    host: HostProject, platform: Platform, settings: LazySettings
) -> None:
    """Its times, and those of its job, are one unbroken row of seconds: each is the one's or the other's."""
    settings.CELERY_BEAT_URL = host.url
    second = interval(host, 1)
    last = now(host).replace(microsecond=0)
    add(host, "each second", task=WITNESS, interval_id=second, last_run_at=last)
    served = {"BEATKEEPER_CELERY_BEAT_URL": host.url, "BEATKEEPER_CELERY_BEAT_QUEUE": host.queue}
    platform.env = lambda: {**Platform.env(platform), **served}  # type: ignore[method-assign]
    scheduler = platform.scheduler()
    platform.worker()
    scheduler.wait_for_output("celery-beat is at work", 60)

    def sent() -> int:
        return sum(firing["state"] == "sent" for firing in host.firings())

    platform.wait(lambda: sent() >= 3, 30, "firings of the row")
    given = ("--tenant", platform.tenant.slug, "--pool", "default")
    with our_connection():
        assert "created  each second" in import_them(*given)
        assert "created  each second" in import_them(*given, "--apply", "--disable-imported")
    before = sent()
    (run,) = platform.rows("SELECT id AS job FROM beatkeeper_job")
    succeeded = "SELECT count(*) AS n FROM beatkeeper_run WHERE job_id = %s AND state = 'succeeded'"
    platform.wait(lambda: platform.rows(succeeded, run["job"])[0]["n"] >= 3, 60, "runs of the job")
    assert sent() == before
    with our_connection():
        assert "given back  each second" in import_them(*given[:2], "--undo")
    platform.wait(lambda: sent() >= before + 3, 30, "firings after the way back")
    assert scheduler.terminate() == 0

    times = planned_times(host, platform)
    for (_, earlier), (later, _) in zip(times, times[1:], strict=False):
        assert later - earlier == timedelta(seconds=1), times
    assert platform.queue(host.queue)[0] == sent()
