"""Typed readers of the environment. A value that makes no sense is refused by the name of its variable."""

import os
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, default).strip()


def boolean(name: str, default: bool) -> bool:
    value = os.environ.get(name)
    if value is None:
        return default
    if value.strip().lower() in TRUE:
        return True
    if value.strip().lower() in FALSE:
        return False
    raise ImproperlyConfigured(f"{name}={value!r} is neither yes nor no: use 1 or 0")


def integer(name: str, default: int, minimum: int, maximum: int) -> int:
    value = text(name, str(default))
    try:
        number = int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r} is not a whole number") from None
    return int(_within(name, number, minimum, maximum))


def seconds(name: str, default: float, minimum: float, maximum: float) -> float:
    value = text(name, str(default))
    try:
        number = float(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r} is not a number of seconds") from None
    return _within(name, number, minimum, maximum)


def _within(name: str, number: float, minimum: float, maximum: float) -> float:
    if not minimum <= number <= maximum:
        raise ImproperlyConfigured(f"{name}={number:g} is outside {minimum:g} to {maximum:g}")
    return number


def choice(name: str, default: str, allowed: Sequence[str]) -> str:
    value = text(name, default)
    if value not in allowed:
        raise ImproperlyConfigured(f"{name}={value!r} is not one of {', '.join(allowed)}")
    return value


def names(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in text(name, default).split(",") if part.strip()]


def url(name: str, default: str, schemes: Sequence[str]) -> str:
    """The URL itself may hold a password, so a refusal quotes the scheme only."""
    value = text(name, default)
    if not value:
        return ""
    scheme = urlsplit(value).scheme
    if scheme not in schemes:
        raise ImproperlyConfigured(f"{name} has the scheme {scheme!r}; use one of {', '.join(schemes)}")
    return value


def database(name: str) -> dict[str, object] | None:
    """A Django database from a postgresql:// URL; `host` and other options may stand in the query."""
    value = url(name, "", ("postgresql", "postgres"))
    if not value:
        return None
    parts = urlsplit(value)
    try:
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured(f"{name} has a port that is not a number") from None
    options = dict(parse_qsl(parts.query))
    database_name = unquote(parts.path.lstrip("/"))
    if not database_name:
        raise ImproperlyConfigured(f"{name} names no database: add /name at its end")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database_name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", "") or unquote(parts.hostname or ""),
        "PORT": options.pop("port", "") or str(port or ""),
        "OPTIONS": options,
    }
