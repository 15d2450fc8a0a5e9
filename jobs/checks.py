"""Check settings, at the start of every command and by `manage.py check`. `doctor` checks what runs."""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Caution

from scheduler_project.sdk.secret_values.encryption import MAKE_ONE

MIN_SECRET = 32
AUDIT = "auditlog.middleware.AuditContextMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


@register("beatkeeper")
def check_settings(app_configs: Any, **_: Any) -> list[CheckMessage]:
    return [*_keys(), *_hosts(), *_requests()]


def _keys() -> Iterator[CheckMessage]:
    key = settings.SECRET_KEY
    if len(key) < MIN_SECRET or len(set(key)) < 8 or key.startswith("django-insecure"):
        yield Caution(
            f"SECRET_KEY is too easy to guess: {len(key)} characters, {len(set(key))} different ones.",
            hint="Sessions are signed with it. Make one: "
            "python -c 'import secrets; print(secrets.token_urlsafe(50))'",
            id="beatkeeper.W003",
        )
    if not settings.ENCRYPTION_KEYS:
        yield Caution(
            "ENCRYPTION_KEYS is not set: no tenant can keep a secret, and no run that needs one can start.",
            hint=f"Make a key and give it to every process of the platform: {MAKE_ONE}",
            id="beatkeeper.W005",
        )


def _hosts() -> Iterator[CheckMessage]:
    if settings.DEBUG and any(not _is_local(host) for host in settings.ALLOWED_HOSTS):
        yield Caution(
            "BEATKEEPER_DEBUG is on while others can reach this host: every error page shows settings and code.",
            hint="Set BEATKEEPER_DEBUG=0, or BEATKEEPER_ALLOWED_HOSTS to localhost alone.",
            id="beatkeeper.W004",
        )
    if "*" in settings.ALLOWED_HOSTS:
        yield Caution(
            "BEATKEEPER_ALLOWED_HOSTS is *: links in answers follow whatever Host a caller sends.",
            hint="Name the hosts under which you serve it.",
            id="beatkeeper.W001",
        )
    named = [host for host in settings.ALLOWED_HOSTS if host != "*" and not _is_local(host)]
    if named and not settings.SESSION_COOKIE_SECURE:
        yield Caution(
            f"Logins to {', '.join(named[:3])} travel in cookies that plain HTTP may carry.",
            hint="Serve it over HTTPS and set BEATKEEPER_SECURE_COOKIES=1.",
            id="beatkeeper.W002",
        )


def _requests() -> Iterator[CheckMessage]:
    order = list(settings.MIDDLEWARE)
    if AUDIT not in order or AUTHENTICATION not in order or order.index(AUDIT) < order.index(AUTHENTICATION):
        yield Error(
            f"{AUDIT} does not stand behind {AUTHENTICATION}: audit entries would not name their user.",
            hint="Put it directly after it in MIDDLEWARE.",
            id="beatkeeper.E001",
        )
    if any(database.get("ATOMIC_REQUESTS") for database in settings.DATABASES.values()):
        yield Error(
            "ATOMIC_REQUESTS is on: a job's clock would stay locked while its answer is sent.",
            hint="Every service opens its own transaction; leave it off.",
            id="beatkeeper.E002",
        )


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
