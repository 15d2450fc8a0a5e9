"""What a body is given, and what of it comes out again: masked in the log, the outcome and the worker's own output."""

import base64
import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from scheduler_project.sdk.execution.attempt import execute
from scheduler_project.sdk.execution.interrupts import Interrupts
from scheduler_project.sdk.ledger.interface import Claim
from scheduler_project.sdk.logs.folder import FolderLogStore
from scheduler_project.sdk.outcomes import TRANSIENT, USER, Outcome
from scheduler_project.sdk.secret_values.masking import MASK
from scheduler_project.sdk.shared.claim_record import pack_claim
from scheduler_project.sdk.shared.owned_slot import OwnedSlot
from scheduler_project.sdk.shared.slots import SlotTable
from scheduler_project.sdk.shared.spool import PendingReport, Spool
from scheduler_project.sdk.targets.celery_task import CeleryTarget
from scheduler_project.sdk.targets.registry import TargetCall, Targets, WaitForCallback
from tests.sdk.targets.test_celery_task import make_claim

SECRET = "hunter2-and-more/ö"
app = Celery("secrets", broker="memory://")
seen: list[Any] = []


@app.task(name="s.takes", bind=True)
def takes(self: Any, key: str, how: str = "", cut: int = 0) -> Any:
    seen.append(key)
    if how == "prints":
        print("it is", key)  # noqa: T201
        print("coded", base64.b64encode(f"user:{key}".encode()).decode(), file=sys.stderr)  # noqa: T201
        sys.stdout.write(key[:5])
        sys.stdout.write(key[5:] + "\n")
        logging.getLogger("a.library").warning("using %s", key, extra={"context": {"key": [key]}})
    if how == "raises":
        raise ValueError(f"{'x' * 490} {key}")
    if how == "retries":
        raise self.retry(kwargs={"key": key, "how": "again"}, exc=ValueError(key))
    if how == "long":
        print("y" * 65_530 + key)  # noqa: T201
        sys.stdout.write("z" * 65_530 + key[:9])
        sys.stdout.write(key[9:] + "\n")
    return {"key": key, "of": {key: object() if how == "object" else 1}}


class Table:
    def __init__(self, folder: Path) -> None:
        owned_slot = OwnedSlot.take(SlotTable.create(folder, 1))
        assert owned_slot is not None
        self.owned_slot, self.store, self.folder = owned_slot, FolderLogStore(folder), folder
        self.targets = Targets(app)
        self.targets.add("celery", CeleryTarget(app))

    def claim(self, how: str = "", **more: Any) -> Claim:
        kwargs = {"key": "${secret:KEY}", "how": how}
        claim = make_claim({"kind": "celery", "task": "s.takes", "args": [], "kwargs": kwargs})
        return replace(claim, **{"secrets": {"KEY": SECRET}, **more})

    def carry_out(self, claim: Claim) -> Outcome:
        return execute(
            claim, self.owned_slot, self.targets, self.store, Interrupts(self.owned_slot), "worker@host"
        )

    def log(self, outcome: Outcome) -> list[str]:
        assert outcome.log is not None
        return [json.loads(line)["m"] for line in self.store.read(outcome.log).splitlines()]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    seen.clear()
    yield Table(tmp_path)


def test_the_body_gets_the_secret_and_the_result_is_masked(table: Table) -> None:
    outcome = table.carry_out(table.claim())
    assert outcome.succeeded and seen == [SECRET]
    assert outcome.result == {"key": MASK, "of": {MASK: 1}}


def test_an_input_has_secrets_too(table: Table) -> None:
    claim = table.claim(input={"kwargs": {"key": "<${secret:KEY}>"}})
    assert table.carry_out(claim).succeeded and seen == [f"<{SECRET}>"]


def test_the_repr_of_a_result_is_masked_before_it_is_cut(table: Table) -> None:
    outcome = table.carry_out(table.claim("object"))
    assert "hunter2" not in str(outcome.result) and MASK in outcome.result["repr"]


def test_what_it_prints_and_logs_is_masked_in_the_log(table: Table) -> None:
    lines = table.log(table.carry_out(table.claim("prints")))
    assert f"it is {MASK}" in lines and MASK in lines
    assert f"using {MASK}" in lines
    assert not [line for line in lines if "hunter" in line or "aHVudGVy" in line or "odW50ZXI" in line]


def test_what_it_prints_and_logs_is_masked_where_the_worker_writes(table: Table) -> None:
    """The streams that were there before, and a handler that was set up on one of them."""
    out = io.StringIO()
    formatter = logging.Formatter("%(name)s %(message)s %(context)s", defaults={"context": ""})
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logging.getLogger().addHandler(handler)
    try:
        with redirect_stdout(out):
            table.carry_out(table.claim("prints"))
            table.carry_out(table.claim("raises"))
    finally:
        logging.getLogger().removeHandler(handler)
    text = out.getvalue()
    assert text.count(MASK) >= 5 and "ValueError" in text
    assert "hunter" not in text and not handler.filters


def test_an_error_is_masked_before_it_is_cut_also_in_its_fingerprint(table: Table) -> None:
    first = table.carry_out(table.claim("raises"))
    other = table.carry_out(table.claim("raises", secrets={"KEY": "another secret"}))
    for outcome in (first, other):
        assert outcome.error_line is not None and outcome.error_line.endswith(MASK)
    assert first.fingerprint == other.fingerprint
    assert not [line for line in table.log(first) if "hunter" in line]


def test_a_line_that_is_too_long_is_not_cut_through_the_secret(table: Table) -> None:
    lines = table.log(table.carry_out(table.claim("long")))
    assert not [line for line in lines if "hunter" in line or "and-more" in line]


def test_the_token_of_a_callback_is_masked_as_a_secret_is(table: Table) -> None:
    """A server may send back all the headers that it got."""

    def show_headers(attempt: TargetCall) -> None:
        attempt.log.write("http", f"Beatkeeper-Callback-Token: {attempt.callback_token}")
        raise WaitForCallback(60)

    table.targets.add("http", show_headers)
    target = {"kind": "http", "url": "https://team.example/", "callback": {"timeout": "PT1M"}}
    outcome = table.carry_out(make_claim(target))
    assert outcome.awaited and table.log(outcome) == [f"Beatkeeper-Callback-Token: {MASK}"]


def test_what_retry_is_given_is_kept_with_its_references(table: Table) -> None:
    outcome = table.carry_out(table.claim("retries"))
    assert outcome.error_class == TRANSIENT and outcome.error_line == MASK
    assert outcome.next_input is not None
    assert outcome.next_input["kwargs"] == {"key": "${secret:KEY}", "how": "again"}


def test_one_that_is_missing_is_a_mistake_of_the_user_and_is_named(table: Table) -> None:
    outcome = table.carry_out(table.claim(secrets={}))
    assert (outcome.error_class, outcome.error_line) == (USER, "There is no secret KEY")
    assert seen == []


def test_one_that_cannot_be_decrypted_may_be_readable_elsewhere(table: Table) -> None:
    outcome = table.carry_out(table.claim(unreadable="The secret KEY cannot be decrypted here"))
    assert (outcome.error_class, seen) == (TRANSIENT, [])


def test_nothing_that_is_written_down_of_a_claim_has_it(table: Table, tmp_path: Path) -> None:
    claim = table.claim("raises")
    outcome = table.carry_out(claim)
    (tmp_path / "spool").mkdir()
    Spool(tmp_path / "spool").put(PendingReport(claim, outcome, None))
    written = [repr(claim), str(claim), str(pack_claim(claim)), repr(outcome)]
    written += [path.read_text() for path in (tmp_path / "spool").iterdir()]
    assert not [text for text in written if "hunter" in text]
