"""A child with several claims: what it begins, what it reports, and what is left of them when it is killed."""

from pathlib import Path
from uuid import UUID

import pytest

from scheduler_project.sdk.execution import batching as batches
from scheduler_project.sdk.execution.batching import MAX_BATCH, max_batch
from scheduler_project.sdk.guard.held_claims import tokens_to_list
from scheduler_project.sdk.ledger.interface import (
    ALL_TENANTS,
    MAX_CLAIMS,
    MAX_HELD,
    MAX_SLOTS,
    ClaimRequest,
    CompletedClaim,
    ReportResult,
    WorkQueue,
)
from scheduler_project.sdk.shared.spool import Spool
from tests.sdk.execution.test_claim_loop import StagedLoop, always_lost, executed, lost_once, staged
from tests.sdk.fake_ledger import TENANT
from tests.sdk.stage import Stage, kill
from tests.support.processes import Processes
from tests.support.waiting import wait_until

__all__ = ["staged"]
QUEUE = WorkQueue(1, 1, 2, "")
# However slow the machine: after the first run of a queue the next are claimed together.
AMPLE_SECONDS = 600.0


@pytest.fixture
def stage(processes: Processes, tmp_path: Path) -> Stage:
    return Stage(processes, tmp_path)


@pytest.fixture
def ample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_SECONDS", AMPLE_SECONDS)
    monkeypatch.setenv("SAMPLE_BATCH_SECONDS", str(AMPLE_SECONDS))


class TestManySlots:
    @pytest.mark.parametrize("slots", [1, 8, 156, 157, 313, 1000, 4999, MAX_SLOTS])
    def test_one_beat_can_name_all_that_they_may_have(self, slots: int) -> None:
        batch = max_batch(slots)
        assert 1 <= batch <= MAX_BATCH <= MAX_CLAIMS
        assert slots * 2 * batch <= MAX_HELD, "a batch, and the next one that is requested"

    def test_few_slots_take_whole_batches(self) -> None:
        assert max_batch(156) == MAX_BATCH

    def test_so_their_batches_are_smaller(self, staged: StagedLoop) -> None:
        staged.runtime.table.size = MAX_HELD // 8
        staged.runtime.lengths.note(TENANT, 0.001)
        assert staged.loop.next_request(QUEUE).limit == 2

    def test_runs_of_unknown_length_are_claimed_one_by_one(self, staged: StagedLoop) -> None:
        assert staged.loop.next_request(QUEUE).limit == 1

    def test_a_claim_is_made_over_all_queues_and_says_how_long_runs_took(self, staged: StagedLoop) -> None:
        staged.ledger.add_run("w.runs")
        staged.work()
        request = staged.loop.next_request(QUEUE)
        assert (request.queue.tenant_id, list(request.expected_ms or ())) == (ALL_TENANTS, [str(TENANT)])
        assert request.limit > 1

    def test_what_a_beat_has_no_room_for_waits_in_the_spool(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scheduler_project.sdk.guard.held_claims.MAX_HELD", 3)
        spooled = [UUID(int=number) for number in range(4)]
        for token in spooled:
            (tmp_path / f"{token}.json").touch()
        held = [UUID(int=100), UUID(int=101)]
        assert tokens_to_list(frozenset([*spooled, *held]), Spool(tmp_path)) == [*held, spooled[0]]
        assert tokens_to_list(frozenset(held), Spool(tmp_path)) == held


@pytest.mark.usefixtures("ample")
class TestInOneProcess:
    def test_a_queue_of_short_runs_takes_few_round_trips(self, staged: StagedLoop) -> None:
        reports = counted(staged)
        runs = [staged.ledger.add_run("w.runs") for _ in range(20)]
        assert staged.work() == 20
        assert executed == [str(run) for run in runs]
        assert len(reports) < 10

    def test_what_the_guard_has_taken_is_neither_begun_nor_reported(self, staged: StagedLoop) -> None:
        runs = [staged.ledger.add_run("w.runs") for _ in range(4)]
        reports = counted(staged)
        # The first run is alone; the other three are claimed together.
        taken: list[int] = []
        original = staged.loop.runtime.table.add_completion

        def end_and_take(index: int, line: bytes) -> bool:
            done = original(index, line)
            if len(executed) == 2 and not taken:
                taken.append(1)
                # As the guard does it: the run that is over, and the last of those that wait.
                staged.runtime.table.records[index].taken |= 0b101
            return done

        staged.loop.runtime.table.add_completion = end_and_take  # type: ignore[method-assign]
        staged.work()
        assert executed == [str(run) for run in runs[:3]]
        assert [one for report in reports for one in report] == [runs[0], runs[2]]

    def test_a_drain_in_the_middle_gives_the_rest_back(self, staged: StagedLoop) -> None:
        runs = [staged.ledger.add_run("w.runs") for _ in range(4)]
        original = staged.loop.runtime.table.add_completion

        def end_and_drain(index: int, line: bytes) -> bool:
            if len(executed) == 2:
                staged.runtime.table.header.drain_until = 1e12
            return original(index, line)

        staged.loop.runtime.table.add_completion = end_and_drain  # type: ignore[method-assign]
        staged.work()
        assert executed == [str(run) for run in runs[:2]]
        pending = [staged.runtime.spool.get(token) for token in staged.runtime.spool.tokens()]
        assert {one.claim.run_id for one in pending if one and one.outcome is None} == set(runs[2:])
        assert [len(staged.ledger.ends(run)) for run in runs] == [1, 1, 0, 0]

    def test_a_response_lost_with_report_and_claim_loses_and_doubles_nothing(
        self, staged: StagedLoop
    ) -> None:
        runs = [staged.ledger.add_run("w.runs") for _ in range(9)]
        staged.ledger.after_report = lost_once()
        assert staged.work() == 9
        assert executed == [str(run) for run in runs]
        assert [run["claim_seq"] for run in map(staged.ledger.run, runs)] == [1] * 9
        assert all(len(staged.ledger.ends(run)) == 1 for run in runs)

    def test_results_that_cannot_be_reported_are_spooled_one_by_one(self, staged: StagedLoop) -> None:
        for _ in range(4):
            staged.ledger.add_run("w.runs")
        staged.ledger.after_report = always_lost
        staged.work()
        pending = [staged.runtime.spool.get(token) for token in staged.runtime.spool.tokens()]
        assert len(pending) == len(executed)
        assert all(one is not None and one.outcome is not None for one in pending)

    def test_one_that_the_ledger_chokes_on_costs_the_others_nothing(self, staged: StagedLoop) -> None:
        runs = [staged.ledger.add_run("w.runs") for _ in range(5)]
        original = staged.ledger.report

        def choke(ended: list[CompletedClaim], wanted: ClaimRequest | None = None) -> ReportResult:
            if any(one.claim.run_id == runs[2] for one in ended):
                raise RuntimeError("cannot store this")
            return original(ended, wanted)

        staged.ledger.report = choke  # type: ignore[assignment, method-assign]
        staged.work()
        assert [len(staged.ledger.ends(run)) for run in runs] == [1, 1, 0, 1, 1]
        assert len(staged.runtime.spool.tokens()) == 1


@pytest.mark.usefixtures("ample")
class TestRealProcesses:
    def test_a_child_killed_in_a_batch_costs_the_run_it_was_at(self, stage: Stage) -> None:
        """Those before it are reported as they ended, those behind it go back: nothing runs twice."""
        before = [stage.ledger.add_run("tests.succeeds") for _ in range(3)]
        dies = stage.ledger.add_run("tests.dies", retry={"max_attempts": 1, "max_losses": 0})
        behind = [stage.ledger.add_run("tests.succeeds") for _ in range(3)]
        stage.feed()
        assert stage.wait_for_end(dies)["error_class"] == "worker_lost"
        for run in [*before, *behind]:
            wait_until(lambda run=run: stage.ledger.run(run)["state"] == "succeeded", 20, "its end")  # type: ignore[misc]
        assert [len(stage.events("succeeds", run)) for run in [*before, *behind]] == [1] * 6
        # On a slow machine the guard hands on what waits behind any run, so there may be more of these.
        kinds = [end["kind"] for end in stage.ledger.ends(behind[-1])]
        assert kinds[-1] == "succeeded" and set(kinds[:-1]) == {"given_back"}
        assert stage.ledger.run(behind[-1])["attempt"] == 1

    def test_what_a_killed_child_was_granted_and_never_received_goes_back(self, stage: Stage) -> None:
        """It dies between its report, which requests the next, and the response: no body of them began."""
        runs = [stage.ledger.add_run("tests.succeeds", retry={"max_attempts": 1}) for _ in range(5)]
        stage.ledger.change(kills_who_claims=4)
        stage.feed()
        for run in runs:
            wait_until(lambda run=run: stage.ledger.run(run)["state"] == "succeeded", 20, "its end")  # type: ignore[misc]
        assert [len(stage.events("succeeds", run)) for run in runs] == [1] * 5
        assert [end["kind"] for end in stage.ledger.ends(runs[0])] == ["succeeded"]
        for granted in map(stage.ledger.run, runs[1:]):
            kinds = [end["kind"] for end in granted["ends"]]
            assert kinds[-1] == "succeeded" and set(kinds[:-1]) == {"given_back"}
            assert (granted["attempt"], granted["losses"]) == (1, 0)

    def test_a_child_killed_in_its_first_request_costs_nothing(self, stage: Stage) -> None:
        run = stage.ledger.add_run("tests.succeeds", retry={"max_attempts": 1, "max_losses": 0})
        stage.ledger.change(kills_who_claims=1)
        stage.feed()
        assert stage.wait_for_end(run)["kind"] == "given_back"
        assert stage.wait_for_end(run, count=2)["kind"] == "succeeded"
        wait_until(lambda: not stage.worker_spool().unconfirmed(), 10, "an empty spool")

    def test_nothing_waits_behind_a_long_run(self, stage: Stage) -> None:
        quick = [stage.ledger.add_run("tests.succeeds") for _ in range(3)]
        long = stage.ledger.add_run("tests.sleeps", 60)
        behind = [stage.ledger.add_run("tests.succeeds") for _ in range(2)]
        worker = stage.feed()
        stage.wait_for_event("sleeps", long)
        for run in quick:
            wait_until(lambda run=run: stage.ledger.run(run)["state"] == "succeeded", 20, "its end")  # type: ignore[misc]
        for run in behind:
            assert stage.wait_for_end(run)["kind"] == "given_back"
        assert stage.ledger.run(long)["state"] == "running"
        kill(worker.pid)

    def test_what_is_cancelled_while_it_waits_in_a_batch_never_runs(self, stage: Stage) -> None:
        stage.ledger.add_run("tests.succeeds")
        long = stage.ledger.add_run("tests.sleeps", 60, retry={"max_attempts": 1})
        waiting = stage.ledger.add_run("tests.succeeds", cancel=True)
        stage.feed()
        stage.wait_for_event("sleeps", long)
        wait_until(lambda: stage.ledger.run(waiting)["state"] == "cancelled", 20, "the cancellation")
        assert stage.events("succeeds", waiting) == []


def counted(staged: StagedLoop) -> list[list[UUID]]:
    reports: list[list[UUID]] = []
    original = staged.ledger.report

    def report(ended: list[CompletedClaim], wanted: ClaimRequest | None = None) -> ReportResult:
        reports.append([one.claim.run_id for one in ended])
        return original(ended, wanted)

    staged.ledger.report = report  # type: ignore[assignment, method-assign]
    return reports
