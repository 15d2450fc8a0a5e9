"""List the addresses of the API, as its URL configuration has them."""

import re
from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

PREFIX = "/api/v1/"
# They need no key: the document of the API.
PUBLIC = {PREFIX, f"{PREFIX}schema", f"{PREFIX}docs"}


def api_addresses() -> list[str]:
    """Return the addresses that need a key, with `{name}` for each part that varies."""
    return sorted(set(_addresses(get_resolver().url_patterns, "/")) - PUBLIC)


def _addresses(patterns: list[Any], prefix: str) -> Iterator[str]:
    for pattern in patterns:
        here = prefix + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            yield from _addresses(pattern.url_patterns, here)
        # One that ends in `$` answers whatever has no address.
        elif isinstance(pattern, URLPattern) and here.startswith(PREFIX) and not here.endswith("$"):
            yield here
