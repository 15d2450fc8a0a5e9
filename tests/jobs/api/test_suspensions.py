"""Test /api/v1/pauses and /api/v1/blackouts."""

import json
from base64 import urlsafe_b64decode
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest

from auditlog.models import AuditEntry
from jobs.models import Effect, Pool, Role, Suspension, SuspensionKind, Tenant
from jobs.services.status import cancel_job
from jobs.validation.instants import as_text
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_pool, make_suspension, make_tenant, now, post_job

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
BOTH = pytest.mark.parametrize("address", ["pauses", "blackouts"])


def asked(address: str, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"tag": "team:payments", **more}
    return {"ends_at": as_text(now() + HOUR), **given} if address == "blackouts" else given


def make(caller: Caller, address: str, **more: Any) -> dict[str, Any]:
    answer = caller.post(address, asked(address, **more))
    assert answer.status_code == 201, answer.content
    made: dict[str, Any] = answer.json()
    return made


@BOTH
def test_it_is_made_read_and_listed(caller: Caller, address: str) -> None:
    answer = caller.post(address, asked(address, reason="quarter end"))
    made = answer.json()
    assert answer.status_code == 201 and answer["Location"] == made["links"]["self"]
    assert (made["tag"], made["pool"], made["everything"]) == ("team:payments", None, False)
    assert made["concerns"] == "all jobs of acme tagged team:payments"
    assert (made["state"], made["reason"], made["own"]) == ("in_force", "quarter end", True)
    assert made["created_by"] == str(caller.key)
    assert caller.get(made["links"]["self"]).json() == made
    assert caller.get(address).json()["results"] == [{**made, "jobs_concerned": None, "warnings": []}]
    assert AuditEntry.objects.get(action="suspension.created").actor == str(caller.key)


@BOTH
def test_one_of_a_single_job_links_to_it(caller: Caller, address: str) -> None:
    job = post_job(caller.tenant, name="settle", tags={"team": "payments"})
    made = make(caller, address, tag=None, job=str(job.pk))
    assert (made["job"], made["tag"], made["everything"]) == (str(job.pk), None, False)
    assert (made["concerns"], made["jobs_concerned"]) == ("the job settle of acme", 1)
    assert caller.get(made["links"]["job"]).json()["name"] == "settle"
    assert make(caller, address)["job"] is None and "job" not in make(caller, address)["links"]
    refusal(caller.post(address, asked(address, job=str(post_job().pk))), 400, "job")


@BOTH
def test_one_that_concerns_no_job_is_answered_with_a_warning(caller: Caller, address: str) -> None:
    post_job(caller.tenant, tags={"team": "payments"})
    cancel_job(post_job(caller.tenant, tags={"team": "payments"}))
    post_job(make_tenant(), tags={"team": "paymnts"})
    made = make(caller, address)
    assert (made["jobs_concerned"], made["warnings"]) == (1, [])
    made = make(caller, address, tag="team:paymnts")
    assert made["jobs_concerned"] == 0 and "none of the jobs there are" in made["warnings"][0]
    assert caller.patch(f"{address}/{made['id']}", {"reason": "x"}).json()["jobs_concerned"] == 0


@BOTH
def test_a_tag_is_written_alike_everywhere(caller: Caller, address: str) -> None:
    right = "name:value, or the name alone for every value: team:payments, team"
    for wrong in ("team=payments", ":payments", "a\nb"):
        suspended = refusal(caller.post(address, asked(address, tag=wrong)), 400, "tag")
        listed = refusal(caller.get("jobs", tag=wrong), 400, "tag")
        assert suspended["hint"] == listed["hint"] == right


def test_each_kind_has_its_own_list(caller: Caller) -> None:
    pause, blackout = make(caller, "pauses"), make(caller, "blackouts")
    assert [one["id"] for one in caller.get("pauses").json()["results"]] == [pause["id"]]
    refusal(caller.get(f"pauses/{blackout['id']}"), 404)
    refusal(caller.post(f"blackouts/{pause['id']}/lift"), 404)


@BOTH
def test_it_is_lifted_once(caller: Caller, address: str) -> None:
    made = make(caller, address)
    first = caller.post(f"{address}/{made['id']}/lift", {"reason": "all clear"}).json()
    assert first["state"] == "over" and first["lifted_by"] == str(caller.key)
    assert caller.post(f"{address}/{made['id']}/lift").json() == first
    assert AuditEntry.objects.filter(action="suspension.lifted").count() == 1


@BOTH
def test_its_end_can_be_changed(caller: Caller, address: str) -> None:
    made = make(caller, address)
    end = as_text(now() + 5 * HOUR)
    assert caller.patch(f"{address}/{made['id']}", {"ends_at": end}).json()["ends_at"] == end
    problem = refusal(caller.patch(f"{address}/{made['id']}", {"tag": "team"}), 409, "tag")
    assert problem["code"] == "suspension_has_begun" and "lift" in problem["hint"]
    caller.post(f"{address}/{made['id']}/lift")
    assert (
        refusal(caller.patch(f"{address}/{made['id']}", {"reason": "x"}), 409)["code"] == "suspension_is_over"
    )


@BOTH
def test_only_one_that_has_not_begun_is_deleted(caller: Caller, address: str) -> None:
    begun = make(caller, address)
    assert "lift" in refusal(caller.delete(f"{address}/{begun['id']}"), 409)["hint"]
    planned = make(caller, address, begins_at=as_text(now() + HOUR / 2))
    assert planned["state"] == "planned"
    assert caller.delete(f"{address}/{planned['id']}").status_code == 204
    refusal(caller.get(f"{address}/{planned['id']}"), 404)


@BOTH
def test_a_mistake_is_reported_at_its_field(caller: Caller, address: str) -> None:
    problem = refusal(caller.post(address, asked(address, tag=":x")), 400, "tag")
    assert "team:payments" in problem["hint"]
    refusal(caller.post(address, asked(address, ends_at="2020-01-01T00:00:00Z")), 400, "ends_at")
    refusal(caller.post(address, {}), 400)
    refusal(caller.post(address, "[]"), 400)
    assert not Suspension.objects.exists()


@BOTH
def test_the_same_request_twice_makes_one(caller: Caller, address: str) -> None:
    given = asked(address)
    first = caller.post(address, given, Idempotency_Key="k")
    again = caller.post(address, given, Idempotency_Key="k")
    assert first.json() == again.json() and again["Idempotency-Replayed"] == "true"
    assert Suspension.objects.count() == 1
    refusal(caller.post(address, asked(address, tag="other"), Idempotency_Key="k"), 422)


@BOTH
def test_the_list_is_filtered_by_state_and_paged(caller: Caller, address: str) -> None:
    begun, planned = make(caller, address), make(caller, address, begins_at=as_text(now() + HOUR / 2))
    assert [s["id"] for s in caller.get(address, state="planned").json()["results"]] == [planned["id"]]
    assert [s["id"] for s in caller.get(address, state="in_force").json()["results"]] == [begun["id"]]
    assert caller.get(address, state="over").json()["results"] == []
    refusal(caller.get(address, state="on"), 400, "state")
    refusal(caller.get(address, stat="on"), 400, "stat")
    first = caller.get(address, limit=1).json()
    rest = caller.get(first["next"]).json()
    assert [s["id"] for s in first["results"] + rest["results"]] == [planned["id"], begun["id"]]


@BOTH
def test_no_id_counts_the_rows_of_others(caller: Caller, address: str) -> None:
    ids = {make(caller, address)["id"] for _ in range(2)}
    page = caller.get(address, limit=1).json()
    cursor = parse_qs(urlsplit(page["next"]).query)["cursor"][0]
    assert json.loads(urlsafe_b64decode(cursor + "=="))[-1] == page["results"][0]["id"]
    assert all(UUID(one).version == 4 for one in ids)


@BOTH
def test_a_viewer_only_looks(tenant: Tenant, pool: Pool, caller: Caller, address: str) -> None:
    made = make(caller, address)
    viewer, operator = Caller(tenant, Role.VIEWER), Caller(tenant, Role.OPERATOR)
    assert viewer.get(address).status_code == 200
    refusal(viewer.post(address, asked(address)), 403)
    refusal(viewer.post(f"{address}/{made['id']}/lift"), 403)
    refusal(viewer.patch(f"{address}/{made['id']}", {"reason": "x"}), 403)
    refusal(viewer.delete(f"{address}/{made['id']}"), 403)
    assert operator.post(address, asked(address)).status_code == 201


@BOTH
def test_another_tenants_look_like_none(caller: Caller, address: str) -> None:
    kind = SuspensionKind.PAUSE if address == "pauses" else SuspensionKind.BLACKOUT
    other = make_suspension(kind=kind, tenant=make_tenant(), ends_at=now() + HOUR, effect=Effect.HOLD)
    nobody = uuid4()
    nothing = refusal(caller.get(f"{address}/{nobody}"), 404)
    for answer in (
        caller.get(f"{address}/{other.public_id}"),
        caller.patch(f"{address}/{other.public_id}", {"reason": "x"}),
        caller.post(f"{address}/{other.public_id}/lift"),
        caller.delete(f"{address}/{other.public_id}"),
    ):
        problem = refusal(answer, 404)
        assert problem["detail"].replace(str(other.public_id), "") == nothing["detail"].replace(
            str(nobody), ""
        )
    assert caller.get(address).json()["results"] == []
    other.refresh_from_db()
    assert other.lifted_at is None and other.reason == ""


@BOTH
def test_one_cannot_be_made_for_others(caller: Caller, address: str) -> None:
    other = make_tenant(slug="others")
    refusal(caller.post(address, asked(address, tenant=other.slug)), 400, "tenant")
    make_pool(slug="theirs", shared=False)
    assert "theirs" not in str(
        refusal(caller.post(address, asked(address, pool="thirs")), 400, "pool")["hint"]
    )
    refusal(caller.post(address, asked(address, pool="theirs")), 400, "pool")
    make(caller, address, pool="default")
    assert set(Suspension.objects.values_list("tenant", flat=True)) == {caller.tenant.pk}


def test_the_platforms_own_are_seen_and_not_changed(caller: Caller) -> None:
    suspension = make_suspension(reason="database move", created_by="olga")
    shown = caller.get(f"pauses/{suspension.public_id}").json()
    assert (shown["own"], shown["created_by"], shown["reason"]) == (False, "the platform", "database move")
    assert shown["concerns"] == "all jobs" and "olga" not in str(shown)
    for answer in (
        caller.post(f"pauses/{suspension.public_id}/lift"),
        caller.patch(f"pauses/{suspension.public_id}", {"reason": "x"}),
        caller.delete(f"pauses/{suspension.public_id}"),
    ):
        assert "operators" in refusal(answer, 403)["detail"]
    suspension.refresh_from_db()
    assert suspension.lifted_at is None


@pytest.mark.parametrize("key", ["x", "0", "-1", "1.0", "99999999999999999999", "٣", "1%00"])
def test_a_strange_id_is_not_found(caller: Caller, key: str) -> None:
    refusal(caller.get(f"pauses/{key}"), 404)
