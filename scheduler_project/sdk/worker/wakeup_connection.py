"""The connection to the broker of wake-ups: the host's own broker, unless another is named.

The platform's broker gives a team a user that may read its own queues and do nothing else, so no Celery app could
work with it; its wake-ups come over a connection of their own.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from ..registry import keeper_of
from ..transport.broker_tls import CheckedConnection, as_the_app_says, tls_trouble, with_ca


def wakeup_connection(app: Celery, **options: Any) -> Any:
    """Make a connection that is not connected yet."""
    keeper = keeper_of(app)
    if not keeper.broker_url:
        return as_the_app_says(app.connection_for_read(**options))
    return CheckedConnection(with_ca(keeper.broker_url, keeper.ca_file), **options)


def carries_wakeups(app: Celery) -> bool:
    return bool(wakeup_connection(app).transport.driver_type == "amqp")


def connection_trouble(app: Celery, error: Exception) -> str:
    remedy = (
        "BEATKEEPER_CA_FILE names the CA, and the URL the host as the certificate does"
        if keeper_of(app).broker_url
        else "ca_certs and server_hostname in the app's broker_use_ssl say whom to trust"
    )
    return tls_trouble(error, remedy) or type(error).__name__
