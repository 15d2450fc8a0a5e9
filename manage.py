#!/usr/bin/env python
"""Django's command line."""

import os
import sys
from pathlib import Path

NAMES_SETTINGS = ("SECRET_KEY", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")


def main() -> None:
    if sys.argv[1:2] == ["standalone"]:
        # It makes the database and the secret key that the settings ask for.
        from scheduler_project.standalone import command as standalone

        sys.exit(standalone.main(sys.argv[2:]))
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        use_what_make_up_started()
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
        # Before any command: Django itself lets some go on without settings, and ends others with a traceback.
        settings.INSTALLED_APPS  # noqa: B018 - reading it loads them
    except (ImproperlyConfigured, OSError) as mistake:
        print(f"manage.py: {mistake}", file=sys.stderr)  # noqa: T201 - a command's product is what it prints
        sys.exit(2)
    execute_from_command_line(sys.argv)


def use_what_make_up_started() -> None:
    """Take the settings of `make up` on its own database, if the environment names none."""
    if not any(os.environ.get(name) for name in NAMES_SETTINGS):
        from scheduler_project.standalone.state import kept_settings

        for name, value in kept_settings(Path(__file__).resolve().parent).items():
            os.environ[name] = os.environ.get(name) or value


if __name__ == "__main__":
    main()
