"""Open the link to the platform by the URL of its ledger."""

from __future__ import annotations

from typing import cast

from ..ledger import is_postgres, is_remote, make_by_url
from ..ledger.https import read_address
from .api import ApiLink
from .database import DatabaseLink
from .interface import PlatformLink


def open_link(ledger_url: str, tenant: str, pool: str, timeout: float) -> PlatformLink:
    """Open the link, which connects at its first call; `python://module/function?option=value` makes one's own."""
    if is_remote(ledger_url):
        address = read_address(ledger_url)
        return ApiLink(address.url, address.key, pool, ca_file=address.ca_file, timeout=timeout)
    if is_postgres(ledger_url):
        return DatabaseLink(ledger_url, tenant, pool, timeout=timeout)
    if made := make_by_url(ledger_url):
        return cast(PlatformLink, made)
    raise ValueError(
        "No platform is named: give Beatkeeper(app, url=…, api_key=…), or set BEATKEEPER_URL and BEATKEEPER_API_KEY "
        "(or BEATKEEPER_DATABASE_URL)"
    )
