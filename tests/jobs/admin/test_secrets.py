"""Secrets in the admin: a value can be written there and read nowhere."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.access.memberships import set_membership
from jobs.models import Role, Secret, Tenant
from jobs.secrets import service as tenant_secrets
from jobs.services.status import cancel_job
from tests.support.factories import make_tenant, post_job

pytestmark = pytest.mark.django_db
VALUE = "-----BEGIN KEY-----\nNot for the eyes <of> many\n-----END KEY-----\n"


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant(slug="payments")


@pytest.fixture
def secret(tenant: Tenant) -> Secret:
    return tenant_secrets.create_secret(tenant, {"name": "SIGNING_KEY", "value": VALUE})


def page(name: str, *arguments: Any) -> str:
    return reverse(f"admin:beatkeeper_jobs_secret_{name}", args=arguments)


def value_of(secret: Secret) -> str:
    secret.refresh_from_db()
    return tenant_secrets.box().open(secret.tenant_id, secret.name, secret.ciphertext)


def member(client: Client, tenant: Tenant, role: Role) -> Client:
    user = User.objects.create_user("mara", password="x", is_staff=True)
    set_membership(user, tenant, role)
    client.force_login(user)
    return client


def test_a_secret_is_made_as_it_was_pasted(staff: Client, tenant: Tenant) -> None:
    sent = {"tenant": tenant.pk, "name": "SIGNING_KEY", "value": VALUE.replace("\n", "\r\n")}
    answer = staff.post(page("add"), sent)
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    made = Secret.objects.get()
    assert (value_of(made), made.created_by) == (VALUE, "olga")
    assert AuditEntry.objects.get(action="secret.created").actor == "olga"


def test_no_page_shows_a_value(staff: Client, secret: Secret) -> None:
    for address in (page("change", secret.pk), page("changelist"), page("add")):
        text = staff.get(address).content.decode()
        assert "for the eyes" not in text and secret.ciphertext not in text


def test_a_form_that_is_refused_does_not_repeat_the_value(staff: Client, tenant: Tenant) -> None:
    sent = {"tenant": tenant.pk, "name": "not a name", "value": VALUE}
    answer = staff.post(page("add"), sent)
    assert answer.status_code == 200 and "for the eyes" not in answer.content.decode()
    assert "It is not the name of a secret" in answer.content.decode()


def test_a_new_value_replaces_the_old_one_and_the_name_stays(staff: Client, secret: Secret) -> None:
    assert staff.post(page("change", secret.pk), {"name": "OTHER", "value": "the new one"}).status_code == 302
    assert value_of(secret) == "the new one" and secret.name == "SIGNING_KEY"
    empty = staff.post(page("change", secret.pk), {"value": ""})
    assert empty.status_code == 200 and value_of(secret) == "the new one"


def test_it_says_which_jobs_use_it_and_is_not_deleted_then(staff: Client, secret: Secret) -> None:
    target = {"kind": "command", "argv": ["true"], "env": {"KEY": "${secret:SIGNING_KEY}"}}
    job = post_job(secret.tenant, name="sign", target=target)
    assert "sign" in staff.get(page("change", secret.pk)).content.decode()
    url = f"{page('change', secret.pk).removesuffix('change/')}delete/"
    said = staff.post(url, {"_form_submitted": "True", "reason": "old"}, follow=True).content.decode()
    assert "Jobs refer to SIGNING_KEY: sign" in said and Secret.objects.filter(pk=secret.pk).exists()
    cancel_job(job)
    staff.post(url, {"_form_submitted": "True", "reason": "old"})
    assert not Secret.objects.exists()
    assert AuditEntry.objects.get(action="secret.deleted").reason == "old"


def test_members_see_names_and_administrators_write(client: Client, secret: Secret) -> None:
    viewer = member(client, secret.tenant, Role.VIEWER)
    shown = viewer.get(page("change", secret.pk))
    assert shown.status_code == 200 and 'name="value"' not in shown.content.decode()
    assert viewer.post(page("change", secret.pk), {"value": "mine now"}).status_code == 403
    assert value_of(secret) == VALUE
    set_membership(User.objects.get(username="mara"), secret.tenant, Role.ADMIN)
    assert viewer.post(page("change", secret.pk), {"value": "mine now"}).status_code == 302
    assert value_of(secret) == "mine now"


def test_of_another_tenant_nothing_is_seen(client: Client, secret: Secret) -> None:
    stranger = member(client, make_tenant(), Role.ADMIN)
    assert "SIGNING_KEY" not in stranger.get(page("changelist")).content.decode()
    assert stranger.get(page("change", secret.pk)).status_code == 302
