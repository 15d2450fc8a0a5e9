"""A task that Beatkeeper runs sees what it would see from `celery worker`, and sends no message of its own."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from celery import Celery, signals
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject
from kombu import Producer

from scheduler_project.sdk.execution.attempt import call, execute
from scheduler_project.sdk.execution.interrupts import Interrupts
from scheduler_project.sdk.ledger.interface import Claim
from scheduler_project.sdk.logs.capture import AttemptLog
from scheduler_project.sdk.logs.folder import FolderLogStore
from scheduler_project.sdk.outcomes import Outcome, now_utc
from scheduler_project.sdk.retries import verdict_on
from scheduler_project.sdk.shared.owned_slot import OwnedSlot
from scheduler_project.sdk.shared.slots import SlotTable
from scheduler_project.sdk.targets.celery_task import CeleryTarget
from scheduler_project.sdk.targets.registry import TargetCall, Targets

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
seen: dict[str, Any] = {}

app = Celery("targets", broker="memory://", set_as_current=False)


@app.task(name="t.looks", bind=True)
def looks(self: Any, *args: Any, **kwargs: Any) -> str:
    request = self.request
    seen.update(
        id=request.id,
        retries=request.retries,
        eager=request.is_eager,
        direct=request.called_directly,
        args=args,
        kwargs=kwargs,
        attempt=request.headers["beatkeeper_attempt"],
        job=request.beatkeeper_job,
        name=self.name,
    )
    return "looked"


@app.task(name="t.retries", bind=True, max_retries=2)
def retries(self: Any, /, **options: Any) -> None:
    raise self.retry(exc=ValueError("later"), **options)


@app.task(name="t.slow", bind=True, default_retry_delay=33)
def slow(self: Any) -> None:
    raise self.retry()


@app.task(name="t.gives_up", bind=True)
def gives_up(self: Any) -> str:
    try:
        raise self.retry()
    except MaxRetriesExceededError:
        return "gave up"


@app.task(name="t.moves_on", bind=True)
def moves_on(self: Any, *args: Any, **kwargs: Any) -> None:
    raise self.retry(**seen["changes"])


@app.task(name="t.auto", autoretry_for=(KeyError,), retry_backoff=3, retry_jitter=False)
def auto() -> None:
    raise KeyError("gone")


@app.task(name="t.ignores")
def ignores() -> None:
    raise Ignore


class Replacing(app.Task):  # type: ignore[misc,name-defined]
    abstract = True

    def replace(self, sig: Any) -> Any:
        return super().replace(sig)

    def elsewhere(self, sig: Any) -> Any:
        return app.Task.replace(self, sig)


@app.task(name="t.replaces", base=Replacing, bind=True, autoretry_for=(Exception,))
def replaces(self: Any, how: str) -> Any:
    seen["ran"] = True
    return getattr(self, how)({"task": adds.s(1), "chain": adds.s(1) | adds.s(2)}[seen["by"]])


@app.task(name="t.rejects")
def rejects(requeue: bool) -> None:
    raise Reject("no room", requeue=requeue)


@app.task(name="t.adds")
def adds(x: int, y: int = 1) -> int:
    return x + y


@app.task(name="t.fails_inside")
def fails_inside() -> None:
    adds.run()


class Wrapped(app.Task):  # type: ignore[misc,name-defined]
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ["wrapped", self.run(*args, **kwargs)]

    def on_failure(self, *args: Any) -> None:
        seen["on_failure"] = args[1]


@app.task(name="t.custom", base=Wrapped)
def custom(fail: bool = False) -> str:
    if fail:
        raise ValueError("custom")
    return "body"


class Table:
    """Calls a target as an attempt in a slot would."""

    def __init__(self, folder: Path) -> None:
        self.owned_slot = OwnedSlot.take(SlotTable.create(folder, 1))
        self.store = FolderLogStore(folder)
        self.targets = Targets(app)
        self.targets.add("celery", CeleryTarget(app))

    def call(self, task: str, *args: Any, **claimed: Any) -> Outcome:
        assert self.owned_slot is not None
        target = {"kind": "celery", "task": task, "args": list(args), "kwargs": claimed.pop("kwargs", {})}
        claim = make_claim(target, **claimed)
        attempt = TargetCall(claim, self.owned_slot, AttemptLog(self.store, claim.run_id, 1), "worker@host")
        return call(attempt, self.targets, Interrupts(self.owned_slot), now_utc())


def make_claim(target: dict[str, Any], **claimed: Any) -> Claim:
    values: dict[str, Any] = {
        "run_id": uuid4(),
        "claim_seq": 1,
        "token": uuid4(),
        "incarnation": uuid4(),
        "attempt": 1,
        "job_id": uuid4(),
        "job_name": "settle",
        "version": 1,
        "tenant_id": 1,
        "tenant": "team",
        "trigger": "schedule",
        "planned_at": AT,
        "claimed_at": AT,
        "target": target,
        "input": None,
        "timeout": 60.0,
        "retry": {},
        "gated": False,
        "allowed_hosts": [],
        **claimed,
    }
    return Claim(**values)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    seen.clear()
    with patch.object(Producer, "publish") as published:
        yield Table(tmp_path)
        assert not published.called, "a message was sent"


def test_the_request_is_the_runs(table: Table) -> None:
    run = uuid4()
    outcome = table.call("t.looks", 1, run_id=run, attempt=3, kwargs={"a": 2})
    assert (outcome.kind, outcome.result) == ("succeeded", "looked")
    assert seen == {
        "id": str(run),
        "retries": 2,
        "eager": False,
        "direct": False,
        "args": (1,),
        "kwargs": {"a": 2},
        "attempt": 3,
        "job": "settle",
        "name": "t.looks",
    }


def test_what_a_run_was_given_goes_before_what_its_job_says(table: Table) -> None:
    table.call("t.looks", 1, kwargs={"a": 1, "b": 1}, input={"args": [9], "kwargs": {"b": 2}})
    assert (seen["args"], seen["kwargs"]) == ((9,), {"a": 1, "b": 2})


def test_an_input_that_a_task_would_not_get_is_a_user_error(table: Table) -> None:
    outcome = table.call("t.looks", 1, input={"args": [9], "name": "bob"})
    assert (outcome.error_class, outcome.error_type, seen) == ("user", "BadArguments", {})
    assert "'name'" in (outcome.error_line or "") and "args, kwargs" in (outcome.error_line or "")


@pytest.mark.parametrize(("options", "delay"), [({"countdown": 7}, 7.0), ({}, None), ({"countdown": 0}, 0.0)])
def test_retry_becomes_the_ledgers_business(
    table: Table, options: dict[str, Any], delay: float | None
) -> None:
    """Without a time of its own it waits as the policy of the job says."""
    outcome = table.call("t.retries", kwargs=options)
    assert (outcome.error_class, outcome.error_type, outcome.error_line) == (
        "transient",
        "ValueError",
        "later",
    )
    assert outcome.retry_after == delay


def test_what_a_target_hides_is_not_in_its_error_line(tmp_path: Path) -> None:
    def fails(attempt: TargetCall) -> None:
        raise ValueError(f"no login with {attempt.target['env']['PGPASSWORD']}")

    owned_slot, targets = OwnedSlot.take(SlotTable.create(tmp_path, 1)), Targets(app)
    assert owned_slot is not None
    targets.add("command", fails)
    claim = make_claim({"kind": "command", "argv": ["psql"], "env": {"PGPASSWORD": "xyzzy-4711"}})
    outcome = execute(
        claim, owned_slot, targets, FolderLogStore(tmp_path), Interrupts(owned_slot), "worker@host"
    )
    assert outcome.error_line == "no login with ***"


def test_retry_at_a_time_is_a_delay(table: Table) -> None:
    eta = datetime.now(timezone.utc) + timedelta(seconds=90)
    delay = table.call("t.retries", kwargs={"eta": eta}).retry_after
    assert delay is not None and 85 < delay <= 90


def test_a_delay_that_the_task_has_set_is_its_own(table: Table) -> None:
    assert table.call("t.slow").retry_after == 33.0


@pytest.mark.parametrize(
    ("attempt", "most", "asks"), [(3, 4, True), (4, 4, False), (3, 3, False), (9, 10, True)]
)
def test_the_policy_of_the_job_is_the_tasks_limit(table: Table, attempt: int, most: int, asks: bool) -> None:
    """Its own max_retries is 2. On its last attempt the exception itself comes out, as from a plain worker."""
    outcome = table.call("t.retries", attempt=attempt, retry={"max_attempts": most}, kwargs={"countdown": 7})
    assert outcome.error_type == "ValueError"
    assert (outcome.retry_after == 7.0) is asks
    assert (verdict_on(outcome, attempt, {"max_attempts": most}).state == "delayed") is asks


def test_a_task_may_act_on_its_last_attempt(table: Table) -> None:
    retry = {"max_attempts": 2}
    assert table.call("t.gives_up", attempt=1, retry=retry).error_class == "transient"
    assert table.call("t.gives_up", attempt=2, retry=retry).result == "gave up"


def test_attempts_that_ended_with_their_worker_are_none_of_the_tasks(table: Table) -> None:
    table.call("t.looks", 1, attempt=3, losses=2)
    assert seen["retries"] == 0


def test_a_limit_given_to_one_call_is_for_that_call(table: Table) -> None:
    """Beyond it the exception comes out, and the policy of the job decides."""
    limited = table.call("t.retries", attempt=3, kwargs={"countdown": 7, "max_retries": 1})
    assert (limited.error_class, limited.retry_after) == ("transient", None)
    assert table.call("t.retries", attempt=3, kwargs={"countdown": 7}).retry_after == 7.0


def test_autoretry_gives_up_with_the_policy_not_before(table: Table) -> None:
    outcome = table.call("t.auto", attempt=6, retry={"max_attempts": 9})
    assert outcome.retry_after == 3.0 * 2**5


@pytest.mark.parametrize(
    ("changes", "args", "kwargs"),
    [
        ({"args": [2, 3]}, [2, 3], {"b": 1}),
        ({"kwargs": {"c": 5}}, [1], {"c": 5}),
        ({"args": [], "kwargs": {}}, [], {}),
    ],
)
def test_the_next_attempt_gets_what_retry_was_given(
    table: Table, changes: dict[str, Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    seen["changes"] = changes
    outcome = table.call("t.moves_on", 1, kwargs={"b": 1})
    assert outcome.error_class == "transient"
    table.call("t.looks", 1, kwargs={"b": 1}, input=outcome.next_input)
    assert (list(seen["args"]), seen["kwargs"]) == (args, kwargs)


def test_the_same_arguments_are_no_news(table: Table) -> None:
    seen["changes"] = {"args": (1,), "kwargs": {"b": 1}}
    assert table.call("t.moves_on", 1, kwargs={"b": 1}).next_input is None
    assert table.call("t.retries", kwargs={"countdown": 1}).next_input is None


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 70_000, {1, 2}])
def test_what_cannot_be_kept_for_the_next_attempt_is_the_users_error(table: Table, value: Any) -> None:
    seen["changes"] = {"args": [value]}
    outcome = table.call("t.moves_on", 1)
    assert (outcome.error_class, outcome.error_type) == ("user", "BadArguments")
    assert "self.retry" in str(outcome.error_line)


def test_autoretry_backs_off_by_attempt(table: Table) -> None:
    assert table.call("t.auto").retry_after == 3.0
    assert table.call("t.auto", attempt=3).retry_after == 12.0
    # And again: what it left on the task must not change the next run.
    assert table.call("t.auto").retry_after == 3.0


def test_ignore_ends_the_run_well(table: Table) -> None:
    assert table.call("t.ignores").kind == "succeeded"


@pytest.mark.parametrize("by", ["task", "chain"])
@pytest.mark.parametrize("how", ["replace", "elsewhere"])
def test_a_run_cannot_replace_itself(table: Table, how: str, by: str) -> None:
    """Nothing would say how the other one ended. The table sees that nothing is sent."""
    seen["by"] = by
    outcome = table.call("t.replaces", how)
    assert seen["ran"]
    assert (outcome.error_class, outcome.error_type) == ("user", "CannotReplace")
    assert outcome.error_line == (
        "A run cannot replace itself: call the other task with .delay(), "
        "or let the chain be what the job's task sends"
    )
    assert not {"replace", "on_replace"} & set(vars(app.tasks["t.replaces"]))


def test_reject_is_permanent_unless_it_requeues(table: Table) -> None:
    assert table.call("t.rejects", False).error_class == "permanent"
    assert table.call("t.rejects", True).error_class == "transient"


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1})])
def test_wrong_arguments_are_the_users_error(
    table: Table, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    outcome = table.call("t.adds", *args, kwargs=kwargs)
    assert (outcome.error_class, outcome.error_type) == ("user", "BadArguments")


def test_a_type_error_inside_the_body_is_not_the_users(table: Table) -> None:
    assert table.call("t.fails_inside").error_class == "transient"


@pytest.mark.parametrize("name", ["celery.backend_cleanup", "celery.chord_unlock", "beatkeeper.run"])
def test_tasks_of_celery_and_ours_are_never_targets(table: Table, name: str) -> None:
    assert table.call(name).error_class == "permanent"
    assert name not in table.targets.known()


def test_an_unknown_task_is_the_users_error(table: Table) -> None:
    assert table.call("t.nowhere").error_type == "UnknownTarget"


def test_custom_task_classes_are_respected(table: Table) -> None:
    run = uuid4()
    assert table.call("t.custom").result == ["wrapped", "body"]
    table.call("t.custom", True, run_id=run)
    assert seen["on_failure"] == str(run)


def test_signals_see_the_target_by_its_own_name(table: Table) -> None:
    received: list[tuple[str, str]] = []

    def receiver_of(event: str) -> Any:
        return lambda sender=None, **_: received.append((event, sender.name))

    receivers = {
        name: receiver_of(name) for name in ("task_prerun", "task_success", "task_failure", "task_postrun")
    }
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver, weak=False)
    try:
        table.call("t.adds", 1)
        table.call("t.fails_inside")
    finally:
        for name, receiver in receivers.items():
            getattr(signals, name).disconnect(receiver)
    assert received == [
        ("task_prerun", "t.adds"),
        ("task_success", "t.adds"),
        ("task_postrun", "t.adds"),
        ("task_prerun", "t.fails_inside"),
        ("task_failure", "t.fails_inside"),
        ("task_postrun", "t.fails_inside"),
    ]


def test_afterwards_the_task_is_as_before(table: Table) -> None:
    table.call("t.retries")
    own = vars(app.tasks["t.retries"])
    assert not {"signature_from_request", "override_max_retries"} & set(own)
    assert own.get("max_retries", type(app.tasks["t.retries"]).max_retries) == 2
    assert app.tasks["t.retries"].default_retry_delay == 180


def test_what_the_task_itself_had_is_put_back(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    task = app.tasks["t.retries"]
    own = {"signature_from_request": task.signature_from_request, "replace": task.replace}
    for name, value in own.items():
        monkeypatch.setitem(vars(task), name, value)
    table.call("t.retries")
    assert {name: vars(task).get(name) for name in own} == own


@pytest.mark.parametrize("result", [object(), float("nan"), {"a": "\x00"}, "\ud800", "x" * 20_000, {1, 2}])
def test_a_result_the_database_cannot_hold_is_described(table: Table, result: Any) -> None:
    with patch.object(app.tasks["t.adds"], "run", lambda *_: result):
        table.targets.add("celery", CeleryTarget(app))
        stored = table.call("t.adds", 1).result
    assert list(stored) == ["repr"]
    assert stored["repr"].encode() and len(stored["repr"]) <= 1_000
