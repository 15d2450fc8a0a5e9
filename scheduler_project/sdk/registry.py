"""Find the Beatkeeper of a Celery app, without importing either."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from celery import Celery

    from .app import Beatkeeper

ATTRIBUTE = "_beatkeeper"


def keeper_of(app: Celery) -> Beatkeeper:
    keeper = getattr(app, ATTRIBUTE, None)
    if keeper is None:
        raise LookupError(
            f"The app {app.main!r} has no Beatkeeper: write `keeper = Beatkeeper(app)` beside it"
        )
    return cast("Beatkeeper", keeper)
