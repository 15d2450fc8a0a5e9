"""/api/v1/secrets: values go in and never come out, not even of a request that is refused."""

import json
from typing import Any
from unittest.mock import patch

import pytest

from auditlog.models import AuditEntry
from jobs.models import IdempotentRequest, Job, JobVersion, Role, Secret, Tenant
from jobs.secrets import service as tenant_secrets
from jobs.services.status import cancel_job
from runs.models import Run
from tests.support.api_client import Caller, refusal
from tests.support.factories import job_spec, make_tenant, post_job

pytestmark = pytest.mark.django_db
VALUE = "sk_live_4Zq9-vörstellung/+ä"


def opened(secret: Secret) -> str:
    return tenant_secrets.box().open(secret.tenant_id, secret.name, secret.ciphertext)


def make_secret(tenant: Tenant, name: str = "PAYMENTS_KEY", value: str = VALUE) -> Secret:
    return tenant_secrets.create_secret(tenant, {"name": name, "value": value})


def test_a_secret_is_kept_encrypted_and_answered_by_its_name(caller: Caller, tenant: Tenant) -> None:
    made = caller.post("secrets", {"name": "PAYMENTS_KEY", "value": VALUE})
    assert made.status_code == 201 and made["Location"] == "/api/v1/secrets/PAYMENTS_KEY"
    body = made.json()
    assert {"name", "created_by", "last_used_at", "links"} <= set(body) and "value" not in body
    assert caller.get("secrets/PAYMENTS_KEY").json() == body
    assert caller.get("secrets").json()["results"] == [body]
    secret = Secret.objects.get(tenant=tenant)
    assert VALUE not in secret.ciphertext and opened(secret) == VALUE


def test_a_new_value_by_patch_and_by_put(caller: Caller, tenant: Tenant) -> None:
    assert caller.put("secrets/TOKEN", {"value": "first one"}).status_code == 201
    assert caller.put("secrets/TOKEN", {"value": "second one"}).status_code == 200
    assert opened(Secret.objects.get(name="TOKEN")) == "second one"
    assert caller.patch("secrets/TOKEN", {"value": "third one"}).status_code == 200
    assert opened(Secret.objects.get(name="TOKEN")) == "third one"
    refusal(caller.patch("secrets/OTHER", {"value": "a value"}), 404)


def test_the_audit_trail_says_that_it_changed_and_not_to_what(caller: Caller) -> None:
    caller.post("secrets", {"name": "TOKEN", "value": "value the first"})
    caller.patch("secrets/TOKEN", {"value": "value the second"})
    caller.delete("secrets/TOKEN")
    entries = AuditEntry.objects.filter(object_type="secret").order_by("pk")
    assert [entry.action for entry in entries] == ["secret.created", "secret.edited", "secret.deleted"]
    assert entries[1].after == {"name": "TOKEN", "value": "changed"}
    assert "the second" not in str([(entry.before, entry.after) for entry in entries])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "TOKEN"}, "value"),
        ({"value": VALUE}, "name"),
        ({"name": VALUE, "value": "TOKEN"}, "name"),
        ({"name": "TOKEN", "value": VALUE, VALUE: 1}, None),
        ({"name": "TOKEN", "value": [VALUE]}, "value"),
        ({"name": "TOKEN", "value": {VALUE: VALUE}}, "value"),
        ({"name": 5, "value": VALUE}, "name"),
        ({"name": "1TOKEN", "value": VALUE}, "name"),
        ({"name": "TOKEN", "value": VALUE * 2000}, "value"),
        ([VALUE], None),
        (json.dumps(VALUE), None),
        (f'{{"name": "TOKEN", "value": "{VALUE}', None),
        (f'{{"name": "TOKEN", "value": "\\u0000{VALUE}"}}', "value"),
        (f'{{"name": "TOKEN", "value": "\\ud800{VALUE}"}}', "value"),
        (f'{{"name": "TOKEN", "value": {VALUE}}}'.encode("utf-16"), None),
    ],
)
def test_what_cannot_be_used_is_refused_and_not_repeated(
    caller: Caller, body: Any, field: str | None
) -> None:
    answer = caller.post("secrets", body)
    refusal(answer, 400, field)
    text = answer.content.decode()
    assert VALUE not in text and "sk_live" not in text
    put = caller.put("secrets/TOKEN", body)
    assert put.status_code in (400, 201) and "sk_live" not in put.content.decode()
    assert Secret.objects.count() == (put.status_code == 201)


def test_a_short_value_is_refused_with_the_reason(caller: Caller) -> None:
    problem = refusal(caller.post("secrets", {"name": "PIN", "value": "123"}), 400, "value")
    assert problem["code"] == "too_short" and "mask" in problem["detail"]


def test_without_a_key_nothing_is_saved(caller: Caller, settings: Any) -> None:
    settings.ENCRYPTION_KEYS = []
    problem = refusal(caller.post("secrets", {"name": "TOKEN", "value": VALUE}), 409)
    assert problem["code"] == "no_encryption_key" and "ENCRYPTION_KEYS" in problem["hint"]
    assert not Secret.objects.exists()


def test_who_may_what(tenant: Tenant, caller: Caller) -> None:
    make_secret(tenant)
    for role in (Role.VIEWER, Role.OPERATOR):
        member = Caller(tenant, role)
        assert [row["name"] for row in member.get("secrets").json()["results"]] == ["PAYMENTS_KEY"]
        refusal(member.post("secrets", {"name": "TOKEN", "value": VALUE}), 403)
        refusal(member.put("secrets/PAYMENTS_KEY", {"value": VALUE}), 403)
        refusal(member.delete("secrets/PAYMENTS_KEY"), 403)


def test_one_of_another_tenant_looks_the_same_as_none(caller: Caller, tenant: Tenant) -> None:
    make_secret(make_tenant())
    for answer in (
        caller.get("secrets/PAYMENTS_KEY"),
        caller.patch("secrets/PAYMENTS_KEY", {"value": "mine!"}),
        caller.delete("secrets/PAYMENTS_KEY"),
    ):
        problem = {**refusal(answer, 404), "request_id": None}
        assert problem == {**refusal(caller.get("secrets/NEVER_WAS"), 404), "request_id": None}
    assert caller.get("secrets").json()["results"] == []
    make_secret(tenant)
    refusal(caller.post("secrets", {"name": "PAYMENTS_KEY", "value": VALUE}), 409, "name")


def test_a_repeated_request_is_told_apart_by_what_nobody_can_try_out(caller: Caller) -> None:
    body = {"name": "TOKEN", "value": "guessable"}
    assert caller.post("secrets", body, Idempotency_Key="a").status_code == 201
    replayed = caller.post("secrets", body, Idempotency_Key="a")
    assert replayed.status_code == 201 and replayed["Idempotency-Replayed"] == "true"
    refusal(caller.post("secrets", {**body, "value": "another"}, Idempotency_Key="a"), 422)
    kept = IdempotentRequest.objects.get()
    from jobs.api.idempotency import _fingerprint

    assert kept.fingerprint != _fingerprint("POST /api/v1/secrets", body)
    assert "guessable" not in str(kept.answer)


def test_one_in_use_is_not_deleted_and_its_jobs_are_named(caller: Caller, tenant: Tenant) -> None:
    make_secret(tenant)
    target = {
        "kind": "http",
        "url": "https://example.com/",
        "headers": {"Authorization": "${secret:PAYMENTS_KEY}"},
    }
    job = post_job(tenant, name="settle", target=target)
    problem = refusal(caller.delete("secrets/PAYMENTS_KEY"), 409)
    assert problem["code"] == "secret_in_use" and "settle" in problem["detail"]
    assert [row["name"] for row in caller.get("jobs", secret="PAYMENTS_KEY").json()["results"]] == ["settle"]
    caller.patch(f"jobs/{job.pk}", {"target": {"headers": {"Authorization": None}}})
    assert caller.get("jobs", secret="PAYMENTS_KEY").json()["results"] == []
    assert caller.delete("secrets/PAYMENTS_KEY").status_code == 204


def test_a_cancelled_job_uses_nothing(caller: Caller, tenant: Tenant) -> None:
    make_secret(tenant)
    target = {"kind": "celery", "task": "tests.succeeds", "kwargs": {"key": "${secret:PAYMENTS_KEY}"}}
    cancel_job(post_job(tenant, target=target))
    assert caller.delete("secrets/PAYMENTS_KEY").status_code == 204


def http(**parts: Any) -> dict[str, Any]:
    return {"kind": "http", "url": "https://example.com/", **parts}


def celery(**parts: Any) -> dict[str, Any]:
    return {"kind": "celery", "task": "tests.succeeds", **parts}


@pytest.mark.parametrize(
    "target",
    [
        http(headers={"Authorization": "Bearer ${secret:PAYMENTS_KEY}"}),
        http(body={"deep": [{"er": "x${secret:PAYMENTS_KEY}y"}]}),
        http(url="https://example.com/${secret:PAYMENTS_KEY}/hook?key=${secret:PAYMENTS_KEY}"),
        celery(args=["${secret:PAYMENTS_KEY}"]),
        celery(kwargs={"a": {"b": ["${secret:PAYMENTS_KEY}"]}}),
        {"kind": "command", "argv": ["true"], "env": {"KEY": "${secret:PAYMENTS_KEY}"}},
    ],
)
def test_a_target_refers_to_a_secret_in_any_value(
    caller: Caller, tenant: Tenant, target: dict[str, Any]
) -> None:
    make_secret(tenant)
    made = caller.post("jobs", {**job_spec(), "target": target})
    assert made.status_code == 201, made.content
    assert JobVersion.objects.get().secret_names == ["PAYMENTS_KEY"]
    assert "${secret:PAYMENTS_KEY}" in json.dumps(made.json()["target"])
    assert VALUE not in made.content.decode()


@pytest.mark.parametrize(
    ("target", "field", "code"),
    [
        (http(headers={"X": "${secret:PAYMENT_KEY}"}), "target.headers.X", "unknown_secret"),
        (celery(args=[1, {"a": "${secret:PAYMENT_KEY}"}]), "target.args[1].a", "unknown_secret"),
        (celery(args=["${secret:PAYMENTS KEY}"]), "target.args[0]", "secret_reference"),
        (celery(args=["${secret:PAYMENTS_KEY"]), "target.args[0]", "secret_reference"),
        (celery(kwargs={"${secret:PAYMENTS_KEY}": 1}), "target.kwargs", "secret_reference"),
        (http(url="https://${secret:PAYMENTS_KEY}/"), "target.url", "not_a_url"),
        (
            {"kind": "command", "argv": ["curl", "-H", "X: ${secret:PAYMENTS_KEY}"]},
            "target.argv",
            "secret_reference",
        ),
    ],
)
def test_a_reference_that_cannot_be_is_refused(
    caller: Caller, tenant: Tenant, target: dict[str, Any], field: str, code: str
) -> None:
    make_secret(tenant)
    problem = refusal(caller.post("jobs", {**job_spec(), "target": target}), 400, field)
    assert problem["code"] == code
    if code == "unknown_secret":
        assert problem["hint"] == "did you mean PAYMENTS_KEY?"
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "text", ["${SECRET:KEY}", "{{secret:KEY}}", "${secrets:KEY}", "$secret:KEY", "${ secret:KEY}"]
)
def test_text_that_looks_like_a_reference_gets_a_warning(caller: Caller, text: str) -> None:
    make_secret(caller.tenant)
    target = http(headers={"X": f"Bearer {text}", "Y": "${secret:PAYMENTS_KEY} $${secret:X}"})
    made = caller.post("jobs", {**job_spec(), "target": target}).json()
    for job in (made, caller.get(made["links"]["self"]).json()):
        (warning,) = [warning for warning in job["warnings"] if "worker" not in warning]
        assert warning.startswith("target.headers.X ") and "${secret:NAME}" in warning
        assert "KEY" not in warning


def test_what_only_looks_like_a_reference_is_kept(caller: Caller) -> None:
    kwargs = {"a": "$${secret:NOBODY}", "b": "${HOME}", "c": "$$ {secret:X}", "d": "cost: 5$"}
    made = caller.post("jobs", {**job_spec(), "target": celery(kwargs=kwargs)})
    assert made.status_code == 201 and made.json()["target"]["kwargs"] == kwargs
    assert JobVersion.objects.get().secret_names == []


def test_a_secret_of_another_tenant_is_unknown(caller: Caller) -> None:
    make_secret(make_tenant())
    spec = {**job_spec(), "target": celery(args=["${secret:PAYMENTS_KEY}"])}
    assert refusal(caller.post("jobs", spec), 400)["code"] == "unknown_secret"


def test_the_input_of_a_run_is_checked_too(caller: Caller, tenant: Tenant) -> None:
    make_secret(tenant)
    job = post_job(tenant)
    wrong = {"input": {"kwargs": {"key": "${secret:PAYMENTS}"}}}
    problem = refusal(caller.post(f"jobs/{job.pk}/run", wrong), 400, "input.kwargs.key")
    assert problem["code"] == "unknown_secret"
    given = {"kwargs": {"key": "${secret:PAYMENTS_KEY}"}}
    made = caller.post(f"jobs/{job.pk}/run", {"input": given})
    assert made.status_code == 201 and made.json()["input"] == given
    assert Run.objects.get().input == given


def test_a_value_never_comes_into_a_refusal_of_the_database(caller: Caller) -> None:
    with patch.object(Secret, "save", side_effect=RuntimeError("broken")):
        answer = caller.post("secrets", {"name": "TOKEN", "value": VALUE})
    assert answer.status_code == 500 and VALUE not in answer.content.decode()


def test_a_tenant_has_only_so_many_secrets(caller: Caller, tenant: Tenant) -> None:
    make_secret(tenant, "ONE")
    with patch("jobs.secrets.service.MAX_SECRETS", 1):
        problem = refusal(caller.post("secrets", {"name": "TWO", "value": VALUE}), 409)
    assert problem["code"] == "too_many_secrets" and problem["detail"] == "1 secrets are there already"
    assert problem["hint"] == "delete one that no job uses"
    assert caller.post("secrets", {"name": "TWO", "value": VALUE}).status_code == 201
