"""TLS to a broker: who stands between hears nothing.

py-amqp left alone looks at no name: any certificate of anybody passes for the broker's. Given a dict it may look at
nothing at all (`ssl_version`). Here what was left unsaid is checked: that a certificate authority we trust has signed,
for this host. `ssl_…` in a URL are kombu's words, which py-amqp does not understand by itself. Of a Redis kombu looks
at no certificate unless it is told to.
"""

from __future__ import annotations

import re
import ssl
from functools import cache, partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from celery.app.amqp import AMQP
from kombu import Connection
from kombu.transport import pyamqp

ENCRYPTED, ENCRYPTED_REDIS = "amqps", "rediss"
PREFIX = "ssl_"
CA = "ssl_ca_certs"
REQS, HOSTNAME = "ssl_cert_reqs", "ssl_check_hostname"
# How kombu reads the first of them in a Redis' URL; anything else would be "none".
REQS_IN_URL = ("required", "optional", "none", "CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE")
# What may stand in a URL. Whether anything is checked is none of it.
IN_URL = (CA, "ssl_certfile", "ssl_keyfile", "ssl_server_hostname")
WAITING = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
UNCHECKED = "ssl_cert_reqs would let anybody be the broker: leave it out, and name the CA in ssl_ca_certs"


class TrustsAnybody(ValueError):
    """`cert_reqs` would let anybody be the broker."""


class Checking(pyamqp.Transport):
    """What whoever asked for TLS left unsaid is checked."""

    def establish_connection(self) -> Any:
        """Of each node of a cluster its own name."""
        client: Any = self.client
        if client.ssl:
            client.ssl = self.tls_options(client.ssl, client.hostname or "localhost")
        return super().establish_connection()

    def tls_options(self, given: Any, host: str) -> dict[str, Any]:
        return tls_options(given, host)


class Insisting(Checking):
    """Nobody is taken at the word that any certificate will do."""

    def tls_options(self, given: Any, host: str) -> dict[str, Any]:
        return trustworthy(super().tls_options(given, host))


class CheckedConnection(Connection):
    """Where it is encrypted, it is to the broker and to nobody else, at each node of a cluster."""

    def get_transport_cls(self) -> Any:
        transport: Any = super().get_transport_cls()
        return transport_with(Insisting, transport)


class CheckedAMQP(AMQP):
    """What a Celery app of our own takes its connections from."""

    Connection = CheckedConnection


def as_the_app_says(connection: Any) -> Any:
    """A connection of an app's, whose own words hold; what it says nothing of is checked."""
    connection.get_transport_cls = partial(_checking, connection.get_transport_cls)
    return connection


def _checking(get_transport_cls: Any) -> Any:
    return transport_with(Checking, get_transport_cls())


@cache
def transport_with(way: type[Checking], transport: Any) -> Any:
    if not issubclass(transport, pyamqp.Transport) or issubclass(transport, Checking):
        return transport
    return type(f"{way.__name__}{transport.__name__}", (way, transport), {})


def tls_options(given: Any, host: str) -> dict[str, Any]:
    """For py-amqp: what was given, and what it would not look at by itself."""
    options = {amqp_name(name): value for name, value in given.items()} if isinstance(given, dict) else {}
    if trusts_anybody(options):
        return options
    if "context" in options:
        context = {"check_hostname": True, **options["context"]}
        name = (
            {"server_hostname": options.get("server_hostname") or host} if context["check_hostname"] else {}
        )
        return {**options, **name, "context": context}
    return {
        **options,
        "cert_reqs": options.get("cert_reqs") or ssl.CERT_REQUIRED,
        "server_hostname": options.get("server_hostname") or host,
    }


def trustworthy(options: dict[str, Any]) -> dict[str, Any]:
    if trusts_anybody(options):
        raise TrustsAnybody(UNCHECKED)
    return options


def trusts_anybody(options: Any) -> bool:
    """Said outright, not left unsaid."""
    said = [options.get(name) for name in ("cert_reqs", "ssl_cert_reqs")] if isinstance(options, dict) else []
    return any(value is not None and value == ssl.CERT_NONE for value in said)


def amqp_name(name: str) -> str:
    """What py-amqp calls it; one of its names begins as all of kombu's do."""
    return name if name == "ssl_version" else name.removeprefix(PREFIX)


def with_ca(url: str, ca_file: str) -> str:
    """The same address or addresses, with the CA of those that name none."""
    return ";".join(_with_ca(address, ca_file) for address in url.split(";")) if ca_file else url


def _with_ca(address: str, ca_file: str) -> str:
    parts = urlsplit(address)
    if parts.scheme != ENCRYPTED or CA in parts.query:
        return address
    return f"{address}{'&' if parts.query else '?'}{CA}={quote(ca_file, safe='')}"


def checked_on_redis(url: str, ca_file: str) -> str:
    """The same address or addresses. What those of a Redis over TLS leave unsaid is said: that its certificate is
    checked, for this host, and by which CA."""
    return ";".join(_checked_on_redis(address, ca_file) for address in url.split(";"))


def _checked_on_redis(address: str, ca_file: str) -> str:
    parts = urlsplit(address)
    if parts.scheme != ENCRYPTED_REDIS:
        return address
    said = dict(parse_qsl(parts.query))
    unsaid = {
        REQS: "CERT_REQUIRED" if said.get(REQS) not in REQS_IN_URL else "",
        HOSTNAME: "true" if HOSTNAME not in said else "",
        CA: quote(ca_file, safe="") if CA not in said else "",
    }
    # Of what stands there twice the last counts, and behind a fragment nothing.
    words = [parts.query, *(f"{name}={value}" for name, value in unsaid.items() if value)]
    return f"{re.split('[?#]', address)[0]}?{'&'.join(filter(None, words))}"


def tls_trouble(error: BaseException, remedy: str) -> str:
    """Where TLS is in the way of a connection: why, and what helps. Empty: it is something else."""
    error = _of_tls(error) or error
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: {error.verify_message.rstrip('.')}; {remedy}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with the broker: {error.reason or error}"
    if isinstance(error, FileNotFoundError):
        return f"a file for TLS with the broker is not there; {remedy}"
    return str(error) if isinstance(error, TrustsAnybody) else ""


def _of_tls(error: BaseException | None) -> ssl.SSLError | None:
    """kombu and httpx wrap what went wrong; that a socket had nothing to say is nothing wrong."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, WAITING):
            return error
        error = error.__cause__ or error.__context__
    return None
