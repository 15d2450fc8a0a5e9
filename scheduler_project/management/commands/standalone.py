"""Start and supervise everything on one machine."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from scheduler_project.standalone import command as standalone


class Command(BaseCommand):
    """For `manage.py help`; manage.py itself starts it, since no settings can be loaded yet."""

    help = "Start database, API, admin, scheduler and worker, and supervise them in the foreground"
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        standalone.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        raise SystemExit(standalone.run(options["port"], options["state_dir"], options["stop"]))
