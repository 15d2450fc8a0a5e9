"""Check where an HTTP target may connect to.

Names are resolved here, every address is checked, and the connection goes to the checked address itself, so a name that
answers differently the second time gains nothing. TLS is still verified against the name.
"""

import ipaddress
import socket
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from socket import IPPROTO_TCP, gaierror, getaddrinfo
from ssl import SSLContext
from typing import Any

import httpcore
from httpcore import ConnectError, NetworkStream, SyncBackend

from scheduler_project.sdk.outcomes import PermanentError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, text.split()))


NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# `is_global` depends on the version of Python, and knows nothing of clouds: 168.63.129.16 is the inside of Azure.
NOT_PUBLIC = networks(
    """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
    168.63.129.16/32
    ::/96 ::ffff:0:0:0/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 3fff::/20 5f00::/16
    fc00::/7 fe80::/10 fec0::/10 ff00::/8
    """
)
# Where clouds hand out the credentials of their machines. An allowed name may not lead there: who keeps its zone
# would then have them. Only an operator who allows the address itself opens it.
METADATA = networks(
    """
    169.254.0.0/16 100.100.100.200/32 168.63.129.16/32 192.0.0.192/32 fe80::/10 fd00:ec2::/32
    fd20:ce::254/128 fd00:c1::a9fe:a9fe/128 fd00:42::42/128 fd00:a9fe:a9fe::1/128 fd00:100::100:200/128
    """
)


class AddressRefused(PermanentError):
    """The host is not on the public internet, and the tenant's allowed hosts do not name it."""


class CheckedAddresses(SyncBackend):
    """Connects to the addresses it has checked, and lets nothing take longer than until `ends_at`."""

    def __init__(self, allowed_hosts: Iterable[str], ends_at: float) -> None:
        self._allowed = {host.lower() for host in allowed_hosts}
        self._ends_at = ends_at

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *given: Any, **options: Any
    ) -> NetworkStream:
        error: Exception | None = None
        for address in self.addresses(host, port):
            patience = time_left(self._ends_at, timeout)
            try:
                stream = super().connect_tcp(str(address), port, patience, *given, **options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
            else:
                return TimedStream(stream, self._ends_at)
        raise error or ConnectError(f"{host} has no address")

    def addresses(self, host: str, port: int) -> list[Address]:
        found = resolve(host, port)
        allowed = self.is_allowed(host, port)
        for address in found:
            if allowed and (is_literal(host) or not within(address, METADATA)):
                continue
            if not is_public(address):
                raise AddressRefused(f"{host} leads to {address}, which is not on the public internet")
            if is_own(address):
                raise AddressRefused(f"{host} leads to {address}, which is this machine itself")
        return found

    def is_allowed(self, host: str, port: int) -> bool:
        name = host.lower().rstrip(".")
        return not self._allowed.isdisjoint({name, f"{name}:{port}", f"[{name}]:{port}"})


class TimedStream(NetworkStream):
    """A connection on which nothing takes longer than until `ends_at`, also when each byte comes in good time."""

    def __init__(self, stream: NetworkStream, ends_at: float) -> None:
        self._stream, self._ends_at = stream, ends_at

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, time_left(self._ends_at, timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, time_left(self._ends_at, timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> NetworkStream:
        patience = time_left(self._ends_at, timeout)
        return TimedStream(self._stream.start_tls(ssl_context, server_hostname, patience), self._ends_at)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def time_left(
    ends_at: float, timeout: float | None, error: type[httpcore.TimeoutException] = httpcore.ConnectTimeout
) -> float:
    left = ends_at - time.monotonic()
    if left <= 0:
        raise error("the call's time is over")
    return left if timeout is None else min(left, timeout)


def resolve(host: str, port: int) -> list[Address]:
    try:
        entries = getaddrinfo(host, port, proto=IPPROTO_TCP)
    except (gaierror, UnicodeError) as error:
        raise ConnectError(f"{host} cannot be resolved: {error}") from error
    # A scope such as fe80::1%eth0 is link-local either way.
    return list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries))


def is_public(address: Address) -> bool:
    """Return whether the address is public, also the IPv4 address that an IPv6 one carries inside."""
    if (inner := carried(address)) is not None:
        return is_public(inner)
    return address.is_global and not within(address, NOT_PUBLIC)


def within(address: Address, ranges: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    inner = carried(address)
    return any(address in network or (inner is not None and inner in network) for network in ranges)


def carried(address: Address) -> ipaddress.IPv4Address | None:
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def is_literal(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return True
    return False


def is_own(address: Address) -> bool:
    """Return whether it is an address of this machine, where services may listen that no firewall shows."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with suppress(OSError), closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        probe.bind((str(address), 0))
        return True
    return False
