"""A tenant learns nothing of another: at each address of the API, what is another's is answered like what is not."""

import json
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from jobs.models import Calendar, Job, Override, RunRequest, Secret, SuspensionKind
from runs.models import DeadLetter, MissedSpan, Redrive, Run
from runs.states import LiveState
from tests.contracts.addresses import api_addresses
from tests.support.api_client import Caller
from tests.support.factories import (
    make_dead,
    make_pool,
    make_queue,
    make_run,
    make_suspension,
    make_tenant,
    make_worker,
    now,
    post_job,
)

pytestmark = pytest.mark.django_db
METHODS = ("get", "post", "put", "patch", "delete")
# Part of every name of the other tenant's.
MARK = "hidden"
ALL = api_addresses()
OF_ONE = [address for address in ALL if "{" in address]
OF_ALL = [address for address in ALL if "{" not in address]


@pytest.fixture
def rival() -> Caller:
    make_pool(slug="default")
    return Caller(make_tenant(slug="rival"))


@pytest.fixture
def theirs(rival: Caller) -> dict[str, Any]:
    """Make one row of each kind for another tenant; return the values that addresses name them by."""
    tenant = make_tenant(slug=f"{MARK}-tenant")
    pool = make_pool(slug=f"{MARK}-pool", shared=False)
    pool.tenants.add(tenant)
    make_worker(pool, tenant=tenant, name=f"{MARK}-worker")
    job = post_job(tenant, name=f"{MARK}-job", pool=pool.slug, schedule={"every": 3600})
    make_queue(job)
    span = {"begins_at": now() - timedelta(hours=2), "ends_at": now() - timedelta(hours=1)}
    MissedSpan.objects.create(
        tenant=tenant, job=job, version=1, reason=f"paused: {MARK}", policy="last", **span
    )
    letter = DeadLetter.objects.get(pk=make_dead(job, error_line=MARK, fingerprint=MARK).pk)
    pause = make_suspension(tenant=tenant, reason=MARK)
    blackout = make_suspension(
        tenant=tenant, reason=MARK, kind=SuspensionKind.BLACKOUT, ends_at=now() + timedelta(hours=1)
    )
    request = RunRequest.objects.create(
        tenant=tenant, pool=pool, key=MARK, spec={"name": job.name, "input": {}}
    )
    return {
        "job_id": job.pk,
        "number": 1,
        "run_id": make_run(job, LiveState.READY).pk,
        "override_id": Override.objects.create(
            job=job, planned_at=now() + timedelta(hours=9), reason=MARK
        ).public_id,
        "suspension_id": {"pauses": pause.public_id, "blackouts": blackout.public_id},
        "calendars": Calendar.objects.create(tenant=tenant, name=f"{MARK}-calendar").name,
        "secrets": Secret.objects.create(
            tenant=tenant, name=f"{MARK}_SECRET", ciphertext="x", key_id="k"
        ).name,
        "fingerprint": letter.fingerprint,
        "redrive_id": Redrive.objects.create(tenant=tenant, fingerprint=MARK, per_minute=1, reason=MARK).pk,
        "request_id": request.pk,
        "claim_seq": 1,
    }


def nobodys(name: str, value: Any) -> Any:
    if name in ("number", "claim_seq"):
        return value
    if isinstance(value, int):
        return 987_654_321
    return f"no{len(value)}such" if isinstance(value, str) else uuid4()


def filled(address: str, values: dict[str, Any]) -> str:
    """Put values into an address: of a name, those of its kind."""
    kind = address.removeprefix("/api/v1/").partition("/")[0]

    def value(match: re.Match[str]) -> str:
        found = values[kind] if match[1] == "name" else values[match[1]]
        return str(found[kind] if isinstance(found, dict) else found)

    return re.sub(r"\{(\w+)\}", value, address)


def told(caller: Caller, method: str, address: str, values: dict[str, Any]) -> tuple[int, str]:
    """Return what an answer says, without the ids that the request had."""
    path = filled(address, values)
    answer = caller.client.generic(method.upper(), path, "{}", content_type="application/json")
    body = json.loads(answer.content or "{}")
    detail = str(body.get("detail", ""))
    for part in path.removeprefix("/api/v1/").split("/"):
        detail = re.sub(rf"\b{re.escape(part)}\b", "…", detail)
    return answer.status_code, json.dumps({**body, "detail": detail, "request_id": ""}, ensure_ascii=False)


@pytest.mark.parametrize("address", OF_ONE)
def test_what_is_of_another_tenant_is_answered_like_what_is_not(
    rival: Caller, theirs: dict[str, Any], address: str
) -> None:
    missing = {
        name: {kind: nobodys(kind, one) for kind, one in value.items()}
        if isinstance(value, dict)
        else nobodys(name, value)
        for name, value in theirs.items()
    }
    for method in METHODS:
        status, text = told(rival, method, address, theirs)
        assert (status, text) == told(rival, method, address, missing), method
        assert MARK not in text.lower(), method
    job = Job.objects.get(pk=theirs["job_id"])
    assert (job.status, job.version, job.deleted_at) == ("active", 1, None)
    assert Run.objects.get(pk=theirs["run_id"]).live.state == "ready"


@pytest.mark.parametrize("address", OF_ALL)
def test_no_list_shows_another_tenant(rival: Caller, theirs: dict[str, Any], address: str) -> None:
    text = rival.client.get(address).content.decode()
    assert MARK not in text.lower() and not any(
        str(one) in text for one in theirs.values() if hasattr(one, "hex")
    )


def test_the_other_tenant_sees_its_own(rival: Caller, theirs: dict[str, Any]) -> None:
    """Without this the tests above would pass on an empty database."""
    owner = Caller(Job.objects.get(pk=theirs["job_id"]).tenant)
    lists = (
        "me",
        "pools",
        "jobs",
        "runs",
        "queues",
        "workers",
        "pauses",
        "blackouts",
        "calendars",
        "secrets",
    )
    for address in (*lists, "dead-letters", "redrives"):
        assert MARK in owner.client.get(f"/api/v1/{address}").content.decode().lower(), address
