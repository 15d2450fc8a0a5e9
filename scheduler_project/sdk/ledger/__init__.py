"""Open the ledger that a URL names."""

from __future__ import annotations

import importlib
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from .interface import ANSWER_SECONDS, Ledger


def is_remote(url: str) -> bool:
    return url.partition("://")[0] in ("https", "http")


def is_postgres(url: str) -> bool:
    return url.partition("://")[0] in ("postgresql", "postgres")


def open_ledger(url: str, answer_seconds: float = ANSWER_SECONDS) -> Ledger:
    """Open `https://<key>@host`, `postgresql://…`, or `python://module/function?option=value` for one's own."""
    if is_remote(url):
        from .https import HttpsLedger

        return HttpsLedger(url)
    if is_postgres(url):
        from .postgres import PostgresLedger

        if not _is_readable(url):
            raise ValueError(
                "The address of the ledger cannot be read: use postgresql://user:password@host:5432/name, with every "
                "character of user and password that is no letter or digit percent-encoded"
            )
        return PostgresLedger(url, answer_seconds=answer_seconds)
    if made := make_by_url(url):
        return cast(Ledger, made)
    raise ValueError(f"The ledger {urlsplit(url).scheme!r} is not known: use https://… or postgresql://…")


def make_by_url(url: str) -> Any:
    """Call the function that `python://module/function?option=value` names; None for any other URL."""
    parts = urlsplit(url)
    if parts.scheme != "python":
        return None
    make = getattr(importlib.import_module(parts.netloc), parts.path.strip("/"))
    return make(**dict(parse_qsl(parts.query)))


def _is_readable(url: str) -> bool:
    """Try to parse the address: libpq would quote one that it cannot read, passwords included.

    Outside of the handler that sees libpq's error: an exception raised in it would keep that error as its context.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return False
    return True
