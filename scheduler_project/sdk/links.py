"""Which link leads to the platform: the one its ledger is reached by."""

from __future__ import annotations

import importlib
from typing import cast
from urllib.parse import parse_qsl, urlsplit

from .api_link import ApiLink
from .database_link import DatabaseLink
from .https import read_address
from .link import Link
from .runtime import POSTGRES_SCHEMES, is_remote


def open_link(ledger_url: str, tenant: str, pool: str, timeout: float) -> Link:
    """Nothing is connected before something is asked. `python://module/function?option=value`: one of one's own."""
    if is_remote(ledger_url):
        address = read_address(ledger_url)
        return ApiLink(address.url, address.key, pool, ca_file=address.ca_file, timeout=timeout)
    if ledger_url.partition("://")[0] in POSTGRES_SCHEMES:
        return DatabaseLink(ledger_url, tenant, pool, timeout=timeout)
    parts = urlsplit(ledger_url)
    if parts.scheme == "python":
        make = getattr(importlib.import_module(parts.netloc), parts.path.strip("/"))
        return cast(Link, make(**dict(parse_qsl(parts.query))))
    raise ValueError(
        "No platform is named: give Beatkeeper(app, url=…, api_key=…), or set BEATKEEPER_URL and BEATKEEPER_API_KEY "
        "(or BEATKEEPER_DATABASE_URL)"
    )
