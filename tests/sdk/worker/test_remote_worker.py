"""The worker's side of the remote ledger, without a platform: logs that wait here, results that wait for a key."""

from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduler_project.sdk.errors import KeyRefused, LedgerRefused, LedgerUnavailable
from scheduler_project.sdk.guard.delivery import Delivery
from scheduler_project.sdk.guard.log_follower import LogFollower
from scheduler_project.sdk.ledger.interface import CompletedClaim, ReportResult
from scheduler_project.sdk.logs.remote import HERE, RemoteLogStore
from scheduler_project.sdk.outcomes import Outcome
from scheduler_project.sdk.retries import Verdict
from scheduler_project.sdk.shared.claim_record import unpack_claim
from scheduler_project.sdk.shared.slot_record import HELD
from scheduler_project.sdk.shared.spool import PendingReport, Spool

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def an_unreported_success() -> PendingReport:
    ids = {name: str(uuid4()) for name in ("run_id", "token", "incarnation", "job_id")}
    facts = {"claim_seq": 1, "attempt": 1, "version": 1, "tenant_id": 1, "tenant": "acme", "gated": False}
    claim = unpack_claim({**ids, **facts, "timeout": 60.0, "retry": {}})
    return PendingReport(claim, Outcome("succeeded", NOW, NOW), Verdict("succeeded"), log_is_open=True)


class Platform:
    """Reply as the test says, and keep what was reported."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.reported: list[CompletedClaim] = []
        self.lines: dict[UUID, bytes] = {}

    def report(self, ended: list[CompletedClaim], wanted: Any = None) -> ReportResult:
        if self.trouble:
            raise self.trouble
        self.reported += ended
        return ReportResult(["succeeded" for _ in ended], [])

    def append_log(self, run: UUID, claim_seq: int, incarnation: UUID, offset: int, lines: bytes) -> int:
        if self.trouble:
            raise self.trouble
        have = self.lines.get(run, b"")
        if offset <= len(have):
            self.lines[run] = have[:offset] + lines
        return len(self.lines.get(run, b""))


@pytest.fixture
def platform() -> Platform:
    return Platform()


@pytest.fixture
def runtime(tmp_path: Path) -> Any:
    (tmp_path / "spool").mkdir()
    return SimpleNamespace(spool=Spool(tmp_path / "spool"), log_store=RemoteLogStore(tmp_path / "logs"))


@pytest.mark.parametrize("trouble", [KeyRefused("revoked"), LedgerUnavailable("away")], ids=["key", "away"])
def test_a_result_waits_for_a_platform_that_answers(
    runtime: Any, platform: Platform, trouble: Exception
) -> None:
    runtime.spool.put(an_unreported_success())
    delivery = Delivery(runtime, platform)  # type: ignore[arg-type]
    platform.trouble = trouble
    for _ in range(20):
        assert not delivery.deliver_all()
    platform.trouble = None
    assert delivery.deliver_all()
    assert len(platform.reported) == 1 and not runtime.spool.tokens()


def test_the_log_of_a_result_that_waited_goes_with_it(runtime: Any, platform: Platform) -> None:
    pending = an_unreported_success()
    runtime.spool.put(pending)
    with runtime.log_store.open(pending.claim.run_id, 1) as file:
        file.write(b"{}\n")
    assert Delivery(runtime, platform).deliver_all()  # type: ignore[arg-type]
    assert [one.outcome.log for one in platform.reported] == [HERE]
    assert runtime.log_store.read_open(pending.claim.run_id, 1) is None


def test_an_attempt_without_lines_has_no_log(runtime: Any) -> None:
    assert runtime.log_store.seal(uuid4(), 1, "acme", uuid4()) is None
    assert runtime.log_store.member(uuid4(), 1) == b""


class Table:
    """One slot, at work on a claim."""

    size = 1

    def __init__(self) -> None:
        self.run, self.incarnation = uuid4(), uuid4()
        self.state = HELD

    def read(self, _index: int) -> Any:
        return self

    def claim(self, _slot: Any) -> dict[str, Any]:
        return {"run_id": str(self.run), "claim_seq": 1, "incarnation": str(self.incarnation)}


def test_lines_are_brought_as_they_come_and_from_where_the_platform_has_them(
    runtime: Any, platform: Platform
) -> None:
    runtime.table = Table()
    follower = LogFollower(runtime, lambda: platform)  # type: ignore[arg-type, return-value]
    run = runtime.table.run
    with runtime.log_store.open(run, 1) as file:
        file.write(b"one\n")
        follower.follow(platform)  # type: ignore[arg-type]
        file.write(b"two\n")
        platform.trouble = LedgerUnavailable("away")
        with pytest.raises(LedgerUnavailable):
            follower.follow(platform)  # type: ignore[arg-type]
        platform.trouble = None
        follower.follow(platform)  # type: ignore[arg-type]
        assert platform.lines == {run: b"one\ntwo\n"}
        # It has lost its file since, with its host.
        platform.lines[run] = b"on"
        file.write(b"three\n")
        for _ in range(2):
            follower.follow(platform)  # type: ignore[arg-type]
    assert platform.lines == {run: b"one\ntwo\nthree\n"}


def test_lines_that_are_not_taken_any_more_are_not_offered_again(runtime: Any, platform: Platform) -> None:
    runtime.table = Table()
    follower = LogFollower(runtime, lambda: platform)  # type: ignore[arg-type, return-value]
    with runtime.log_store.open(runtime.table.run, 1) as file:
        file.write(b"one\n")
    platform.trouble = LedgerRefused("no longer this worker's")
    follower.follow(platform)  # type: ignore[arg-type]
    platform.trouble = AssertionError("requested again")
    follower.follow(platform)  # type: ignore[arg-type]
