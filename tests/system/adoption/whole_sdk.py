"""A code base that uses the whole SDK: each option, method and attribute that its pages and signatures name.

`test_whole_sdk.py` starts its workers, calls `call_everything` in other processes of it, and reads this file to see
that nothing is left out.
"""

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from celery import Celery, Task, shared_task

from scheduler_project.sdk import (
    Beatkeeper,
    BeatkeeperError,
    PermanentError,
    PlatformAway,
    PlatformRefused,
    RequestedRun,
)
from scheduler_project.sdk.targets.registry import TargetCall

SECONDS = 60

app = Celery("whole", broker=os.environ["SHOP_BROKER_URL"])
app.conf.update(task_default_queue=os.environ["SHOP_QUEUE"], task_ignore_result=True)


def other_executor(attempt: TargetCall) -> str:
    return f"instead of a call, {attempt.target['kind']}"


if os.environ["SHOP_LINK"] == "https":
    keeper = Beatkeeper(
        app,
        url=os.environ["SHOP_URL"],
        api_key=os.environ["SHOP_KEY"],
        ca_file=os.environ["SHOP_CA_FILE"],
        broker_url=os.environ["SHOP_BROKER_URL"],
        spool_folder=os.environ["SHOP_SPOOL"],
        lease_seconds=6,
        beat_seconds=1,
        margin_seconds=2.5,
        request_seconds=20,
        region="here",
        declare_at_start=True,
    )
elif os.environ["SHOP_LINK"] == "database":
    keeper = Beatkeeper(
        app,
        database_url=os.environ["SHOP_DATABASE_URL"],
        tenant=os.environ["SHOP_TENANT"],
        pool=os.environ["SHOP_POOL"],
        log_store=os.environ["SHOP_LOG_STORE"],
        slots=3,
        executors={"http": other_executor},
        declare_at_start=False,
    )
else:
    # By the environment, which names the platform over HTTPS or its database.
    keeper = Beatkeeper(app, tenant=os.environ.get("SHOP_TENANT"), pool=os.environ.get("SHOP_POOL"))


@keeper.executor("command")
def no_command(attempt: TargetCall) -> str:
    return f"instead of a {attempt.target['kind']}"


class Promise:
    """A lazy translation, by the name of Django's class."""

    def __str__(self) -> str:
        return "Closes the year"


@keeper.job(
    name="yearly",
    description=Promise(),  # type: ignore[arg-type]
    tags={"team": "shop"},
    cron="0 5 1 2 *",
    timezone="America/New_York",
    begins_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    ends_at="2040-01-01T00:00:00Z",
    calendar="days",
    on_closed="next",
    jitter=timedelta(minutes=5),
)
@app.task
def yearly() -> str:
    return "yearly"


@keeper.job(
    every="PT24H",
    args=["a"],
    kwargs={"day": 1},
    priority=700,
    timeout=30,
    retries=2,
    overlap="allow_all",
    max_concurrency=2,
    catch_up="skip",
)
@app.task
def daily(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@keeper.job(at=os.environ["SHOP_AT"])
@shared_task
def once() -> str:
    return "once"


@keeper.job(at=os.environ["SHOP_LOCAL_AT"], timezone="America/New_York")
@app.task
def once_by_the_clock() -> str:
    return "once by the clock"


@keeper.job(
    retry={
        "max_attempts": 2,
        "backoff": "fixed",
        "base": 0.1,
        "cap": 0.1,
        "jitter": "none",
        "max_losses": 2,
        "transient": [ConnectionError],
        "permanent": [KeyError],
        "user": ["ValueError"],
    },
    breaker={"failures": 50, "cooldown": 60},
)
@app.task(bind=True)
def fails_once(self: Any) -> int:
    if self.request.retries == 0:
        raise ConnectionError("the first time")
    return int(self.request.retries)


class OfClass(Task):  # type: ignore[type-arg]
    name = "whole.of_class"

    def run(self) -> str:
        return "of a class"


of_class = keeper.job()(app.register_task(OfClass()))


@keeper.job("report in the morning", every=86_400)
@keeper.job("report in the evening", every=86_400)
@app.task
def report() -> str:
    return "report"


@keeper.job()
@app.task
def never() -> None:
    raise PermanentError("this will never do")


@keeper.job()
@app.task
def endless() -> None:
    time.sleep(600)


@app.task
def undeclared(path: str = "") -> str:
    if path:
        Path(path).touch()
    return "undeclared"


def call_everything() -> None:
    """In a process that is no worker; a line is printed when all came out as it should."""
    soon = datetime.now(timezone.utc) + timedelta(seconds=4)
    planned: dict[str, RequestedRun] = {
        "yearly now": yearly.run_now(),
        "yearly at": yearly.schedule(at=soon),
        "daily now": daily.run_now(key="now"),
        "daily now, other input": daily.run_now(args=["b"], kwargs={"day": 2}),
        "daily at": daily.schedule(at=soon.isoformat(), key="at"),
        "daily at, other input": daily.schedule(args=["c"], kwargs={"day": 3}, at=soon),
        "once now": once.run_now(),
        "once at": once.schedule(at=soon),
        "fails_once now": fails_once.run_now(),
        "fails_once at": fails_once.schedule(at=soon),
        "of_class now": of_class.run_now(),
        "of_class at": of_class.schedule(at=soon),
        "report now": report.run_now(job="report in the evening"),
        "report at": report.schedule(at=soon, job="report in the morning"),
        "by keeper now": keeper.run_now(daily, args=["d"], kwargs={"day": 4}, key="keeper"),
        "job by keeper now": keeper.run_now(report, job="report in the morning"),
        "by keeper at": keeper.schedule(undeclared, args=[], kwargs={}, at=soon, key="keeper at"),
        "job by keeper at": keeper.schedule(report, at=soon, job="report in the evening"),
        "never now": never.run_now(),
        "never at": never.schedule(at=soon),
    }
    again = daily.run_now(key="now")
    assert (again.id, again.key) == (planned["daily now"].id, "now")
    cancel_in_time()
    for name, run in planned.items():
        run.wait(timeout=SECONDS)
        assert run.finished and run.run_id, (name, run)
        assert run.at is None or abs(run.at - soon) < timedelta(seconds=1), (name, run.at)
    results = {name: run.result if run.succeeded else (run.state, run.error) for name, run in planned.items()}
    dead = ("dead", "this will never do")
    assert results == {
        "yearly now": "yearly",
        "yearly at": "yearly",
        "daily now": [["a"], {"day": 1}],
        "daily now, other input": [["b"], {"day": 2}],
        "daily at": [["a"], {"day": 1}],
        "daily at, other input": [["c"], {"day": 3}],
        "once now": "once",
        "once at": "once",
        "fails_once now": 1,
        "fails_once at": 1,
        "of_class now": "of a class",
        "of_class at": "of a class",
        "report now": "report",
        "report at": "report",
        "by keeper now": [["d"], {"day": 4}],
        "job by keeper now": "report",
        "by keeper at": "undeclared",
        "job by keeper at": "report",
        "never now": dead,
        "never at": dead,
    }, results
    found = keeper.requested(planned["daily at"].id)
    assert (found.state, found.job_id) == ("succeeded", planned["daily at"].job_id)
    refused_and_away()
    own_tasks_and_eager_ones()
    print("all came out as it should")  # noqa: T201


def cancel_in_time() -> None:
    running, later = endless.run_now(), endless.schedule(at=datetime.now(timezone.utc) + timedelta(hours=1))
    until = time.monotonic() + SECONDS
    while running.refresh().state != "running" and time.monotonic() < until:
        time.sleep(0.1)
    assert running.cancel().wait(timeout=SECONDS).state == "cancelled", running
    assert later.cancel().wait(timeout=SECONDS).state == "cancelled", later


def refused_and_away() -> None:
    try:
        daily.run_now(args=["other"], key="now")
    except PlatformRefused as refused:
        assert refused.field == "key" and refused.detail and refused.hint, refused
    else:
        raise AssertionError("a key that was used for another request")
    lost = Beatkeeper(
        Celery("lost", set_as_current=False),
        ledger="postgresql://nobody@127.0.0.1:1/none",
        tenant="shop",
        pool="shop",
        request_seconds=5,
    )
    try:
        lost.schedule(undeclared, at=datetime.now(timezone.utc))
    except BeatkeeperError as away:
        assert isinstance(away, PlatformAway), away
    else:
        raise AssertionError("there is no platform")


def own_tasks_and_eager_ones() -> None:
    sign = Path(os.environ["SHOP_SIGN"])
    undeclared.delay(str(sign))
    until = time.monotonic() + SECONDS
    while not sign.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert sign.exists(), "its own worker runs its own tasks"
    app.conf.task_always_eager = True
    assert daily.schedule(at="2040-01-01T00:00:00Z").result == [["a"], {"day": 1}]
    app.conf.task_eager_propagates = True
    try:
        never.run_now()
    except PermanentError:
        return
    raise AssertionError("eager tasks raise where the app says so")
