"""Keys of encryption: which decrypts, how they are changed, and that a row is worth nothing elsewhere."""

import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from jobs.models import Secret, Tenant
from jobs.secrets import service as tenant_secrets
from scheduler_project import env
from scheduler_project.doctor import secrets
from scheduler_project.sdk.secret_values.encryption import SecretBox, key_id, read_keys
from scheduler_project.sdk.secret_values.references import SecretUnreadable
from scheduler_project.standalone.state import encryption_keys
from tests.support.factories import make_tenant

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()


def make(tenant: Tenant, name: str = "TOKEN") -> Secret:
    return tenant_secrets.create_secret(tenant, {"name": name, "value": f"value of {name}"})


def test_a_row_that_was_copied_opens_nowhere_else() -> None:
    box = SecretBox([NEW])
    sealed = box.seal(1, "TOKEN", "a value")
    assert box.open(1, "TOKEN", sealed) == "a value"
    for tenant, name in ((2, "TOKEN"), (1, "OTHER")):
        with pytest.raises(SecretUnreadable, match="as another one") as refusal:
            box.open(tenant, name, sealed)
        assert "a value" not in str(refusal.value)


@pytest.mark.django_db
def test_a_secret_stolen_by_another_tenant_in_the_database_stays_shut() -> None:
    secret = make(make_tenant())
    Secret.objects.filter(pk=secret.pk).update(tenant=make_tenant())
    stolen = Secret.objects.get()
    with pytest.raises(SecretUnreadable):
        tenant_secrets.box().open(stolen.tenant_id, stolen.name, stolen.ciphertext)


def test_the_first_key_encrypts_and_each_decrypts() -> None:
    sealed = SecretBox([OLD]).seal(1, "TOKEN", "a value")
    both = SecretBox([NEW, OLD])
    assert both.open(1, "TOKEN", sealed) == "a value"
    with pytest.raises(SecretUnreadable, match="no key of ENCRYPTION_KEYS opens it"):
        SecretBox([NEW]).open(1, "TOKEN", sealed)
    with pytest.raises(SecretUnreadable, match="ENCRYPTION_KEYS is not set"):
        SecretBox([]).open(1, "TOKEN", sealed)
    assert SecretBox([NEW]).open(1, "TOKEN", both.seal(1, "TOKEN", "another")) == "another"
    assert both.key_ids == [key_id(NEW), key_id(OLD)] and NEW not in repr(both)


@pytest.mark.parametrize("text", ["short", f"{NEW},{OLD}x", f"{NEW},{NEW}", "x" * 44, f"{NEW} {OLD}"])
def test_keys_that_make_no_sense_are_refused_by_their_place(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCRYPTION_KEYS", text)
    with pytest.raises(ImproperlyConfigured, match="ENCRYPTION_KEYS") as refusal:
        env.encryption_keys("ENCRYPTION_KEYS")
    assert NEW not in str(refusal.value) and OLD not in str(refusal.value)


def test_spaces_around_keys_do_no_harm() -> None:
    assert read_keys(f" {NEW} , {OLD},") == [NEW, OLD]


@pytest.mark.django_db
def test_rotation_encrypts_all_with_the_first_key(settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.ENCRYPTION_KEYS = [OLD]
    tenant = make_tenant()
    names = [make(tenant, f"TOKEN_{number}").name for number in range(5)]
    settings.ENCRYPTION_KEYS = [NEW, OLD]
    call_command("secrets", "keys")
    assert f"{key_id(OLD)}         5 secrets  key 2" in capsys.readouterr().out
    call_command("secrets", "rotate", batch=2)
    out = capsys.readouterr().out
    assert "5 encrypted anew" in out and f"{key_id(OLD)}         0 secrets" in out and "taken away" in out
    settings.ENCRYPTION_KEYS = [NEW]
    found = {
        secret.name: tenant_secrets.box().open(tenant.pk, secret.name, secret.ciphertext)
        for secret in Secret.objects.all()
    }
    assert found == {name: f"value of {name}" for name in names}
    call_command("secrets", "rotate")
    assert "0 encrypted anew" in capsys.readouterr().out


@pytest.mark.django_db
def test_rotation_names_what_no_key_opens_and_renews_the_rest(settings: Any) -> None:
    settings.ENCRYPTION_KEYS = [OLD]
    lost = make(make_tenant(), "LOST")
    other = Fernet.generate_key().decode()
    settings.ENCRYPTION_KEYS = [other]
    kept = make(make_tenant(), "KEPT")
    settings.ENCRYPTION_KEYS = [NEW, other]
    with pytest.raises(CommandError, match=f"{lost.tenant_id}/LOST"):
        call_command("secrets", "rotate", batch=1)
    kept.refresh_from_db()
    lost.refresh_from_db()
    assert (kept.key_id, lost.key_id) == (key_id(NEW), key_id(OLD))


@pytest.mark.django_db
def test_doctor_knows_which_secrets_nobody_can_read(settings: Any) -> None:
    def said() -> list[tuple[str, str]]:
        return [(finding.level.value, finding.what) for finding in secrets.keys()]

    settings.ENCRYPTION_KEYS = []
    assert [level for level, _ in said()] == ["note"]
    settings.ENCRYPTION_KEYS = [OLD]
    make(make_tenant())
    assert said() == [("fine", "1 secret, all encrypted with the first key")]
    settings.ENCRYPTION_KEYS = [NEW, OLD]
    assert [level for level, _ in said()] == ["note"]
    settings.ENCRYPTION_KEYS = [NEW]
    assert said() == [("problem", f"no key of ENCRYPTION_KEYS opens 1 secret (keys {key_id(OLD)})")]
    settings.ENCRYPTION_KEYS = []
    assert said() == [("problem", "1 secret and no key: ENCRYPTION_KEYS is not set")]


def test_a_machine_of_its_own_makes_a_key_once(tmp_path: Path) -> None:
    first = encryption_keys(tmp_path)
    assert read_keys(first) == [first] and encryption_keys(tmp_path) == first
    assert stat.S_IMODE((tmp_path / "encryption_keys").stat().st_mode) == 0o600


@pytest.mark.django_db
def test_without_a_key_rotation_says_how_one_is_made(settings: Any) -> None:
    settings.ENCRYPTION_KEYS = []
    with pytest.raises(CommandError, match="ENCRYPTION_KEYS"):
        call_command("secrets", "rotate")
