"""Say which limits apply to a request, to wrong credentials, and to somebody who logs in."""

import ipaddress
from hashlib import sha256

from django.conf import settings

from auditlog.context import current
from jobs.access.limiter import Limit, Limiter, Standing
from jobs.access.principal import Principal
from jobs.models import Tenant

# Whoever guesses passwords is slowed down, and somebody who mistypes one is not.
LOGINS_OF_ADDRESS, LOGINS_OF_USER = 30, 10
# IPv6 addresses are assigned to customers by networks of this size.
IPV6_PREFIX = 64

# Apart, so that many addresses do not displace the keys.
by_key, by_address = Limiter(), Limiter()


def of_tenant(tenant: Tenant) -> int | None:
    """Return how many requests the keys of a tenant may send in a minute; None for any number."""
    return tenant.requests_per_minute or settings.REQUESTS_PER_MINUTE or None


def of_key(tenant: Tenant) -> int | None:
    """Return how many of them one key may send: half, so that a client out of control leaves some to the others."""
    together = of_tenant(tenant)
    return None if together is None else (together + 1) // 2


def count_request(principal: Principal) -> list[Standing]:
    together, alone = of_tenant(principal.tenant), of_key(principal.tenant)
    if together is None or alone is None:
        return []
    tenant = Limit(
        "tenant",
        f"tenant:{principal.tenant.pk}",
        together,
        f"the keys of the tenant have sent their {together} requests of this minute",
    )
    key = Limit(
        "key",
        f"{principal.kind}:{principal.id}",
        alone,
        f"the key has sent its {alone} requests of this minute",
    )
    return by_key.spend([tenant, key])


def count_wrong_credentials() -> None:
    """Count the request against the address that it came from.

    Valid keys are never refused for it: an address may be that of a whole company, or of a proxy of ours that no
    setting names. And it is not needed: a key has 256 random bits, and to look for it takes one index.
    """
    most = settings.WRONG_KEYS_PER_MINUTE
    if most:
        exceeded = f"{most} requests with wrong credentials came from this address in this minute"
        by_address.spend([Limit("address", f"address:{_network()}", most, exceeded)])


def count_login(username: str) -> None:
    """Count an attempt to log in, before its password is looked at: passwords can be guessed, and cost CPU."""
    user = sha256(username.encode()).hexdigest()
    tried = "attempts to log in{} came from this address in this minute"
    of_address = f"{LOGINS_OF_ADDRESS} {tried.format('')}"
    of_user = f"{LOGINS_OF_USER} {tried.format(' with this name')}"
    by_address.spend(
        [
            Limit("logins", f"logins:{_network()}", LOGINS_OF_ADDRESS, of_address),
            Limit("logins of user", f"logins:{_network()}:{user}", LOGINS_OF_USER, of_user),
        ]
    )


def _network() -> str:
    """Name who is counted together: an IPv4 address, or an IPv6 network."""
    address = current().address
    if address is None:
        return "unknown"
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    # An IPv6 socket writes IPv4 addresses so; all of them would be in one network.
    return str(found.ipv4_mapped or ipaddress.ip_network((found, IPV6_PREFIX), strict=False))
