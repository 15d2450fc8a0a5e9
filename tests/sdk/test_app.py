"""A keeper beside a Celery app: its settings, its environment and what it leaves alone."""

from typing import Any

import pytest
from celery import Celery
from kombu.utils.imports import symbol_by_name

from scheduler_project.sdk import Beatkeeper
from scheduler_project.sdk.worker.wakeup_task import WakeupTask


@pytest.fixture
def keeper() -> Beatkeeper:
    return Beatkeeper(Celery("declared", broker="memory://", set_as_current=False), tenant="acme")


def test_no_setting_of_the_app_is_changed() -> None:
    app = Celery("untouched", broker="memory://", set_as_current=False)
    before = dict(app.conf)
    Beatkeeper(app)
    app.finalize()
    assert dict(app.conf) == before


@pytest.mark.parametrize("at_start", [True, False])
def test_a_code_base_may_leave_declaring_to_its_deploys(at_start: bool) -> None:
    app = Celery("declares", broker="memory://", set_as_current=False)
    keeper = Beatkeeper(app, declare_at_start=at_start)
    keeper.job("settle", every=60)(app.task(name="shop.settle", shared=False)(nothing))
    assert len(keeper.config("w", 1, without_wakeups=True).declarations) == at_start


def nothing() -> None: ...


def test_the_wakeup_task_is_known_to_this_app_only() -> None:
    mine, other = Celery("mine", set_as_current=False), Celery("other", set_as_current=False)
    Beatkeeper(mine)
    assert "beatkeeper.run" in mine.tasks
    assert "beatkeeper.run" not in other.tasks


def test_times_that_contradict_each_other_are_refused(keeper: Beatkeeper) -> None:
    wrong = Beatkeeper(keeper.app, lease_seconds=5, beat_seconds=5)
    with pytest.raises(ValueError, match="not above"):
        wrong.config("w", 1, without_wakeups=True)


def test_a_grace_that_outlasts_recovery_is_refused(
    keeper: Beatkeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEATKEEPER_GRACE_SECONDS", "61")
    with pytest.raises(ValueError, match="BEATKEEPER_GRACE_SECONDS=61 is outside 0 to 30"):
        keeper.config("w", 1, without_wakeups=True)


@pytest.mark.parametrize(
    ("name", "value", "mistake"),
    [
        ("FEED_AFTER", "x", "='x' is not a number of seconds"),
        ("FEED_AFTER", "60.5", "=60.5 is outside 0 to 60"),
        ("DRAIN", "inf", "=inf is outside 0 to 3600"),
        ("GRACE", "nan", "=nan is outside 0 to 30"),
        ("FENCE_MARGIN", "0.5", "=0.5 is outside 1 to 600"),
        ("LEASE", "1", "=1 is outside 2 to 3600"),
        ("BEAT", "-1", "=-1 is outside 0.2 to 600"),
    ],
)
def test_a_time_that_makes_no_sense_is_refused_by_its_variable(
    keeper: Beatkeeper, monkeypatch: pytest.MonkeyPatch, name: str, value: str, mistake: str
) -> None:
    monkeypatch.setenv(f"BEATKEEPER_{name}_SECONDS", value)
    with pytest.raises(ValueError, match=f"^BEATKEEPER_{name}_SECONDS{mistake}$"):
        keeper.config("w", 1, without_wakeups=False)


@pytest.mark.parametrize("value", ["1001", "-1", "many"])
def test_slots_that_make_no_sense_are_refused(
    keeper: Beatkeeper, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("BEATKEEPER_SLOTS", value)
    with pytest.raises(ValueError, match=f"^BEATKEEPER_SLOTS='{value}' is not a number from 0 to 1000$"):
        assert keeper.slots


def test_a_given_time_that_makes_no_sense_is_refused(keeper: Beatkeeper) -> None:
    wrong = Beatkeeper(keeper.app, margin_seconds=float("nan"))
    with pytest.raises(ValueError, match="BEATKEEPER_FENCE_MARGIN_SECONDS=nan is outside 1 to 600"):
        wrong.config("w", 1, without_wakeups=True)


def test_a_task_whose_name_is_too_long_for_the_ledger_is_not_offered() -> None:
    app = Celery("long", broker="memory://", set_as_current=False)
    keeper = Beatkeeper(app)

    def body() -> None: ...

    for name in ("x" * 201, "y" * 200):
        app.task(name=name, shared=False)(body)
    known = keeper.targets.known()
    assert "y" * 200 in known
    assert "x" * 201 not in known


def test_what_celery_imports_by_name_is_there(keeper: Beatkeeper) -> None:
    """Steps and requests of a worker are named, so that a process that only sends tasks need not import them."""
    app: Any = keeper.app
    named = [step for steps in app.steps.values() for step in steps if isinstance(step, str)]
    assert len(named) == 2
    for name in (*named, WakeupTask.Request):
        assert symbol_by_name(name)
