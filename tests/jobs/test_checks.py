"""Mistakes in the settings are told at start-up, in words."""

from typing import Any

import pytest
from pytest_django import Settings

from jobs.checks import AUDIT, AUTHENTICATION, check_settings


def found(settings: Settings, **changes: Any) -> list[str]:
    for name, value in changes.items():
        setattr(settings, name, value)
    messages = check_settings(None)
    assert all(message.hint for message in messages)
    return [str(message.id) for message in messages]


def test_the_settings_of_a_newcomer_are_in_order(settings: Settings) -> None:
    assert (
        found(settings, SECRET_KEY="k3yWith-many_different.letters!0123456789", ALLOWED_HOSTS=["localhost"])
        == []
    )


@pytest.mark.parametrize(
    "key", ["short", "x" * 60, "django-insecure-" + "abcdefghijklmnopqrstuvwxyz0123456789"]
)
def test_a_secret_key_that_is_easy_to_guess(settings: Settings, key: str) -> None:
    assert "beatkeeper.W003" in found(settings, SECRET_KEY=key)


@pytest.mark.parametrize(
    ("hosts", "warned"),
    [
        (["localhost", "127.0.0.1", "[::1]", "a.localhost"], False),
        (["cron.example.com"], True),
        (["*"], True),
    ],
)
def test_debug_within_reach_of_others(settings: Settings, hosts: list[str], warned: bool) -> None:
    assert ("beatkeeper.W004" in found(settings, DEBUG=True, ALLOWED_HOSTS=hosts)) is warned


def test_any_host_at_all(settings: Settings) -> None:
    assert "beatkeeper.W001" in found(settings, ALLOWED_HOSTS=["*"])


def test_cookies_over_plain_http(settings: Settings) -> None:
    hosts = ["cron.example.com"]
    assert "beatkeeper.W002" in found(settings, ALLOWED_HOSTS=hosts, SESSION_COOKIE_SECURE=False)
    assert "beatkeeper.W002" not in found(settings, ALLOWED_HOSTS=hosts, SESSION_COOKIE_SECURE=True)


@pytest.mark.parametrize("order", [[AUDIT, AUTHENTICATION], [AUTHENTICATION], []])
def test_an_audit_that_would_not_know_its_user_is_refused(settings: Settings, order: list[str]) -> None:
    assert "beatkeeper.E001" in found(settings, MIDDLEWARE=order)


def test_atomic_requests_are_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.DATABASES["default"], "ATOMIC_REQUESTS", True)
    assert "beatkeeper.E002" in found(settings)


def test_without_a_key_for_secrets(settings: Settings) -> None:
    assert "beatkeeper.W005" in found(settings, ENCRYPTION_KEYS=[])
