"""The broker that brings permits: the host's own, unless another is named.

The platform's broker gives a team a user that may read its own queues and do nothing else, so no Celery app could
work with it; its permits come over a connection of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .broker_tls import CheckedConnection, as_the_app_says, tls_trouble, trusts_anybody, with_ca

if TYPE_CHECKING:
    from celery import Celery

AMQP = "amqp"


def permit_connection(app: Celery, **options: Any) -> Any:
    """Not connected yet."""
    from .app import keeper_of

    keeper = keeper_of(app)
    if not keeper.broker_url:
        return as_the_app_says(app.connection_for_read(**options))
    return CheckedConnection(with_ca(keeper.broker_url, keeper.ca_file), **options)


def carries_permits(app: Celery) -> bool:
    return bool(permit_connection(app).transport.driver_type == AMQP)


def unchecked(connection: Any) -> bool:
    """The app says outright that any certificate will do."""
    return trusts_anybody(connection.ssl)


def why_not_connected(app: Celery, error: Exception) -> str:
    from .app import keeper_of

    remedy = (
        "BEATKEEPER_CA_FILE names the CA, and the URL the host as the certificate does"
        if keeper_of(app).broker_url
        else "ca_certs and server_hostname in the app's broker_use_ssl say whom to trust"
    )
    return tls_trouble(error, remedy) or type(error).__name__
