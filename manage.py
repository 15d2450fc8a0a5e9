#!/usr/bin/env python
"""Django's command line."""

import os
import sys
from pathlib import Path
from typing import NoReturn

NAMES_SETTINGS = ("SECRET_KEY", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")


def main() -> None:
    if sys.argv[1:2] == ["standalone"]:
        # It makes the database and the secret key that the settings ask for.
        from scheduler_project.standalone import command as standalone

        sys.exit(standalone.main(sys.argv[2:]))
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import Error

    try:
        use_what_make_up_started()
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
        # Before any command: Django itself lets some go on without settings, and ends others with a traceback.
        settings.INSTALLED_APPS  # noqa: B018 - reading it loads them
    except (ImproperlyConfigured, OSError) as mistake:
        refuse(str(mistake))
    try:
        execute_from_command_line(sys.argv)
    except Error:
        from scheduler_project.doctor import database

        if database.is_reachable():
            raise
        away = next(database.reachable())
        refuse(f"{away.what}: {away.do}")


def refuse(why: str) -> NoReturn:
    print(f"manage.py: {why}", file=sys.stderr)  # noqa: T201 - a command's product is what it prints
    sys.exit(2)


def use_what_make_up_started() -> None:
    """Take the settings of `make up` on its own database, if the environment names none."""
    if not any(os.environ.get(name) for name in NAMES_SETTINGS):
        from scheduler_project.standalone.state import kept_settings

        for name, value in kept_settings(Path(__file__).resolve().parent).items():
            os.environ[name] = os.environ.get(name) or value


if __name__ == "__main__":
    main()
