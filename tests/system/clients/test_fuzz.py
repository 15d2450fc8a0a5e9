"""Each answer to the cases that schemathesis makes of the OpenAPI document is as the document describes it."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from jobs.models import Calendar, Override, Role, RunRequest, SuspensionKind, Tenant
from jobs.secrets.service import create_secret
from runs.models import Breaker, BreakerState, MissedSpan, Redrive
from runs.states import LiveState
from scheduler_project.sdk.ledger.callback_token import digest_of
from tests.support.factories import (
    TASK,
    make_attempt,
    make_dead,
    make_finished_run,
    make_key,
    make_pool,
    make_queue,
    make_run,
    make_suspension,
    make_worker,
    now,
    post_job,
)
from tests.support.processes import PYTHON
from tests.system.clients.conftest import Served, run_to_end

SETTINGS = Path(__file__).parent / "schemathesis.toml"
TOKEN = "bkc_of-a-test"
HOUR = timedelta(hours=1)
# What may be sent of one.
SUSPENSIONS = ("NewPause", "PauseChanges", "NewBlackout", "BlackoutChanges")
# Rows that the operations on one get. A deletion finds its row once.
ON_ONE = {"read": 1, "edit": 1, "lift": 1, "delete": 4}


@pytest.mark.parametrize(
    ("share", "examples", "cases"),
    [(0.17, 3, 1_500), pytest.param(1, 30, 10_000, marks=pytest.mark.chaos)],
    ids=["short", "long"],
)
def test_no_answer_is_otherwise_than_described(
    served: Served, tmp_path: Path, share: float, examples: int, cases: int
) -> None:
    known, credentials = make_one_of_each(served.tenant)
    report = tmp_path / "report.json"
    run_to_end(
        [PYTHON, "-m", "schemathesis.cli", "--no-color", "--config-file", str(SETTINGS), "run"]
        + [str(served.document), "--url", served.url, "--max-examples", str(examples)]
        + ["--report", "json", "--report-json-path", str(report)],
        timeout=1200,
        BEATKEEPER_SHARE=str(share),
        BEATKEEPER_KNOWN=json.dumps(known, default=str),
        BEATKEEPER_KEY=served.key,
        **credentials,
    )
    found = json.loads(report.read_text())
    assert found["operations"]["tested"] == found["operations"]["total"]
    assert found["test_cases"]["generated"] - found["test_cases"]["without_checks"] >= cases
    assert never_accepted(found) == []


def never_accepted(report: dict[str, Any]) -> list[str]:
    """List operations that have refused all that was well-formed: nothing but refusals was looked at."""
    return [
        operation
        for operation, phases in report["valid_rates"].items()
        if not any(phase["accepted"] for phase in phases.values())
    ]


def make_one_of_each(tenant: Tenant) -> tuple[dict[str, dict[str, list[Any]]], dict[str, str]]:
    """Make rows for every list; return what there is, as fuzz_hooks.py reads it, and the credentials."""
    create_secret(tenant, {"name": "PAYMENTS_KEY", "value": "swordfish"})
    Calendar.objects.create(tenant=tenant, name="holidays")
    own = make_pool(slug="own")
    worker = make_worker(own, tenant=tenant)
    job = post_job(tenant, name="settle", schedule={"cron": "0 * * * *"}, breaker={"failures": 3})
    edited, cancelled, *deleted = (post_job(tenant, name=f"job {number}").pk for number in range(6))
    make_queue(job)
    Breaker.objects.filter(job=job).update(
        state=BreakerState.OPEN, opened_at=now(), probe_at=now() + 9 * HOUR
    )
    running = make_run(job, LiveState.RUNNING, worker=worker)
    awaited = make_run(job, LiveState.WAITING_CALLBACK, callback_digest=digest_of(TOKEN))
    make_attempt(make_run(job, LiveState.RUNNING))
    dead = [make_dead(job).pk for _ in range(3)]
    make_dead(job, fingerprint="beef")
    redrive = Redrive.objects.create(tenant=tenant, fingerprint="f00d", per_minute=1)
    span = {"begins_at": now() - 2 * HOUR, "ends_at": now() - HOUR}
    MissedSpan.objects.create(tenant=tenant, job=job, version=1, reason="paused: test", policy="last", **span)
    hours = (now().replace(minute=0, second=0, microsecond=0) + n * HOUR for n in range(100, 105))
    overrides = [Override.objects.create(job=job, planned_at=hour).public_id for hour in hours]
    requests = [
        RunRequest.objects.create(
            tenant=tenant, pool=pool, key=pool.slug, spec={"name": job.name, "input": {}}
        )
        for pool in (own, job.pool)
    ]
    parameters: dict[str, list[Any]] = {
        "job_id": [job.pk],
        "edit_job.job_id": [edited],
        "cancel_job.job_id": [cancelled],
        "delete_job.job_id": deleted,
        "number": [1],
        "override_id": overrides[:1],
        "delete_override.override_id": overrides[1:],
        "run_id": [make_finished_run(job).pk, *dead],
        "cancel_run.run_id": [make_run(job).pk],
        "complete_run.run_id": [awaited.pk],
        "worker_append_log.run_id": [running.pk],
        "worker_keep_log.run_id": [running.pk],
        "claim_seq": [running.claim_seq],
        "incarnation": [worker.incarnation],
        "fingerprint": ["f00d"],
        "redrive_group.fingerprint": ["beef"],
        "redrive_id": [redrive.pk],
        "request_id": [request.pk for request in requests],
        **make_suspensions(tenant, SuspensionKind.PAUSE),
        **make_suspensions(tenant, SuspensionKind.BLACKOUT, effect="skip"),
        "list_declarations.pool": ["default", "own"],
    }
    properties: dict[str, list[Any]] = {
        "pool": ["default", "own"],
        "task": [TASK],
        "secret": ["PAYMENTS_KEY"],
        **{f"{suspension}.job": [job.pk] for suspension in SUSPENSIONS},
        "RedriveRuns.runs": dead,
        "DismissRuns.runs": dead,
        "claim_seq": [running.claim_seq],
        "incarnation": [worker.incarnation],
    }
    worker_key = make_key(tenant, Role.WORKER, pool=own)[1]
    credentials = {"BEATKEEPER_WORKER_KEY": worker_key, "BEATKEEPER_CALLBACK_TOKEN": TOKEN}
    return {"parameters": parameters, "properties": properties}, credentials


def make_suspensions(tenant: Tenant, kind: SuspensionKind, **fields: Any) -> dict[str, list[UUID]]:
    """Make pauses or blackouts that have not begun for each operation on one."""
    times = {"begins_at": now() + HOUR, "ends_at": now() + 2 * HOUR}
    return {
        f"{verb}_{kind}.suspension_id": [
            make_suspension(tenant=tenant, kind=kind, **times, **fields).public_id for _ in range(number)
        ]
        for verb, number in ON_ONE.items()
    }
