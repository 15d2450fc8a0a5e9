import threading
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from jobs.models import Overlap
from jobs.spec import fields
from scheduler_project.sdk import Beatkeeper
from scheduler_project.sdk.declarations.checks import InvalidDeclaration
from scheduler_project.sdk.declarations.job_options import FIELDS, OVERLAPS, JobOptions
from scheduler_project.sdk.declarations.task_options import MAX_TIMEOUT, MIN_TIMEOUT
from tests.sdk.stage import Stage
from tests.support.processes import Processes
from tests.support.waiting import wait_until


@pytest.fixture
def keeper() -> Beatkeeper:
    return Beatkeeper(Celery("declared", broker="memory://", set_as_current=False), tenant="acme")


def declared(keeper: Beatkeeper, **options: Any) -> dict[str, Any]:
    @keeper.job(**options)
    @keeper.app.task(name="shop.settle", shared=False)
    def settle() -> str:
        return "settled"

    [declaration] = keeper.declarations()
    assert declaration.pop("source") == "declared"
    return declaration


def test_a_declared_task_is_the_same_task(keeper: Beatkeeper) -> None:
    @keeper.app.task(name="shop.settle", shared=False)
    def settle() -> str:
        return "settled"

    assert keeper.job(every=60)(settle) is settle
    assert settle() == "settled"
    assert callable(settle.delay)


def test_a_second_keeper_of_an_app_has_what_was_declared_with_the_first(keeper: Beatkeeper) -> None:
    """As when a factory is called twice: the decorators of its modules are not carried out again."""
    declared(keeper, name="early", every=60)
    keeper.executor("ours")(lambda attempt: None)
    second = Beatkeeper(keeper.app, tenant="acme")
    keeper.job("late", every=60)(keeper.app.tasks["shop.settle"])
    assert [one["name"] for one in second.declarations()] == ["early", "late"]
    assert "kind:ours" in second.targets.known()


def test_a_task_that_is_declared_again_by_the_same_name_is_one_job(keeper: Beatkeeper) -> None:
    declared(keeper, name="settle", every=60)
    keeper.job("settle", every=90)(keeper.app.tasks["shop.settle"])
    [job] = keeper.declarations()
    assert job["schedule"] == {"every": 90.0}


def test_what_is_said_is_declared_and_nothing_else(keeper: Beatkeeper) -> None:
    assert declared(
        keeper,
        cron="*/5 * * * *",
        timezone="America/New_York",
        priority=700,
        retries=5,
        timeout=60,
        overlap="skip",
        tags={"team": "payments"},
        args=[1],
        kwargs={"a": 2},
    ) == {
        "name": "shop.settle",
        "target": {"kind": "celery", "task": "shop.settle", "args": [1], "kwargs": {"a": 2}},
        "schedule": {"cron": "*/5 * * * *", "timezone": "America/New_York"},
        "priority": 700,
        "timeout": 60.0,
        "overlap": "skip",
        "tags": {"team": "payments"},
        "retry": {"max_attempts": 6},
    }


def test_a_calendar_a_window_and_what_to_make_up_for(keeper: Beatkeeper) -> None:
    found = declared(
        keeper,
        cron="0 9 * * *",
        calendar="us-holidays",
        on_closed="next",
        jitter=timedelta(minutes=5),
        catch_up={"policy": "all", "per_minute": 30, "window": timedelta(hours=6)},
    )
    assert found["schedule"] == {
        "cron": "0 9 * * *",
        "timezone": "UTC",
        "calendar": {"name": "us-holidays", "on_closed": "next"},
        "jitter": 300.0,
    }
    assert found["catch_up"] == {"policy": "all", "per_minute": 30, "window": 21_600.0}


def test_the_short_forms(keeper: Beatkeeper) -> None:
    found = declared(keeper, every=60, calendar="days", catch_up="skip")
    assert found["schedule"] == {"every": 60.0, "calendar": {"name": "days", "on_closed": "exclude"}}
    assert found["catch_up"] == {"policy": "skip"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 60, "on_closed": "next"}, "name the calendar"),
        ({"every": 60, "calendar": "days", "on_closed": "later"}, "none of exclude, next, previous"),
        ({"calendar": "days"}, "belong to a schedule"),
        ({"every": 60, "jitter": 0}, "not above zero"),
        ({"every": 60, "jitter": "5 minutes"}, "no ISO 8601 duration"),
        ({"every": 60, "catch_up": "every"}, "none of the policies"),
        ({"every": 60, "catch_up": {"per_minute": 5}}, "none of the policies"),
    ],
)
def test_what_is_wrong_with_them_is_said_at_once(
    keeper: Beatkeeper, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        declared(keeper, **options)


@pytest.mark.parametrize(
    ("limits", "timeout"),
    [
        ({"soft_time_limit": 30, "time_limit": 45}, 30.0),
        ({"time_limit": 45}, 45.0),
        ({"soft_time_limit": 0.5}, MIN_TIMEOUT),
        ({"soft_time_limit": 365 * 86_400}, MAX_TIMEOUT),
        ({}, None),
        ({"soft_time_limit": 0, "time_limit": 0}, None),
        # What every task of the app has is not its own.
        ({"soft_time_limit": 600, "time_limit": 45}, 45.0),
    ],
)
def test_a_job_without_a_timeout_has_its_tasks(
    keeper: Beatkeeper, limits: dict[str, Any], timeout: float | None
) -> None:
    app: Any = keeper.app
    app.conf.update(task_soft_time_limit=600, task_time_limit=900)
    settle = app.task(name="shop.settle", shared=False, **limits)(nothing)
    keeper.job("its own")(settle)
    keeper.job("said", timeout="PT7S")(settle)
    own, said = keeper.declarations()
    assert (own.get("timeout"), said["timeout"]) == (timeout, "PT7S")


def test_without_a_schedule_a_job_runs_on_demand(keeper: Beatkeeper) -> None:
    declaration = declared(keeper)
    assert declaration["schedule"] is None
    assert set(declaration) == {"name", "target", "schedule"}


@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        ({"cron": "0 5 * * *"}, {"cron": "0 5 * * *", "timezone": "UTC"}),
        ({"every": 30}, {"every": 30.0}),
        ({"every": timedelta(minutes=1)}, {"every": 60.0}),
        ({"every": "PT1M"}, {"every": "PT1M"}),
        ({"at": datetime(2027, 1, 1, tzinfo=timezone.utc)}, {"at": "2027-01-01T00:00:00+00:00"}),
        ({"at": "2027-01-01T00:00:00Z"}, {"at": "2027-01-01T00:00:00+00:00"}),
        (
            {"at": "2027-12-24T18:00", "timezone": "Europe/Berlin"},
            {"at": "2027-12-24T18:00:00", "timezone": "Europe/Berlin"},
        ),
        (
            {"at": datetime(2027, 12, 24, 18), "timezone": "Europe/Berlin"},  # noqa: DTZ001
            {"at": "2027-12-24T18:00:00", "timezone": "Europe/Berlin"},
        ),
    ],
)
def test_a_schedule_is_written_as_the_api_reads_it(
    keeper: Beatkeeper, options: dict[str, Any], schedule: dict[str, Any]
) -> None:
    assert declared(keeper, **options)["schedule"] == schedule


@pytest.mark.parametrize(
    "options",
    [
        {"cron": "* * * * *", "every": 5},
        {"cron": "nonsense"},
        {"every": 0},
        {"every": "a minute"},
        {"every": 5, "timezone": "UTC"},
        {"timezone": "UTC"},
        {"at": "2027-01-01T00:00:00"},
        {"at": "2027-01-01T00:00:00Z", "timezone": "UTC"},
        {"at": "2027-01-01T00:00:00.5", "timezone": "UTC"},
        {"priority": 1001},
        {"retries": -1},
        {"timeout": -3},
        {"overlap": "sometimes"},
        {"overlap": "buffer"},
    ],
)
def test_a_mistake_is_raised_where_it_was_made(keeper: Beatkeeper, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidDeclaration):
        declared(keeper, **options)


def test_each_option_fills_one_field() -> None:
    filling = [option for field in FIELDS.values() for option in field.options]
    assert len(filling) == len(set(filling))
    assert {*filling, "args", "kwargs"} == set(JobOptions.__annotations__)


def test_an_unknown_option_is_refused(keeper: Beatkeeper) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'evry'"):
        keeper.job(evry=60)  # type: ignore[call-arg]


@pytest.mark.parametrize(("earlier", "now"), [("start", "begins_at"), ("end", "ends_at")])
def test_an_earlier_option_is_refused_with_the_one_of_today(
    keeper: Beatkeeper, earlier: str, now: str
) -> None:
    with pytest.raises(TypeError, match=f"{earlier}.*did you mean {now}"):
        keeper.job(every=60, **{earlier: "2027-01-01T00:00:00Z"})  # type: ignore[arg-type]


def test_a_decorator_without_parentheses_is_refused(keeper: Beatkeeper) -> None:
    with pytest.raises(TypeError, match=r"write @keeper\.job\(\) above"):
        keeper.job(keeper.app.task(name="shop.settle", shared=False)(nothing))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kwargs": {"day": date(2026, 1, 1)}}, "kwargs cannot be written as JSON: Object of type date"),
        ({"args": [b"x"]}, "args cannot be written as JSON: Object of type bytes"),
        ({"kwargs": {"price": Decimal("1.5")}}, "kwargs cannot be written as JSON: Object of type Decimal"),
        ({"kwargs": {"x": float("nan")}}, "kwargs cannot be written as JSON: Out of range"),
        ({"kwargs": {(1, 2): 3}}, "kwargs cannot be written as JSON: keys must be str"),
        ({"tags": {"since": date(2026, 1, 1)}}, "tags cannot be written as JSON"),
        ({"breaker": {"failures": date(2026, 1, 1)}}, "breaker cannot be written as JSON"),
        ({"args": "abc"}, "args takes list, not str"),
        ({"description": 5}, "description takes str, not int"),
        ({"cron": crontab(minute="*/30")}, "cron takes str, not crontab"),
        ({"every": schedule(30)}, "is no number of seconds, no timedelta"),
        ({"every": float("nan")}, "not above zero"),
        ({"retry": [5]}, "retry takes dict, not list"),
        ({"catch_up": 5}, "catch_up takes str or dict, not int"),
    ],
)
def test_a_value_that_cannot_be_declared_names_task_and_option(
    keeper: Beatkeeper, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidDeclaration, match=f"^The task shop.settle cannot be declared: .*{said}"):
        declared(keeper, **options)
    assert keeper.declarations() == []


class Promise:
    """A lazy translation, recognized by the name of Django's class."""

    def __init__(self, text: str, mistake: Exception | None = None) -> None:
        self.text, self.mistake = text, mistake
        self.threads: list[threading.Thread] = []

    def __str__(self) -> str:
        self.threads.append(threading.current_thread())
        if self.mistake:
            raise self.mistake
        return self.text


def test_a_lazy_translation_is_text_when_it_is_declared(keeper: Beatkeeper) -> None:
    """Outside the thread of a request, whose language must not decide what is declared."""
    lazy = Promise("settles")
    task = keeper.app.task(name="shop.settle", shared=False)(nothing)
    keeper.job(description=lazy, tags={"what": lazy}, kwargs={"titles": [lazy, (1, 2)]})(task)  # type: ignore[arg-type, dict-item]
    assert lazy.threads == []
    [found] = keeper.declarations()
    assert (found["description"], found["tags"]) == ("settles", {"what": "settles"})
    assert found["target"]["kwargs"] == {"titles": ["settles", [1, 2]]}
    assert threading.current_thread() not in lazy.threads


def test_a_translation_that_fails_is_the_mistake_of_its_task_alone(keeper: Beatkeeper) -> None:
    wrong = Promise("", RuntimeError("no catalog"))
    keeper.job(description=wrong)(keeper.app.task(name="shop.wrong", shared=False)(nothing))  # type: ignore[arg-type]
    good = keeper.job()(keeper.app.task(name="shop.good", shared=False)(nothing))
    with pytest.raises(InvalidDeclaration, match=r"The task shop\.wrong cannot be declared: no catalog"):
        keeper.declarations()
    keeper.app.conf.task_always_eager = True
    assert keeper.run_now(good).succeeded


def test_a_plain_function_is_refused(keeper: Beatkeeper) -> None:
    with pytest.raises(TypeError, match=r"above @app\.task"):
        keeper.job(every=60)(nothing)  # type: ignore[call-overload]


def nothing() -> None: ...


def test_bounds_of_a_schedule_and_of_a_job(keeper: Beatkeeper) -> None:
    begin, end = datetime(2027, 1, 1, tzinfo=timezone.utc), "2027-02-01T00:00:00Z"
    found = declared(keeper, every=60, begins_at=begin, ends_at=end, max_concurrency=2, description="settles")
    assert found["schedule"] == {
        "every": 60.0,
        "begins_at": "2027-01-01T00:00:00+00:00",
        "ends_at": "2027-02-01T00:00:00+00:00",
    }
    assert (found["max_concurrency"], found["description"]) == (2, "settles")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"begins_at": "2027-01-01T00:00:00Z"}, "cron or every"),
        ({"at": "2027-01-01T00:00:00Z", "ends_at": "2028-01-01T00:00:00Z"}, "cron or every"),
        (
            {"every": 5, "begins_at": "2028-01-01T00:00:00Z", "ends_at": "2027-01-01T00:00:00Z"},
            "is not after begins_at",
        ),
        ({"every": 5, "begins_at": "someday"}, "begins_at='someday' is no instant"),
        ({"every": 5, "ends_at": "2027-01-01T00:00:00"}, "ends_at=2027-01-01T00:00:00 has no timezone"),
        ({"max_concurrency": 0}, "not above zero"),
    ],
)
def test_bounds_that_make_no_sense(keeper: Beatkeeper, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        declared(keeper, **options)


def test_declarations_reach_the_ledger_when_a_worker_starts(processes: Processes, tmp_path: Path) -> None:
    stage = Stage(processes, tmp_path)
    stage.feed(SAMPLE_DECLARES="1")
    wait_until(stage.ledger.declared, 10, "a declaration")
    assert [job["name"] for job in stage.ledger.declared()] == ["sample"]


def test_the_platform_knows_the_same_overlap_policies() -> None:
    assert list(OVERLAPS) == Overlap.values


def test_the_platform_takes_what_tasks_say_of_their_limits() -> None:
    bounds = [timedelta(seconds=seconds) for seconds in (MIN_TIMEOUT, MAX_TIMEOUT)]
    assert bounds == [fields.MIN_TIMEOUT, fields.MAX_TIMEOUT]
