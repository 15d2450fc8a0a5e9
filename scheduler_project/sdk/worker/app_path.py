"""The path by which another process finds this Celery app."""

from __future__ import annotations

import sys
from types import ModuleType

import click
from celery import Celery
from celery.bin.base import CLIContext


def app_path(app: Celery) -> str:
    """Return the app's path as `-A` takes it, or a path in a module that has the app; empty if there is none."""
    return _path_on_command_line(app) or _path_in_modules(app)


def _path_on_command_line(app: Celery) -> str:
    """Read `-A` or CELERY_APP: the module that is named may make the app ready, and no other."""
    context = click.get_current_context(silent=True)
    while context is not None:
        named = context.params.get("app")
        if isinstance(context.obj, CLIContext) and context.obj.app is app and isinstance(named, str):
            return named
        context = context.parent
    return ""


def _path_in_modules(app: Celery) -> str:
    """Take the module whose import ended last: it imported the others.

    The modules of tasks come last: a worker imports them by itself, and later.
    """
    found = [
        f"{name}:{attribute}"
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and name.partition(".")[0] not in ("celery", "__main__")
        for attribute, value in list(vars(module).items())
        if value is app
    ]
    of_tasks = getattr(app.loader, "task_modules", ())
    outer = [path for path in found if path.partition(":")[0] not in of_tasks]
    return (outer or found or [""])[-1]
