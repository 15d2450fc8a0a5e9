"""Check the certificate of a broker over TLS.

By itself py-amqp checks no host name, so any valid certificate passes for the broker's, and with some options
(`ssl_version`) it checks nothing at all. Unless the app says otherwise, these transports require a certificate for this
host, signed by a trusted authority. Options `ssl_…` in a URL are kombu's and unknown to py-amqp. For Redis, kombu
checks no certificate unless it is requested.
"""

from __future__ import annotations

import re
import ssl
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from celery.app.amqp import AMQP
from kombu import Connection
from kombu.transport import pyamqp

ENCRYPTED, ENCRYPTED_REDIS = "amqps", "rediss"
PREFIX = "ssl_"
CA = "ssl_ca_certs"
REQS, HOSTNAME = "ssl_cert_reqs", "ssl_check_hostname"
# Values of the first that kombu knows in a Redis URL; it reads anything else as "none".
REQS_IN_URL = ("required", "optional", "none", "CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE")
# Options that a URL may have. Whether anything is checked is none of them.
IN_URL = (CA, "ssl_certfile", "ssl_keyfile", "ssl_server_hostname")
WAITING = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
UNCHECKED = "ssl_cert_reqs would let anybody be the broker: leave it out, and name the CA in ssl_ca_certs"


class TrustsAnybody(ValueError):
    """`cert_reqs` would accept any certificate."""


class CheckingTransport(pyamqp.Transport):
    """Check the certificate as far as the options for TLS leave it open."""

    def establish_connection(self) -> Any:
        """Connect, and check each node of a cluster by its own name."""
        client: Any = self.client
        if client.ssl:
            client.ssl = self.tls_options(client.ssl, client.hostname or "localhost")
        return super().establish_connection()

    def tls_options(self, given: Any, host: str) -> dict[str, Any]:
        return tls_options(given, host)


class StrictTransport(CheckingTransport):
    """Refuse options that accept any certificate."""

    def tls_options(self, given: Any, host: str) -> dict[str, Any]:
        return trustworthy(super().tls_options(given, host))


class CheckedConnection(Connection):
    """A connection whose certificate is checked at each node of a cluster, where it is encrypted."""

    def get_transport_cls(self) -> Any:
        transport: Any = super().get_transport_cls()
        return transport_with(StrictTransport, transport)


class CheckedAMQP(AMQP):
    """Makes the connections of the platform's own Celery app."""

    Connection = CheckedConnection


def as_the_app_says(connection: Any) -> Any:
    """Check the connection of an app, as far as the app's own options leave it open."""
    of_the_app = connection.get_transport_cls
    connection.get_transport_cls = lambda: transport_with(CheckingTransport, of_the_app())
    return connection


@cache
def transport_with(way: type[CheckingTransport], transport: Any) -> Any:
    if not issubclass(transport, pyamqp.Transport) or issubclass(transport, CheckingTransport):
        return transport
    return type(f"{way.__name__}{transport.__name__}", (way, transport), {})


def tls_options(given: Any, host: str) -> dict[str, Any]:
    """Return the given options for py-amqp, with the checks that it would not make by itself."""
    options = {amqp_name(name): value for name, value in given.items()} if isinstance(given, dict) else {}
    if trusts_anybody(options):
        return options
    named = {"server_hostname": options.get("server_hostname") or host}
    if "context" in options:
        context = {"check_hostname": True, **options["context"]}
        return {**options, **(named if context["check_hostname"] else {}), "context": context}
    return {**options, **named, "cert_reqs": options.get("cert_reqs") or ssl.CERT_REQUIRED}


def trustworthy(options: dict[str, Any]) -> dict[str, Any]:
    if trusts_anybody(options):
        raise TrustsAnybody(UNCHECKED)
    return options


def trusts_anybody(options: Any) -> bool:
    """Tell whether the options say explicitly that any certificate will do."""
    reqs = [options.get(name) for name in ("cert_reqs", "ssl_cert_reqs")] if isinstance(options, dict) else []
    return any(value is not None and value == ssl.CERT_NONE for value in reqs)


def amqp_name(name: str) -> str:
    """Return py-amqp's name of the option; one of those begins with kombu's prefix."""
    return name if name == "ssl_version" else name.removeprefix(PREFIX)


def with_ca(url: str, ca_file: str) -> str:
    """Add the CA to each address that names none."""
    return ";".join(_with_ca(address, ca_file) for address in url.split(";")) if ca_file else url


def _with_ca(address: str, ca_file: str) -> str:
    parts = urlsplit(address)
    if parts.scheme != ENCRYPTED or CA in parts.query:
        return address
    return f"{address}{'&' if parts.query else '?'}{CA}={quote(ca_file, safe='')}"


def checked_on_redis(url: str, ca_file: str) -> str:
    """Add to each address of a Redis over TLS that its certificate is checked, for this host, and by which CA."""
    return ";".join(_checked_on_redis(address, ca_file) for address in url.split(";"))


def _checked_on_redis(address: str, ca_file: str) -> str:
    parts = urlsplit(address)
    if parts.scheme != ENCRYPTED_REDIS:
        return address
    given = dict(parse_qsl(parts.query))
    missing = {
        REQS: "CERT_REQUIRED" if given.get(REQS) not in REQS_IN_URL else "",
        HOSTNAME: "true" if HOSTNAME not in given else "",
        CA: quote(ca_file, safe="") if CA not in given else "",
    }
    # The last of two equal options counts, and nothing behind a fragment does.
    words = [parts.query, *(f"{name}={value}" for name, value in missing.items() if value)]
    return f"{re.split('[?#]', address)[0]}?{'&'.join(filter(None, words))}"


def tls_trouble(error: BaseException, remedy: str) -> str:
    """Describe why TLS prevents the connection, and what helps; empty for any other error."""
    error = _of_tls(error) or error
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: {error.verify_message.rstrip('.')}; {remedy}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with the broker: {error.reason or error}"
    if isinstance(error, FileNotFoundError):
        return f"a file for TLS with the broker is not there; {remedy}"
    return str(error) if isinstance(error, TrustsAnybody) else ""


def _of_tls(error: BaseException | None) -> ssl.SSLError | None:
    """Find the TLS error that kombu or httpx wrapped; a socket without data is no error."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, WAITING):
            return error
        error = error.__cause__ or error.__context__
    return None
