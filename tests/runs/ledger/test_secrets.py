"""Secrets are resolved with the claim, by the keys of the worker that makes it, and by nobody before."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import connection
from django.db.models.functions import Now

from jobs.models import Job, JobVersion, Secret
from jobs.secrets import service as tenant_secrets
from runs.states import LiveState
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim, Ledger, base_token
from scheduler_project.sdk.secret_values.encryption import hide_keys
from tests.races.staging import meanwhile
from tests.runs.ledger.claims import SUCCESS, claim_next, claim_request, succeeded
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import TASK, make_job, make_run, make_worker, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job() -> Iterator[Job]:
    target = {"kind": "celery", "task": TASK, "args": ["${secret:KEY}"], "kwargs": {}}
    yield make_job(spec={"target": target, "secret_names": ["KEY"]})


def keep(job: Job, name: str = "KEY", value: str = "a value of it") -> Secret:
    return tenant_secrets.create_secret(job.tenant, {"name": name, "value": value})


def claimed(ledger: Ledger, job: Job, **run: Any) -> Claim:
    make_run(job, LiveState.QUEUED, **run)
    claim = claim_next(ledger, job)
    assert claim is not None
    return claim


def test_a_claim_brings_what_target_and_input_refer_to_and_no_more(ledger: Ledger, job: Job) -> None:
    for name in ("KEY", "OTHER", "UNUSED"):
        keep(job, name, f"value of {name}")
    claim = claimed(ledger, job, input={"kwargs": {"x": "${secret:OTHER}"}})
    assert claim.secrets == {"KEY": "value of KEY", "OTHER": "value of OTHER"}
    assert claim.target["args"] == ["${secret:KEY}"] and "value of" not in repr(claim)


def test_a_claim_that_is_asked_for_again_brings_them_again(ledger: Ledger, job: Job) -> None:
    keep(job)
    make_run(job, LiveState.QUEUED)
    worker, token = make_worker(job.pool), base_token()
    first = claim_next(ledger, job, worker=worker, token=token)
    again = claim_next(ledger, job, worker=worker, token=token, again=True)
    assert first == again and again is not None and again.secrets == {"KEY": "a value of it"}


def test_a_claim_that_comes_with_a_report_brings_them_too(ledger: Ledger, job: Job) -> None:
    keep(job)
    worker = make_worker(job.pool)
    make_run(job, LiveState.QUEUED)
    first = claim_next(ledger, job, worker=worker)
    assert first is not None
    # A slot takes its share of what is queued.
    for _ in range(12):
        make_run(job, LiveState.QUEUED)
    request = claim_request(job, 2, worker)
    result = ledger.report([CompletedClaim(first, succeeded(), SUCCESS)], request)
    assert [claim.secrets for claim in result.claims] == [{"KEY": "a value of it"}] * 2


def test_of_another_tenant_nothing_comes(ledger: Ledger, job: Job) -> None:
    keep(make_job(), value="of another tenant")
    claim = claimed(ledger, job)
    assert (claim.secrets, claim.unreadable) == ({}, "")


def test_a_row_that_was_moved_here_from_another_tenant_stays_shut(ledger: Ledger, job: Job) -> None:
    stolen = keep(make_job(), value="of another tenant")
    Secret.objects.filter(pk=stolen.pk).update(tenant=job.tenant)
    claim = claimed(ledger, job)
    assert claim.secrets == {} and "encrypted as another one" in claim.unreadable
    assert "of another tenant" not in claim.unreadable


def test_a_worker_without_the_key_says_so(ledger: Ledger, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(job)
    monkeypatch.setenv("ENCRYPTION_KEYS", Fernet.generate_key().decode())
    claim = claimed(ledger, job)
    assert claim.secrets == {} and "no key of ENCRYPTION_KEYS opens it" in claim.unreadable
    monkeypatch.setenv("ENCRYPTION_KEYS", "no key at all")
    assert "no Fernet key" in claimed(ledger, job).unreadable


def test_keys_that_were_hidden_from_bodies_still_decrypt(
    ledger: Ledger, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from scheduler_project.sdk.secret_values import encryption as secret_box

    keep(job)
    monkeypatch.setattr(secret_box, "_hidden", None)
    monkeypatch.setenv("ENCRYPTION_KEYS", os.environ["ENCRYPTION_KEYS"])
    hide_keys()
    assert "ENCRYPTION_KEYS" not in os.environ
    assert claimed(ledger, job).secrets == {"KEY": "a value of it"}


def test_a_run_without_references_costs_no_statement_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    queries: list[str] = []

    def opened(*_: object) -> tuple[dict[str, str], dict[str, str]]:
        queries.append("x")
        return {}, {}

    monkeypatch.setattr("scheduler_project.sdk.ledger.postgres._opened", opened)
    claimed(ledger, job)
    assert queries == []


def test_its_use_is_noted_once_an_hour_and_nobody_waits_for_it(ledger: Ledger, job: Job) -> None:
    secret = keep(job)
    claimed(ledger, job)
    secret.refresh_from_db()
    noted = secret.last_used_at
    assert noted is not None
    claimed(ledger, job)
    secret.refresh_from_db()
    assert secret.last_used_at == noted
    Secret.objects.update(last_used_at=Now() - timedelta(hours=2))
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM beatkeeper_secret FOR UPDATE")
        assert claimed_elsewhere(ledger, job) == {"KEY": "a value of it"}
        cursor.execute("ROLLBACK")
    claimed(ledger, job)
    secret.refresh_from_db()
    assert secret.last_used_at is not None and now() - secret.last_used_at < timedelta(minutes=1)


def claimed_elsewhere(ledger: Ledger, job: Job) -> dict[str, str]:
    """While this thread's connection is inside a transaction of its own."""

    def act() -> dict[str, str]:
        return claimed(ledger, job).secrets

    with meanwhile(act) as claim:
        secrets: dict[str, str] = claim.result(timeout=60)
    return secrets


def test_a_job_keeps_the_names_it_refers_to(job: Job) -> None:
    assert JobVersion.objects.get(job=job).secret_names == ["KEY"]
