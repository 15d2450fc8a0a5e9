"""Claim and report when answers come late, twice or not at all. The ledger is staged; the slots are real."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery

from scheduler_project.sdk import processes
from scheduler_project.sdk import work as work_module
from scheduler_project.sdk.celery_target import CeleryTarget
from scheduler_project.sdk.delivery import Delivery
from scheduler_project.sdk.heartbeat import in_hand
from scheduler_project.sdk.ledger import (
    Claim,
    Ended,
    LedgerRefused,
    LedgerUnavailable,
    Told,
    Wanted,
    WorkerInfo,
)
from scheduler_project.sdk.runtime import Config, Runtime
from scheduler_project.sdk.slots import ASKED, FREE
from scheduler_project.sdk.targets import Targets
from scheduler_project.sdk.work import Workbench, work_on_lane
from tests.sdk.fake_ledger import LANE, FakeLedger

app = Celery("work", broker="memory://", set_as_current=False)
executed: list[str] = []


@app.task(name="w.runs", bind=True)
def runs(self: Any) -> str:
    executed.append(self.request.id)
    return "ran"


class StagedLedger(FakeLedger):
    """Something happens right after a statement was carried out, before its answer arrives."""

    after_claim: Callable[[], None] = staticmethod(lambda: None)
    after_report: Callable[[], None] = staticmethod(lambda: None)

    def claim(self, wanted: Wanted, again: bool = False) -> list[Claim]:
        claims = super().claim(wanted, again)
        self.after_claim()
        return claims

    def report(self, ended: Sequence[Ended], wanted: Wanted | None = None) -> Told:
        told = super().report(ended, wanted)
        self.after_report()
        return told


class Bench:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(work_module, "PAUSE", 0.01)
        monkeypatch.setattr(work_module, "REPORT_PATIENCE", 0.05)
        monkeypatch.setattr(work_module, "CLAIM_PATIENCE", 0.2)
        executed.clear()
        self.ledger = StagedLedger(str(folder / "ledger"))
        config = Config("w", "host", "default", "", 1, self.ledger.url, f"file://{folder}/logs", ["w.runs"])
        self.runtime = Runtime.create(folder / "spool", config)
        self.runtime.ledger = lambda: self.ledger  # type: ignore[method-assign]
        targets = Targets(app)
        targets.add("celery", CeleryTarget(app))
        self.bench = Workbench(self.runtime, targets)
        self.begin()

    def begin(self) -> None:
        incarnation = uuid4()
        self.ledger.register(WorkerInfo(incarnation, "w", "default", "host", 1, 1, ["w.runs"]))
        self.runtime.table.incarnation = incarnation
        self.runtime.table.fence_at = processes.boottime() + 30

    def work(self) -> int:
        return work_on_lane(self.bench, LANE, 60.0)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def lost_once() -> Callable[[], None]:
    times: list[int] = []

    def lose() -> None:
        times.append(1)
        if len(times) == 1:
            raise LedgerUnavailable("the answer was lost")

    return lose


def always_lost() -> None:
    raise LedgerUnavailable("the answer was lost")


def test_a_lane_is_worked_until_it_is_empty(bench: Bench) -> None:
    runs = [bench.ledger.add_run("w.runs") for _ in range(3)]
    assert bench.work() == 3
    assert sorted(executed) == sorted(map(str, runs))
    assert bench.runtime.table.states() == [FREE]


def test_a_lost_claim_answer_is_asked_again_and_runs_once(bench: Bench) -> None:
    run = bench.ledger.add_run("w.runs")
    bench.ledger.after_claim = lost_once()
    assert bench.work() == 1
    assert executed == [str(run)]
    assert bench.ledger.run(run)["claim_seq"] == 1


def test_the_slot_names_the_token_before_the_claim_is_asked(bench: Bench) -> None:
    states: list[int] = []
    bench.ledger.add_run("w.runs")
    bench.ledger.after_claim = lambda: states.append(bench.runtime.table.state(0))
    bench.work()
    assert states[0] == ASKED


def test_a_claim_that_stays_unheard_frees_the_slot(bench: Bench) -> None:
    bench.ledger.add_run("w.runs")
    bench.ledger.after_claim = always_lost
    assert bench.work() == 0
    assert executed == []
    assert bench.runtime.table.states() == [FREE]


def test_a_claim_that_stays_unheard_is_left_to_the_guard_to_give_back(bench: Bench) -> None:
    run = bench.ledger.add_run("w.runs")
    bench.ledger.after_claim = always_lost
    bench.work()
    token = UUID(bench.ledger.run(run)["token"])
    assert token in in_hand(bench.runtime).tokens, "else rescue would take it for lost"
    bench.ledger.after_claim = lambda: None
    assert Delivery(bench.runtime, bench.ledger).deliver_all()
    state = bench.ledger.run(run)
    assert (state["state"], state["attempt"], state["losses"]) == ("queued", 0, 0)
    assert not in_hand(bench.runtime).tokens


def test_a_claim_made_unheard_by_a_key_that_is_refused_since_is_left_to_the_guard(bench: Bench) -> None:
    """The next key, or the next minute, may give it back."""
    run = bench.ledger.add_run("w.runs")
    answers = iter([LedgerUnavailable("the answer was lost"), LedgerRefused("the key was revoked")])

    def refused() -> None:
        raise next(answers)

    bench.ledger.after_claim = refused
    assert bench.work() == 0
    assert UUID(bench.ledger.run(run)["token"]) in in_hand(bench.runtime).tokens


def test_what_is_refused_at_once_leaves_nothing_to_the_guard(bench: Bench) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise LedgerRefused("the key was revoked")

    bench.ledger.claim = refuse  # type: ignore[method-assign, assignment]
    assert bench.work() == 0
    assert not bench.runtime.spool.unheard()


def test_an_answer_behind_the_fence_starts_nothing(bench: Bench) -> None:
    run = bench.ledger.add_run("w.runs")
    bench.ledger.after_claim = lambda: setattr(bench.runtime.table, "fence_at", 0.0)
    assert bench.work() == 0
    assert executed == []
    untold = bench.runtime.spool.get(UUID(bench.ledger.run(run)["token"]))
    assert untold is not None and untold.outcome is None, "it is given back"


def test_an_answer_for_an_earlier_incarnation_starts_nothing(bench: Bench) -> None:
    bench.ledger.add_run("w.runs")
    bench.ledger.after_claim = bench.begin
    assert bench.work() == 0
    assert executed == []


def test_an_answer_during_a_drain_is_given_back(bench: Bench) -> None:
    bench.ledger.add_run("w.runs")
    bench.ledger.after_claim = lambda: bench.runtime.table.drain(1e12)
    assert bench.work() == 0
    assert len(bench.runtime.spool.tokens()) == 1


def test_nothing_is_asked_behind_the_fence_or_while_draining(bench: Bench) -> None:
    run = bench.ledger.add_run("w.runs")
    bench.runtime.table.fence_at = 0.0
    assert bench.work() == 0
    bench.begin()
    bench.runtime.table.drain(1e12)
    assert bench.work() == 0
    assert bench.ledger.run(run)["claim_seq"] == 0


def test_a_lost_report_answer_is_told_again_and_counts_once(bench: Bench) -> None:
    run = bench.ledger.add_run("w.runs")
    bench.ledger.after_report = lost_once()
    assert bench.work() == 1
    assert [end["next"] for end in bench.ledger.ends(run)] == ["succeeded"]
    assert bench.runtime.spool.tokens() == []


def test_an_undeliverable_result_is_spooled_and_the_slot_is_free(bench: Bench) -> None:
    run = bench.ledger.add_run("w.runs")
    bench.ledger.after_claim = bench.ledger.away.touch
    bench.work()
    assert bench.runtime.table.states() == [FREE]
    [token] = bench.runtime.spool.tokens()
    untold = bench.runtime.spool.get(token)
    assert untold is not None and untold.outcome is not None and untold.verdict is not None
    assert (untold.claim.run_id, untold.outcome.result) == (run, "ran")
    bench.ledger.away.unlink()
    ended = Ended(untold.claim, untold.outcome, untold.verdict)
    assert bench.ledger.report([ended]).states == ["succeeded"]


def test_a_report_the_ledger_chokes_on_is_spooled(bench: Bench) -> None:
    bench.ledger.add_run("w.runs")

    def choke() -> None:
        raise RuntimeError("cannot store this")

    bench.ledger.after_report = choke
    assert bench.work() == 1
    assert len(bench.runtime.spool.tokens()) == 1


def test_without_a_free_slot_nothing_is_asked(bench: Bench) -> None:
    run = bench.ledger.add_run("w.runs")
    hand = bench.bench.take_slot()
    assert hand is not None
    hand.occupy()
    assert bench.work() == 0
    assert bench.ledger.run(run)["claim_seq"] == 0


def test_a_turn_ends_after_its_time(bench: Bench) -> None:
    for _ in range(3):
        bench.ledger.add_run("w.runs")
    assert work_on_lane(bench.bench, LANE, 0.0) == 1
