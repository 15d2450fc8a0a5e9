"""Beatkeeper for existing code bases: `from beatkeeper import Beatkeeper`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import Beatkeeper as Beatkeeper
    from .errors import BeatkeeperError as BeatkeeperError
    from .errors import PlatformAway as PlatformAway
    from .errors import PlatformRefused as PlatformRefused
    from .host.requested_run import RequestedRun as RequestedRun
    from .outcomes import PermanentError as PermanentError

__version__ = "0.1.0"
MODULES = {
    "Beatkeeper": "app",
    "BeatkeeperError": "errors",
    "PermanentError": "outcomes",
    "PlatformAway": "errors",
    "PlatformRefused": "errors",
    "RequestedRun": "host.requested_run",
}
__all__ = list(MODULES)


def __getattr__(name: str) -> Any:
    """Import a name when it is used: the guard is part of this package and must stay small, without Celery."""
    if name in MODULES:
        return getattr(import_module(f".{MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
