"""Read the environment, typed. An invalid value is refused by the name of its variable."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

import psycopg
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

from scheduler_project.sdk.secret_values import encryption as secret_box
from scheduler_project.sdk.transport import broker_tls

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}
BROKER_SCHEMES = ("amqp", "amqps", "pyamqp")
BROKER_OPTIONS = ("heartbeat", "login_method", *broker_tls.IN_URL)
BROKER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
QUEUE_TYPES = ("classic", "quorum")


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, default).strip()


def boolean(name: str, default: bool) -> bool:
    value = os.environ.get(name, str(default))
    if value.strip().lower() in TRUE | FALSE:
        return value.strip().lower() in TRUE
    raise ImproperlyConfigured(f"{name}={value!r} is neither yes nor no: use 1 or 0")


def integer(name: str, default: int, minimum: int, maximum: int) -> int:
    return int(_within(name, default, minimum, maximum, int, "a whole number"))


def number(name: str, default: float, minimum: float, maximum: float) -> float:
    return _within(name, default, minimum, maximum, float, "a number")


def _within(
    name: str, default: float, minimum: float, maximum: float, read: Callable[[str], float], kind: str
) -> float:
    value = text(name, str(default))
    try:
        found = read(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r} is not {kind}") from None
    if not minimum <= found <= maximum:
        raise ImproperlyConfigured(f"{name}={found:g} is outside {minimum:g} to {maximum:g}")
    return found


def numbers(name: str, defaults: Mapping[str, int]) -> dict[str, int]:
    """Read numbers by name, as in `name=5 other=0`; names left out keep their defaults."""
    found = dict(defaults)
    for word in text(name).split():
        key, equals, value = word.partition("=")
        if key not in defaults or not equals:
            known = ", ".join(f"{key}=…" for key in defaults)
            raise ImproperlyConfigured(f"{name}: {word!r} is not one of {known}")
        if not (value.isascii() and value.isdecimal() and len(value) < 12):
            raise ImproperlyConfigured(f"{name}: {word!r} has no whole number behind its =")
        found[key] = int(value)
    return found


def choice(name: str, default: str, allowed: Sequence[str]) -> str:
    value = text(name, default)
    if value not in allowed:
        raise ImproperlyConfigured(f"{name}={value!r} is not one of {', '.join(allowed)}")
    return value


def readable_file(name: str) -> str:
    path = text(name)
    if path and not (os.path.isfile(path) and os.access(path, os.R_OK)):
        raise ImproperlyConfigured(f"{name}={path!r} is no file that can be read here")
    return path


def names(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in text(name, default).split(",") if part.strip()]


def folders(name: str, project: str, private: Mapping[str, str]) -> list[str]:
    """Read absolute paths. None may contain the project or overlap a private folder."""
    found = names(name)
    for folder in found:
        if os.path.realpath(folder) == "/":
            raise ImproperlyConfigured(f"{name}: {folder!r} is everything: name the folders in it")
        if not os.path.isabs(folder):
            raise ImproperlyConfigured(
                f"{name}: {folder!r} is not the whole path of a folder, such as /srv/scripts"
            )
        for what, own in {"the project": project, **private}.items():
            # To cover it there is not enough: a cover goes away with what it covers, when that is replaced.
            if _holds(folder, own) or (what in private and _holds(own, folder)):
                raise ImproperlyConfigured(
                    f"{name}: {folder!r} would show commands something of {what}, {own}: name the folders beside it"
                )
    return found


def _holds(folder: str, other: str) -> bool:
    """Compare paths also by name: a link may be replaced by a folder."""
    if not (folder and other):
        return False
    real, others = os.path.realpath(folder), (os.path.abspath(other), os.path.realpath(other))
    return any(os.path.commonpath([real, path]) == real for path in others)


def url(name: str, default: str, schemes: Sequence[str]) -> str:
    """Read a URL. It may hold a password, so a refusal quotes the scheme only."""
    value = text(name, default)
    if not value:
        return ""
    before, colon, _ = value.partition(":")
    scheme = before if colon and before.isalnum() else ""
    if scheme not in schemes:
        raise ImproperlyConfigured(f"{name} has the scheme {scheme!r}; use one of {', '.join(schemes)}")
    return value


def postgres_url(name: str, default: str) -> str:
    """Refuse a database URL that libpq cannot read: libpq would quote it into the log with its password."""
    value = url(name, default, ("postgresql", "postgres"))
    if value and not _is_readable(value):
        raise ImproperlyConfigured(
            f"{name} cannot be read: use postgresql://user:password@host:5432/name, with every character of user and "
            "password that is no letter or digit percent-encoded"
        )
    return value


def _is_readable(value: str) -> bool:
    try:
        conninfo_to_dict(value)
        parts = urlsplit(value)
        parts.port  # noqa: B018 - reading it is the check
    except (psycopg.Error, ValueError):
        return False
    # An @ beyond the host: what stands before it was meant to be a password.
    return "@" not in parts.path + parts.fragment and "@" not in parts.query.partition("=")[0]


def broker_url(name: str, value: str) -> str:
    """Read a broker URL, or those of a cluster separated by `;`. A refusal does not quote them: they hold passwords."""
    for address in filter(None, value.split(";")):
        scheme, _, rest = address.partition("://")
        if scheme not in BROKER_SCHEMES:
            raise ImproperlyConfigured(
                f"{name} has no scheme that is known; use one of {', '.join(BROKER_SCHEMES)}"
            )
        try:
            urlsplit(address).port  # noqa: B018 - reading it is the check
        except ValueError:
            raise ImproperlyConfigured(f"{name} has a port that is not a number") from None
        if "://" in rest:
            raise ImproperlyConfigured(f"{name} holds two addresses: put `;` between those of one broker")
        options = dict(parse_qsl(urlsplit(address).query, keep_blank_values=True))
        if options.pop("ssl_cert_reqs", "required") not in ("required", "CERT_REQUIRED"):
            raise ImproperlyConfigured(f"{name}: {broker_tls.UNCHECKED}")
        if not options.keys() <= {*BROKER_OPTIONS}:
            # Not quoted: it may be half of a password.
            known = ", ".join(BROKER_OPTIONS)
            raise ImproperlyConfigured(f"{name} has something behind its ? that is none of {known}")
    return value


def brokers(name: str) -> dict[str, str]:
    """Read URLs by name, from JSON or from NAME=url pairs separated by spaces."""
    found = {}
    for broker, value in _named(name):
        if not BROKER_NAME.fullmatch(broker):
            # Not quoted either: what stands there may be half of a URL.
            raise ImproperlyConfigured(
                f"{name}: a broker's name is small letters, digits and inner hyphens, at most 40"
            )
        if broker in found:
            raise ImproperlyConfigured(f"{name} names the broker {broker} twice")
        found[broker] = broker_url(f"{name}, broker {broker},", value)
    return found


def _named(name: str) -> list[tuple[str, str]]:
    value = text(name)
    if value.startswith("{"):
        try:
            pairs = list(json.loads(value).items())
        except ValueError:
            # The error would quote the document, passwords and all.
            raise ImproperlyConfigured(f"{name} begins like JSON and is none") from None
        if not all(isinstance(url, str) and url for _, url in pairs):
            raise ImproperlyConfigured(f'{name} is to be {{"name": "amqp://…", …}}, all of them texts')
        return pairs
    split = [part.partition("=") for part in value.split()]
    if not all(equals and url for _, equals, url in split):
        raise ImproperlyConfigured(f"{name} is to be NAME=amqp://… pairs with spaces between them, or JSON")
    return [(broker, url) for broker, _, url in split]


def queue_types(name: str, brokers: Collection[str]) -> dict[str, str]:
    """Read a word for all brokers and those that differ, as in `quorum` or `classic payments=quorum`."""
    types = {"": QUEUE_TYPES[0]}
    for part in text(name).split():
        broker, equals, queue_type = part.rpartition("=")
        if queue_type not in QUEUE_TYPES:
            raise ImproperlyConfigured(f"{name}: {queue_type!r} is not one of {', '.join(QUEUE_TYPES)}")
        if equals and broker not in brokers:
            raise ImproperlyConfigured(f"{name} names a broker {broker!r} that BEATKEEPER_BROKERS does not")
        types[broker] = queue_type
    return types


def encryption_keys(name: str) -> list[str]:
    """Read encryption keys. A refusal names the place in the list: a key is never quoted."""
    try:
        return secret_box.read_keys(text(name))
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None


def database(name: str) -> dict[str, object]:
    """Return Django's settings for a postgresql:// URL, whose query may hold `host` and other options; {}: none."""
    value = postgres_url(name, "")
    if not value:
        return {}
    options = conninfo_to_dict(value)
    if "dbname" not in options:
        raise ImproperlyConfigured(f"{name} names no database: add /name at its end")
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    address = {key: options.pop(option, "") for key, option in names.items()}
    return {"ENGINE": "django.db.backends.postgresql", **address, "OPTIONS": options}
