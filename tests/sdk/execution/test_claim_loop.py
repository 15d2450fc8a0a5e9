"""Claim and report when answers come late, twice or not at all. The ledger is staged; the slots are real."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery

from scheduler_project.sdk.errors import LedgerRefused, LedgerUnavailable
from scheduler_project.sdk.execution import batching, claim_loop, reporting
from scheduler_project.sdk.execution.claim_loop import ClaimLoop
from scheduler_project.sdk.guard.delivery import Delivery
from scheduler_project.sdk.guard.held_claims import held_claims
from scheduler_project.sdk.ledger.interface import (
    Claim,
    ClaimRequest,
    CompletedClaim,
    ReportResult,
    WorkerInfo,
)
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.shared.slot_record import FREE, REQUESTED
from scheduler_project.sdk.targets.celery_task import CeleryTarget
from scheduler_project.sdk.targets.registry import Targets
from tests.sdk.fake_ledger import QUEUE, FakeLedger

app = Celery("work", broker="memory://", set_as_current=False)
executed: list[str] = []


@app.task(name="w.runs", bind=True)
def runs(self: Any) -> str:
    executed.append(self.request.id)
    return "ran"


class StagedLedger(FakeLedger):
    """Something happens right after a statement was carried out, before its response arrives."""

    says_none_left = False
    after_claim: Callable[[], None] = staticmethod(lambda: None)
    after_report: Callable[[], None] = staticmethod(lambda: None)

    def claim(self, wanted: ClaimRequest, again: bool = False) -> list[Claim]:
        claims = [replace(claim, none_left=self.says_none_left) for claim in super().claim(wanted, again)]
        self.after_claim()
        return claims

    def report(self, ended: Sequence[CompletedClaim], wanted: ClaimRequest | None = None) -> ReportResult:
        result = super().report(ended, wanted)
        self.after_report()
        return result


class StagedLoop:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claim_loop, "PAUSE", 0.01)
        monkeypatch.setattr(reporting, "REPORT_PATIENCE", 0.05)
        monkeypatch.setattr(claim_loop, "CLAIM_PATIENCE", 0.2)
        executed.clear()
        self.ledger = StagedLedger(str(folder / "ledger"))
        config = Config("w", "host", "default", "", 1, self.ledger.url, f"file://{folder}/logs", ["w.runs"])
        self.runtime = Runtime.create(folder / "spool", config)
        self.runtime.ledger = lambda: self.ledger  # type: ignore[method-assign]
        targets = Targets(app)
        targets.add("celery", CeleryTarget(app))
        self.loop = ClaimLoop(self.runtime, targets)
        self.begin()

    def begin(self) -> None:
        incarnation = uuid4()
        self.ledger.register(WorkerInfo(incarnation, "w", "default", "host", 1, 1, ["w.runs"]))
        self.runtime.table.header.incarnation = incarnation
        self.runtime.table.header.fence_at = processes.boottime() + 30

    def work(self) -> int:
        return self.loop.work_on_queue(QUEUE, 60.0)


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagedLoop:
    return StagedLoop(tmp_path, monkeypatch)


def lost_once() -> Callable[[], None]:
    times: list[int] = []

    def lose() -> None:
        times.append(1)
        if len(times) == 1:
            raise LedgerUnavailable("the response was lost")

    return lose


def always_lost() -> None:
    raise LedgerUnavailable("the response was lost")


def test_a_queue_is_worked_until_it_is_empty(staged: StagedLoop) -> None:
    runs = [staged.ledger.add_run("w.runs") for _ in range(3)]
    assert staged.work() == 3
    assert sorted(executed) == sorted(map(str, runs))
    assert staged.runtime.table.states() == [FREE]


@pytest.mark.parametrize(("takes", "claims"), [(0.0, 1), (1.1, 2)])
def test_when_none_was_left_no_more_is_claimed_unless_the_batch_took_long(
    staged: StagedLoop, monkeypatch: pytest.MonkeyPatch, takes: float, claims: int
) -> None:
    monkeypatch.setattr(batching, "BATCH_SECONDS", 1.0)
    original = staged.loop.runtime.table.add_completion

    def end(index: int, line: bytes) -> bool:
        time.sleep(takes)
        return original(index, line)

    staged.loop.runtime.table.add_completion = end  # type: ignore[method-assign]
    made: list[int] = []
    staged.ledger.after_claim = lambda: made.append(1)
    monkeypatch.setattr(StagedLedger, "says_none_left", True)
    staged.ledger.add_run("w.runs")
    assert staged.work() == 1
    assert len(made) == claims


def test_a_lost_claim_response_is_requested_again_and_runs_once(staged: StagedLoop) -> None:
    run = staged.ledger.add_run("w.runs")
    staged.ledger.after_claim = lost_once()
    assert staged.work() == 1
    assert executed == [str(run)]
    assert staged.ledger.run(run)["claim_seq"] == 1


def test_the_slot_names_the_token_before_the_claim_is_requested(staged: StagedLoop) -> None:
    states: list[int] = []
    staged.ledger.add_run("w.runs")
    staged.ledger.after_claim = lambda: states.append(staged.runtime.table.records[0].state)
    staged.work()
    assert states[0] == REQUESTED


def test_a_claim_that_stays_unconfirmed_frees_the_slot(staged: StagedLoop) -> None:
    staged.ledger.add_run("w.runs")
    staged.ledger.after_claim = always_lost
    assert staged.work() == 0
    assert executed == []
    assert staged.runtime.table.states() == [FREE]


def test_a_claim_that_stays_unconfirmed_is_left_to_the_guard_to_give_back(staged: StagedLoop) -> None:
    run = staged.ledger.add_run("w.runs")
    staged.ledger.after_claim = always_lost
    staged.work()
    token = UUID(staged.ledger.run(run)["token"])
    assert token in held_claims(staged.runtime).tokens, "else recovery would take it for lost"
    staged.ledger.after_claim = lambda: None
    assert Delivery(staged.runtime, staged.ledger).deliver_all()
    state = staged.ledger.run(run)
    assert (state["state"], state["attempt"], state["losses"]) == ("queued", 0, 0)
    assert not held_claims(staged.runtime).tokens


def test_an_unconfirmed_claim_of_a_key_that_is_refused_since_is_left_to_the_guard(staged: StagedLoop) -> None:
    """The next key, or the next minute, may give it back."""
    run = staged.ledger.add_run("w.runs")
    responses = iter([LedgerUnavailable("the response was lost"), LedgerRefused("the key was revoked")])

    def refused() -> None:
        raise next(responses)

    staged.ledger.after_claim = refused
    assert staged.work() == 0
    assert UUID(staged.ledger.run(run)["token"]) in held_claims(staged.runtime).tokens


def test_what_is_refused_at_once_leaves_nothing_to_the_guard(staged: StagedLoop) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise LedgerRefused("the key was revoked")

    staged.ledger.claim = refuse  # type: ignore[method-assign, assignment]
    assert staged.work() == 0
    assert not staged.runtime.spool.unconfirmed()


def test_a_response_behind_the_fence_starts_nothing(staged: StagedLoop) -> None:
    run = staged.ledger.add_run("w.runs")
    staged.ledger.after_claim = lambda: setattr(staged.runtime.table.header, "fence_at", 0.0)
    assert staged.work() == 0
    assert executed == []
    pending = staged.runtime.spool.get(UUID(staged.ledger.run(run)["token"]))
    assert pending is not None and pending.outcome is None, "it is given back"


def test_an_answer_for_an_earlier_incarnation_starts_nothing(staged: StagedLoop) -> None:
    staged.ledger.add_run("w.runs")
    staged.ledger.after_claim = staged.begin
    assert staged.work() == 0
    assert executed == []


def test_an_answer_during_a_drain_is_given_back(staged: StagedLoop) -> None:
    staged.ledger.add_run("w.runs")
    staged.ledger.after_claim = lambda: setattr(staged.runtime.table.header, "drain_until", 1e12)
    assert staged.work() == 0
    assert len(staged.runtime.spool.tokens()) == 1


def test_nothing_is_requested_behind_the_fence_or_while_draining(staged: StagedLoop) -> None:
    run = staged.ledger.add_run("w.runs")
    staged.runtime.table.header.fence_at = 0.0
    assert staged.work() == 0
    staged.begin()
    staged.runtime.table.header.drain_until = 1e12
    assert staged.work() == 0
    assert staged.ledger.run(run)["claim_seq"] == 0


def test_a_lost_report_response_is_reported_again_and_counts_once(staged: StagedLoop) -> None:
    run = staged.ledger.add_run("w.runs")
    staged.ledger.after_report = lost_once()
    assert staged.work() == 1
    assert [end["next"] for end in staged.ledger.ends(run)] == ["succeeded"]
    assert staged.runtime.spool.tokens() == []


def test_an_undeliverable_result_is_spooled_and_the_slot_is_free(staged: StagedLoop) -> None:
    run = staged.ledger.add_run("w.runs")
    staged.ledger.after_claim = staged.ledger.away.touch
    staged.work()
    assert staged.runtime.table.states() == [FREE]
    [token] = staged.runtime.spool.tokens()
    pending = staged.runtime.spool.get(token)
    assert pending is not None and pending.outcome is not None and pending.verdict is not None
    assert (pending.claim.run_id, pending.outcome.result) == (run, "ran")
    staged.ledger.away.unlink()
    ended = CompletedClaim(pending.claim, pending.outcome, pending.verdict)
    assert staged.ledger.report([ended]).states == ["succeeded"]


def test_a_report_the_ledger_chokes_on_is_spooled(staged: StagedLoop) -> None:
    staged.ledger.add_run("w.runs")

    def choke() -> None:
        raise RuntimeError("cannot store this")

    staged.ledger.after_report = choke
    assert staged.work() == 1
    assert len(staged.runtime.spool.tokens()) == 1


def test_a_refused_report_of_a_batch_that_the_guard_has_taken_leaves_nothing(staged: StagedLoop) -> None:
    def choke() -> None:
        raise RuntimeError("cannot store this")

    staged.ledger.after_report = choke
    assert reporting.report(staged.runtime, [], None) is None
    assert staged.runtime.spool.tokens() == []


def test_without_a_free_slot_nothing_is_requested(staged: StagedLoop) -> None:
    run = staged.ledger.add_run("w.runs")
    owned_slot = staged.loop.take_slot()
    assert owned_slot is not None
    owned_slot.occupy()
    assert staged.work() == 0
    assert staged.ledger.run(run)["claim_seq"] == 0


def test_a_turn_ends_after_its_time(staged: StagedLoop) -> None:
    for _ in range(3):
        staged.ledger.add_run("w.runs")
    assert staged.loop.work_on_queue(QUEUE, 0.0) == 1
