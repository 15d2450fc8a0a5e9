"""What the ledger refuses, and for how long that is taken for a mood."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from scheduler_project.sdk.errors import LedgerRefused
from scheduler_project.sdk.guard.delivery import PAUSES_SECONDS, Delivery
from scheduler_project.sdk.ledger.interface import ClaimRequest, CompletedClaim, ReportResult
from scheduler_project.sdk.logs.folder import FolderLogStore
from scheduler_project.sdk.outcomes import SUCCEEDED, Outcome, now_utc
from scheduler_project.sdk.retries import Verdict
from scheduler_project.sdk.shared.spool import PendingReport, Spool
from tests.sdk.targets.test_celery_task import make_claim


class Refusing:
    def __init__(self) -> None:
        self.requests, self.refuses = 0, True

    def report(self, ended: Sequence[CompletedClaim], wanted: ClaimRequest | None = None) -> ReportResult:
        self.requests += 1
        if self.refuses:
            raise LedgerRefused("there is nothing at this address")
        return ReportResult([SUCCEEDED], [])


@pytest.fixture
def ledger() -> Refusing:
    return Refusing()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    folder = tmp_path / "worker-1" / "spool"
    folder.mkdir(parents=True)
    spool, now = Spool(folder), now_utc()
    spool.put(PendingReport(make_claim({}, token=uuid4()), Outcome(SUCCEEDED, now, now), Verdict(SUCCEEDED)))
    return spool


@pytest.fixture
def delivery(spool: Spool, ledger: Refusing, tmp_path: Path) -> Delivery:
    runtime: Any = SimpleNamespace(spool=spool, log_store=FolderLogStore(tmp_path / "logs"))
    return Delivery(runtime, ledger)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        "scheduler_project.sdk.guard.delivery.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    return clock


def test_a_result_outlives_minutes_of_refusals(
    delivery: Delivery, ledger: Refusing, spool: Spool, clock: SimpleNamespace
) -> None:
    """As of a proxy that has lost its way to the platform."""
    for _ in range(120):
        assert not delivery.deliver_all()
        clock.now += 1.0
    assert ledger.requests <= len(PAUSES_SECONDS), "and it is not called all the time"
    ledger.refuses = False
    clock.now += PAUSES_SECONDS[-1]
    assert delivery.deliver_all() and spool.tokens() == []


def test_what_is_refused_to_the_end_is_kept_for_a_person(
    delivery: Delivery, spool: Spool, clock: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [token] = spool.tokens()
    for pause in PAUSES_SECONDS:
        assert not delivery.deliver_all()
        clock.now += pause
    assert delivery.deliver_all() and spool.tokens() == []
    kept = tmp_path / "refused" / f"{token}.json"
    assert str(kept) in caplog.text, "beside the folder of the worker, which ends with it"
    assert json.loads(kept.read_text())["claim"]["token"] == str(token)
