"""Entries tell who did what; secrets never reach them."""

import time
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from pytest_django import Settings

from auditlog.actions import Action
from auditlog.context import acting_as, current_actor
from auditlog.middleware import AuditContextMiddleware
from auditlog.models import ActorKind, AuditEntry
from auditlog.record import RecordedOutsideTransaction, record
from auditlog.redaction import MASK, redact
from scheduler_project.sdk.secret_values.names import is_secret_name
from tests.support.factories import make_tenant, make_user, post_job


@pytest.mark.django_db
def test_an_entry_names_actor_object_and_tenant() -> None:
    tenant = make_tenant()
    with acting_as(ActorKind.WORKER, "pool payments"):
        entry = record(Action.TENANT_EDITED, tenant, tenant_id=tenant.pk, after={"a": 1}, reason="because")
    entry.refresh_from_db()
    assert (entry.actor_kind, entry.actor, entry.action) == ("worker", "pool payments", "tenant.edited")
    assert (entry.object_type, entry.object_id, entry.tenant_id) == ("tenant", str(tenant.pk), tenant.pk)
    assert (entry.before, entry.after, entry.reason) == (None, {"a": 1}, "because")


@pytest.mark.django_db
def test_an_entry_lies_in_the_tenant_of_its_object() -> None:
    job, other = post_job(), make_tenant()
    assert record(Action.JOB_EDITED, job).tenant_id == job.tenant_id
    assert record(Action.JOB_EDITED, job, tenant_id=other.pk).tenant_id == other.pk
    assert record(Action.TENANT_EDITED, other).tenant_id is None


@pytest.mark.django_db
def test_only_what_differs_is_kept() -> None:
    tenant = make_tenant()
    before, after = {"same": 1, "changed": 1, "gone": 1}, {"same": 1, "changed": 2, "new": 1}
    entry = record(Action.TENANT_EDITED, tenant, before=before, after=after)
    assert entry.before == {"changed": 1, "gone": 1} and entry.after == {"changed": 2, "new": 1}


@pytest.mark.django_db
def test_a_changed_secret_still_shows_as_a_change() -> None:
    entry = record(Action.TENANT_EDITED, make_tenant(), before={"token": "a"}, after={"token": "b"})
    assert entry.before == {"token": MASK} == entry.after


@pytest.mark.django_db(transaction=True)
def test_an_entry_outside_a_transaction_is_refused() -> None:
    tenant = make_tenant()
    with pytest.raises(RecordedOutsideTransaction):
        record(Action.TENANT_EDITED, tenant)
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_entry_goes_with_the_transaction_of_its_change() -> None:
    tenant = make_tenant()
    with pytest.raises(RuntimeError), transaction.atomic():
        record(Action.TENANT_EDITED, tenant)
        raise RuntimeError
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db
def test_without_a_request_it_is_the_system() -> None:
    assert AuditEntry.objects.get(object_id=str(post_job().pk)).actor_kind == ActorKind.SYSTEM


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "X-Api-Key",
        "apiKey",
        "API_KEY",
        "password",
        "DB_PASSWORD",
        "clientSecret",
        "token",
        "Cookie",
        "PGPASSWORD",
        "DBPASSWORD",
        "AWSSECRETKEY",
        "ACCESSTOKEN",
        "PRIVATEKEY",
        "MYSQL_PWD",
        "SMTP_PASS",
        "DATABASE_DSN",
        "SIGNINGKEY",
        "ENCRYPTION_KEYS",
        "sessioncookie",
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)
    assert redact({name: "hush"}) == {name: MASK} == redact({name: {"deep": ["hush"]}})


@pytest.mark.parametrize(
    "name",
    [
        "monkey",
        "donkeys",
        "author",
        "tokenizer",
        "keyboard",
        "X-Request-Id",
        "passenger",
        "Accept",
        "compass",
    ],
)
def test_harmless_names_are_left_alone(name: str) -> None:
    assert redact({name: "seen"}) == {name: "seen"}


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"env": {"PGPASSWORD": "x", "LANG": "C"}}, {"env": {"PGPASSWORD": MASK, "LANG": "C"}}),
        ("host=db password=hush port=5432", f"host=db password={MASK} port=5432"),
        ("host=db password='hu sh' port=5432", f"host=db password={MASK} port=5432"),
        ("psql 'host=db password=h&sh'", f"psql 'host=db password={MASK}"),
        (["curl", "-H", "Authorization: Bearer abc"], ["curl", "-H", f"Authorization: {MASK}"]),
        (["curl", "-H", "Accept: text/html"], ["curl", "-H", "Accept: text/html"]),
        ("Accept: */*\nX-Api-Key:abc\nHost: a", f"Accept: */*\nX-Api-Key:{MASK}\nHost: a"),
        ('{"user": "ada", "password": "hu\\"sh", "n": 1}', f'{{"user": "ada", "password": {MASK}, "n": 1}}'),
        ("sh -c 'curl --token=hush x'", f"sh -c 'curl --token={MASK} x'"),
        ("see https://ada:hush@a.example/x", f"see https://{MASK}@a.example/x"),
        ("https://auth.example:8443/x?b=1", "https://auth.example:8443/x?b=1"),
        ("token:", "token:"),
        (["curl", "--token", "hush", "-v"], ["curl", "--token", MASK, "-v"]),
        (["curl", "--token", "-v"], ["curl", "--token", "-v"]),
        (["run", "--api-key=hush"], ["run", f"--api-key={MASK}"]),
        (["PASSWORD=hush", "sh"], [f"PASSWORD={MASK}", "sh"]),
        ("https://user:hush@a.example/x", f"https://{MASK}@a.example/x"),
        ("https://a.example/x?token=hush&page=2", f"https://a.example/x?token={MASK}&page=2"),
        ("https://a.example/x?page=2", "https://a.example/x?page=2"),
        ("http://[bad", "http://[bad"),
        ({"token": None}, {"token": None}),
        ({"secret": True}, {"secret": True}),
        (5, 5),
    ],
)
def test_secrets_are_masked_wherever_they_stand(value: Any, masked: Any) -> None:
    assert redact(value) == masked


def test_what_is_masked_stays_as_it_is() -> None:
    once = redact(["host=db password=hush", "Authorization: Bearer abc", "https://a:b@c.example/?key=d"])
    assert redact(once) == once


@pytest.mark.parametrize("text", ["a" * 60_000, "key='" * 10_000, 'key="\\' * 10_000, "key: " * 10_000])
def test_a_long_text_is_read_once(text: str) -> None:
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 1


def handled(request: HttpRequest, view: Any) -> HttpResponse:
    return AuditContextMiddleware(view)(request)


@pytest.mark.django_db
def test_a_request_acts_as_its_user() -> None:
    seen = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(current_actor())
        return HttpResponse()

    request = RequestFactory().get("/admin/")
    request.user = make_user(username="ada")
    handled(request, view)
    request.user = AnonymousUser()
    handled(request, view)
    assert seen == [(ActorKind.USER, "ada"), (ActorKind.SYSTEM, "system")]
    assert current_actor() == (ActorKind.SYSTEM, "system")


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "203.0.113.9", "10.0.0.1"),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "forged, 203.0.113.9", "203.0.113.9"),
        (2, "203.0.113.9, 10.0.0.2", "203.0.113.9"),
        (2, "203.0.113.9", "203.0.113.9"),
        (1, "", "10.0.0.1"),
        (1, "nonsense", None),
        (1, "2001:db8::1", "2001:db8::1"),
    ],
)
def test_of_forwarded_addresses_only_those_of_our_proxies_count(
    proxies: int, forwarded: str, address: str | None, settings: Settings
) -> None:
    from auditlog.context import current

    settings.TRUSTED_PROXIES = proxies
    seen = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(current().address)
        return HttpResponse()

    handled(RequestFactory(REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": forwarded}).get("/"), view)
    assert seen == [address]
