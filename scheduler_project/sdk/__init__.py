"""Beatkeeper for existing code bases: `from beatkeeper import Beatkeeper`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import Beatkeeper as Beatkeeper
    from .outcomes import PermanentError as PermanentError

__all__ = ["Beatkeeper", "PermanentError"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: the guard is part of this package and must stay small, without Celery."""
    if name == "Beatkeeper":
        from .app import Beatkeeper

        return Beatkeeper
    if name == "PermanentError":
        from .outcomes import PermanentError

        return PermanentError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
