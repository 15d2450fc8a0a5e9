"""Beatkeeper for existing code bases: `from beatkeeper import Beatkeeper`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import Beatkeeper as Beatkeeper
    from .errors import BeatkeeperError as BeatkeeperError
    from .errors import PlatformAway as PlatformAway
    from .errors import PlatformRefused as PlatformRefused
    from .link import RequestedRun as RequestedRun
    from .outcomes import PermanentError as PermanentError

__all__ = [
    "Beatkeeper",
    "BeatkeeperError",
    "PermanentError",
    "PlatformAway",
    "PlatformRefused",
    "RequestedRun",
]
WHERE = {
    "Beatkeeper": "app",
    "BeatkeeperError": "errors",
    "PlatformAway": "errors",
    "PlatformRefused": "errors",
    "RequestedRun": "link",
    "PermanentError": "outcomes",
}


def __getattr__(name: str) -> Any:
    """Imported when asked for: the guard is part of this package and must stay small, without Celery."""
    if name in WHERE:
        return getattr(import_module(f".{WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
