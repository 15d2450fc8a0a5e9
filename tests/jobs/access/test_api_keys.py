"""API keys: created once, found by their text, revoked for good."""

from datetime import timedelta

import pytest

from auditlog.models import AuditEntry
from jobs.access import api_keys
from jobs.clock import database_now
from jobs.models import ApiKey, Role
from tests.support.factories import make_tenant

pytestmark = pytest.mark.django_db


def test_a_key_is_shown_once_and_kept_as_a_digest() -> None:
    tenant = make_tenant()
    key, text = api_keys.create_key(tenant, "ci", Role.OPERATOR)
    start, prefix, secret = text.split("_", 2)
    assert (start, prefix) == ("bk", key.prefix) and len(secret) == 43
    kept = ApiKey.objects.values().get()
    assert text not in str(kept) and secret not in str(kept)
    assert secret not in str(list(AuditEntry.objects.values()))
    entry = AuditEntry.objects.get(action="key.created")
    assert entry.after is not None and entry.after["role"] == "operator" and entry.tenant_id == tenant.pk


def test_a_key_is_found_by_its_whole_text() -> None:
    key, text = api_keys.create_key(make_tenant(), "ci")
    api_keys.create_key(make_tenant(), "other")
    assert api_keys.find_key(text) == key
    for wrong in (text[:-1], text + "x", text.upper(), "", "bk", text.replace("bk_", "kb_"), f" {text}"):
        assert api_keys.find_key(wrong) is None


def test_an_expired_or_revoked_key_is_not_found() -> None:
    key, text = api_keys.create_key(make_tenant(), "ci", expires_at=database_now() - timedelta(seconds=1))
    assert api_keys.find_key(text) is None
    ApiKey.objects.update(expires_at=database_now() + timedelta(hours=1))
    assert api_keys.find_key(text) == key
    api_keys.revoke_key(key, "left the team")
    assert api_keys.find_key(text) is None
    api_keys.revoke_key(key)
    entry = AuditEntry.objects.get(action="key.revoked")
    assert entry.reason == "left the team"
