"""What the environment says is refused without quoting it: an address may hold a password."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from scheduler_project import env
from scheduler_project.doctor.database import place

UNREADABLE = [
    "postgresql://user:pa%zzzebra@localhost/db",
    "postgresql://user:pa sszebra@localhost/db",
    "postgresql://user:pazebra@[::1/db",
    "postgresql://user:pa/sszebra@localhost/db",
    "postgresql://user:12/sszebra@localhost/db",
    "postgresql://user:pa?sszebra@localhost/db",
    "postgresql://user:pa#sszebra@localhost/db",
]


@pytest.mark.parametrize("url", UNREADABLE)
def test_an_address_that_cannot_be_read_is_refused_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_DIRECT_URL", url)
    with pytest.raises(ImproperlyConfigured, match="DATABASE_DIRECT_URL .*percent") as refusal:
        env.postgres_url("DATABASE_DIRECT_URL", "")
    assert "zebra" not in str(refusal.value)
    assert refusal.value.__cause__ is refusal.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "postgresql://user:pa%2Fss%40w@localhost:5432/db",
        "postgresql:///db?host=/var/run/postgresql&password=a@b",
        "postgres://user@[::1]:5432/db",
    ],
)
def test_an_address_that_can_be_read_is_taken_as_it_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_DIRECT_URL", url)
    assert env.postgres_url("DATABASE_DIRECT_URL", "") == url


@pytest.mark.parametrize(
    "url, shown",
    [
        ("amqp://user:secret@host:5672/vhost", "host:5672/vhost"),
        ("postgresql:///db?host=/tmp&password=secret", "the local socket/db"),
        ("amqp://user:12/secret@host/vhost", "an address that is not to be shown"),
        ("amqp://user:12?secret@host/vhost", "an address that is not to be shown"),
        ("amqp://user:12#secret@host/vhost", "an address that is not to be shown"),
        ("amqp://user:se@12?cret@host/vhost", "an address that is not to be shown"),
    ],
)
def test_the_doctor_shows_a_place_and_no_password(url: str, shown: str) -> None:
    assert place(url) == shown


def test_numbers_that_are_left_out_keep_their_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_LIMITS", "files=5")
    assert env.numbers("SOME_LIMITS", {"files": 1, "cpu": 2}) == {"files": 5, "cpu": 2}


@pytest.mark.parametrize("value", ["files", "files=", "files=many", "files=-1", "colour=1", "files=1.5"])
def test_numbers_that_are_none_are_refused_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_LIMITS", value)
    with pytest.raises(ImproperlyConfigured, match="SOME_LIMITS"):
        env.numbers("SOME_LIMITS", {"files": 1})
