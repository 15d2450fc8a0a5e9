"""The broker that brings permits: the host's own, unless another is named.

The platform's broker gives a team a user that may read its own queues and do nothing else, so no Celery app could
work with it; its permits come over a connection of their own.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kombu import Connection

if TYPE_CHECKING:
    from celery import Celery

AMQP = "amqp"
ENCRYPTED = "amqps"


def permit_connection(app: Celery, **options: Any) -> Any:
    """Not connected yet."""
    from .app import keeper_of

    keeper = keeper_of(app)
    if not keeper.broker_url:
        return app.connection_for_read(**options)
    return Connection(keeper.broker_url, ssl=_tls(keeper.broker_url, keeper.ca_file), **options)


def carries_permits(app: Celery) -> bool:
    return bool(permit_connection(app).transport.driver_type == AMQP)


def _tls(url: str, ca_file: str) -> dict[str, Any] | bool:
    parts = urlsplit(url)
    if parts.scheme != ENCRYPTED:
        return False
    return {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": parts.hostname, "ca_certs": ca_file or None}
