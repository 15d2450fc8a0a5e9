"""Make users on RabbitMQ for the workers of a tenant: one may read that tenant's wake-ups and do nothing else.

A wake-up says no more than that there is work, but a user who could purge or forge others' would hold them up.
"""

import re
import secrets
import ssl
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

import httpx
from django.conf import settings
from django.db import transaction

from auditlog.actions import Action
from auditlog.record import record
from jobs.errors import Conflict
from jobs.models import Pool, Tenant
from jobs.validation.checks import invalid
from runs.scheduler.broker.config import REMEDY
from scheduler_project.sdk.transport.broker_tls import tls_trouble

NOTHING = "^$"
# Pools and versions of broker queues; a slug has no dot, and the name of a pool's broker queue has one more part.
ANY_POOL = "[a-z0-9-]+"
ANY_VERSION = "[a-z]+[0-9]+"
PATIENCE = 15.0


@dataclass(frozen=True)
class BrokerUser:
    name: str
    vhost: str
    read: str
    password: str = field(repr=False, default="")

    def by_hand(self) -> list[str]:
        """Return what an operator of the broker types; rabbitmqctl asks for the password, so `ps` never shows it."""
        quoted = " ".join(f"'{one}'" for one in (NOTHING, NOTHING, self.read))
        return [
            f"rabbitmqctl add_user {self.name}",
            f"rabbitmqctl set_permissions -p {self.vhost} {self.name} {quoted}",
        ]


Apply = Callable[[BrokerUser], None]


@transaction.atomic
def make_user(tenant: Tenant, pool: Pool | None, apply: Apply | None) -> BrokerUser:
    """Make the user with a new password, audited without it before the broker knows it; the old one ends."""
    user = broker_user(tenant, pool, secrets.token_urlsafe(32))
    after = {"user": user.name, "vhost": user.vhost, "read": user.read}
    record(Action.BROKER_USER_CREATED, tenant, tenant_id=tenant.pk, after=after)
    if apply is not None:
        apply(user)
    return user


@transaction.atomic
def remove_user(tenant: Tenant, pool: Pool | None, remove: Apply | None) -> BrokerUser:
    user = broker_user(tenant, pool)
    record(Action.BROKER_USER_REMOVED, tenant, tenant_id=tenant.pk, after={"user": user.name})
    if remove is not None:
        remove(user)
    return user


def broker_user(tenant: Tenant, pool: Pool | None, password: str = "") -> BrokerUser:
    """Return the user of all pools that the tenant may use, or of one pool."""
    if pool is not None and not Pool.objects.open_to(tenant).filter(pk=pool.pk).exists():
        raise invalid("pool", f"the pool {pool} is not open to {tenant}", "an operator opens pools to teams")
    prefix = settings.QUEUE_PREFIX
    name = ".".join([prefix, *([pool.slug] if pool else []), tenant.slug])
    parts = [re.escape(prefix), pool.slug if pool else ANY_POOL, tenant.slug, ANY_VERSION]
    return BrokerUser(name, vhost_of(pool), f"^{'[.]'.join(parts)}$", password)


def vhost_of(pool: Pool | None) -> str:
    url = settings.BROKERS.get(pool.broker, "") if pool and pool.broker else settings.CELERY_BROKER_URL
    return unquote(urlsplit(url.partition(";")[0]).path.removeprefix("/")) or "/"


class ManagementApi:
    """RabbitMQ's HTTP API; its URL holds the login of an administrator of the broker."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._login = (unquote(parts.username or ""), unquote(parts.password or ""))
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/api"

    def make(self, user: BrokerUser) -> None:
        """Remove the permissions first, so that nobody uses a new password with old permissions."""
        self._call("PUT", f"/users/{user.name}", {"password": user.password, "tags": ""})
        permissions = {"configure": NOTHING, "write": NOTHING, "read": user.read}
        self._call("PUT", f"/permissions/{quote(user.vhost, safe='')}/{user.name}", permissions)

    def remove(self, user: BrokerUser) -> None:
        self._call("DELETE", f"/users/{user.name}", None)

    def _call(self, method: str, path: str, body: object) -> None:
        try:
            answer = httpx.request(
                method, self._url + path, json=body, auth=self._login, timeout=PATIENCE, verify=tls()
            )
        except httpx.HTTPError as error:
            why = tls_trouble(error, REMEDY) or type(error).__name__
            raise Conflict(f"the broker's API at {self._url} does not answer: {why}") from None
        if answer.is_error and not (method == "DELETE" and answer.status_code == httpx.codes.NOT_FOUND):
            raise Conflict(
                f"the broker's API at {self._url} refuses: {answer.status_code}",
                hint="BEATKEEPER_BROKER_API_URL names a user with the tag administrator",
            )


def tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=settings.BROKER_CA_FILE or None)


class Rabbitmqctl:
    """The program on the broker's own machine. The password is passed on stdin."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = [*command, "--quiet"]

    def make(self, user: BrokerUser) -> None:
        known = [line.split("\t")[0] for line in self._run("list_users", "--no-table-headers").splitlines()]
        self._run("change_password" if user.name in known else "add_user", user.name, stdin=user.password)
        self._run("set_permissions", "-p", user.vhost, user.name, NOTHING, NOTHING, user.read)

    def remove(self, user: BrokerUser) -> None:
        self._run("delete_user", user.name)

    def _run(self, *arguments: str, stdin: str = "") -> str:
        try:
            done = subprocess.run(
                [*self._command, *arguments], input=f"{stdin}\n", capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Conflict(f"{self._command[0]} cannot be run: {type(error).__name__}") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["without a message"])[-1]
            raise Conflict(f"{self._command[0]} {arguments[0]} failed: {last}")
        return done.stdout
