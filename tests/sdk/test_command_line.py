"""`beatkeeper plan|apply|drift`: what it prints, and how it ends."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from celery import Celery

from scheduler_project.sdk import Beatkeeper
from scheduler_project.sdk.__main__ import main
from scheduler_project.sdk.declarations.plan import DeclaredJob
from scheduler_project.sdk.errors import PlatformAway

MODULE = "command_line_shop"


class FakeLink:
    """The platform with what it has, and what it was sent."""

    def __init__(self) -> None:
        self.known: list[DeclaredJob] = []
        self.after: list[DeclaredJob] | None = None
        self.declare_calls: list[tuple[list[str], list[str], list[str]]] = []

    def declared(self) -> list[DeclaredJob]:
        return self.known

    def declare(
        self,
        declarations: Sequence[dict[str, Any]],
        *,
        again: Sequence[str] = (),
        withdraw: Sequence[str] = (),
    ) -> list[DeclaredJob]:
        self.declare_calls.append(([str(one["name"]) for one in declarations], list(again), list(withdraw)))
        return self.known if self.after is None else self.after


@pytest.fixture(autouse=True)
def logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep an app from configuring Django's logging, whose stream pytest closes."""
    monkeypatch.setattr("django.utils.log.configure_logging", lambda *_: None)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLink]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    keeper = Beatkeeper(app, ledger="python://nowhere/none", tenant="acme", pool="payments")
    link = FakeLink()
    keeper._link = link  # type: ignore[assignment]

    def settle() -> None: ...

    keeper.job("settle", cron="*/5 * * * *", priority=700)(app.task(name="shop.settle", shared=False)(settle))
    module = type(sys)(MODULE)
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    yield link
    app.close()


def known(name: str, **more: Any) -> DeclaredJob:
    spec = {
        "target": {"kind": "celery", "task": "shop.settle", "args": [], "kwargs": {}},
        "schedule": {"cron": "*/5 * * * *", "timezone": "UTC"},
        "priority": 700,
    }
    values = {"pool": "payments", "source": "shop", "spec": spec, "status": "active", **more}
    return DeclaredJob(name=name, **values)


def run(*arguments: str) -> int:
    return main([*arguments, "--app", MODULE])


def test_plan_shows_each_kind_and_changes_nothing(link: FakeLink, capsys: pytest.CaptureFixture[str]) -> None:
    link.known = [known("settle", spec={**known("x").spec, "priority": 500}), known("old")]
    assert run("plan") == 0
    assert capsys.readouterr().out.splitlines() == [
        "- old   no longer declared: apply --prune cancels it",
        "~ settle",
        "    priority: 500 -> 700",
        "0 to add, 1 to change, 1 no longer declared, 0 drifted, 0 unchanged.",
    ]
    assert link.declare_calls == []


def test_apply_prints_what_changes_and_leaves_the_removed_alone(
    link: FakeLink, capsys: pytest.CaptureFixture[str]
) -> None:
    link.known = [known("old")]
    assert run("apply") == 0
    assert link.declare_calls == [(["settle"], [], [])]
    assert "Applied: 1 of 1." in capsys.readouterr().out


def test_pruning_needs_its_option(link: FakeLink) -> None:
    link.known = [known("settle"), known("old"), known("foreign", source="other")]
    assert run("apply", "--prune") == 0
    assert link.declare_calls == [([], [], ["old"])]


def test_nothing_to_do_sends_nothing(link: FakeLink) -> None:
    link.known = [known("settle")]
    assert run("apply") == 0 and link.declare_calls == []


def test_what_was_edited_by_hand_is_drift_and_is_put_back_by_apply(
    link: FakeLink, capsys: pytest.CaptureFixture[str]
) -> None:
    link.known = [known("settle", applied={"priority": 700}, present={"priority": 7}, edited_by="olga")]
    assert run("drift") == 1
    assert "edited by hand by olga: priority: 700 -> 7" in capsys.readouterr().out
    assert run("drift", "--json") == 1
    [change] = json.loads(capsys.readouterr().out)
    assert (
        change["drift"] == [{"field": "priority", "before": 700, "after": 7}]
        and change["edited_by"] == "olga"
    )
    assert run("apply") == 0
    assert link.declare_calls == [(["settle"], ["settle"], [])]


def test_without_drift_it_ends_with_zero(link: FakeLink, capsys: pytest.CaptureFixture[str]) -> None:
    link.known = [known("settle", applied={"priority": 700}, present={"priority": 700})]
    assert run("drift") == 0
    assert capsys.readouterr().out == "Every declared job is as it was applied.\n"


def test_what_was_refused_and_what_waits_end_with_one(
    link: FakeLink, capsys: pytest.CaptureFixture[str]
) -> None:
    link.after = [known("settle", error="priority: too high")]
    assert run("apply") == 1
    assert "refused: settle: priority: too high" in capsys.readouterr().err
    link.after = [known("settle", waiting=True)]
    assert run("apply", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["waiting"] == ["settle"] and answer["changes"][0]["change"] == "added"


def test_a_platform_that_is_away_ends_with_two(
    link: FakeLink, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> list[DeclaredJob]:
        raise PlatformAway("it gave no answer")

    monkeypatch.setattr(link, "declared", away)
    assert [run(act) for act in ("plan", "drift", "apply")] == [2, 2, 2]
    assert "beatkeeper: it gave no answer" in capsys.readouterr().err


def test_an_app_without_a_keeper_and_none_at_all_are_said(
    link: FakeLink, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Celery("bare", set_as_current=False)
    monkeypatch.setattr(sys.modules[MODULE], "app", bare)
    assert run("plan") == 2
    assert "has no Beatkeeper" in capsys.readouterr().err
    assert main(["plan", "--app", "no_such_module_here"]) == 2
    assert "no_such_module_here" in capsys.readouterr().err
