"""Pins what workers, schedulers and brokers of different versions exchange. A change here is a new version of it."""

from dataclasses import fields
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings

from runs.scheduler.broker.message import TASK, Wakeup, message
from runs.scheduler.dispatch.load import broker_queue_name
from scheduler_project.sdk.ledger import interface, wire
from scheduler_project.sdk.outcomes import LogPointer, Outcome
from scheduler_project.sdk.retries import Verdict
from scheduler_project.sdk.worker.wakeup_message import problem_with
from scheduler_project.sdk.worker.wakeup_task import NAME, QUEUE_HEADER

FIELDS = {
    interface.WorkerInfo: "incarnation name pool host pid slots known_targets version region lease",
    interface.WorkQueue: "id pool_id tenant_id broker_queue",
    interface.Beat: "incarnation number answered slots busy foreign_busy held draining queues_after feed_after "
    "stopping skew_ms lease idle",
    interface.HeartbeatResponse: "known cancels terminates gone queues work skew_ms quiet",
    interface.Claim: "run_id claim_seq token incarnation attempt job_id job_name version tenant_id tenant trigger "
    "planned_at claimed_at target input timeout retry gated allowed_hosts traceparent losses secrets "
    "unreadable none_left",
    interface.ClaimRequest: "incarnation token queue known_targets limit expected_ms",
    interface.ReportResult: "states claims",
    wire.ClaimBody: "request again",
    wire.ReportBody: "ended request",
    wire.RunEnding: "run_id claim_seq token incarnation outcome verdict log",
    wire.DeclareBody: "pool tenant declarations",
    wire.DeclarationNames: "tenant names",
    wire.LeaveBody: "incarnation",
    wire.HeartbeatReply: "response at",
    LogPointer: "object offset length",
    Verdict: "state delay",
    Outcome: "kind started_at finished_at error_class error_type error_line fingerprint exit_code result retry_after "
    "log names next_input callback_digest callback_timeout callback_content",
}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_the_fields_of_the_workers_protocol_keep_their_names(kind: Any) -> None:
    assert [field.name for field in fields(kind)] == FIELDS[kind].split()


def test_every_object_of_the_protocol_is_pinned() -> None:
    modules = {interface.__name__, wire.__name__}
    exchanged = {
        kind
        for kind in [*vars(interface).values(), *vars(wire).values()]
        if isinstance(kind, type) and kind.__module__ in modules and hasattr(kind, "__dataclass_fields__")
    }
    assert exchanged - {interface.CompletedClaim} <= FIELDS.keys()


@pytest.mark.parametrize(
    "text", ["2026-11-19T06:00:00Z", "2026-11-19t06:00:00z", "2026-11-19T07:00:00+01:00"]
)
def test_an_instant_is_read_however_rfc_3339_writes_it(text: str) -> None:
    assert wire.unpacked(datetime, text) == datetime(2026, 11, 19, 6, tzinfo=timezone.utc)


def test_a_whole_number_is_read_however_json_writes_it() -> None:
    assert wire.unpacked(int, 3.0) == 3
    for wrong in (3.5, True, "3"):
        with pytest.raises(wire.InvalidMessage, match="not a whole number"):
            wire.unpacked(int, wrong)


def test_a_wakeup_keeps_its_task_and_its_headers() -> None:
    sent = message(Wakeup("bk.default.acme.v2", "3:4", tries=1), "an-id", "1@host")
    headers = sent.properties["application_headers"]
    assert TASK == NAME == "beatkeeper.run" and QUEUE_HEADER == "beatkeeper_queue"
    ours = {name: value for name, value in headers.items() if name.startswith("beatkeeper_")}
    assert ours == {"beatkeeper_queue": "3:4", "beatkeeper_v": 1, "beatkeeper_tries": 1}
    received = SimpleNamespace(
        headers=headers, content_type="application/json", content_encoding="utf-8", body=sent.body
    )
    assert problem_with(received) == ""


def test_broker_queues_of_tenants_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "QUEUE_PREFIX", "bk")
    pool: Any = SimpleNamespace(slug="reports", broker="")
    queue: Any = SimpleNamespace(slug="acme")
    assert broker_queue_name(pool, queue) == "bk.reports.acme.v2"
