#!/usr/bin/env python
"""Django's command line."""

import os
import sys


def main() -> None:
    if sys.argv[1:2] == ["standalone"]:
        # It makes the database and the secret key that the settings ask for.
        from scheduler_project.standalone import command as standalone

        sys.exit(standalone.main(sys.argv[2:]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
