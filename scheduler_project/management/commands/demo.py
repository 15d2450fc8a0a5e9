"""Create a tenant with jobs to try the product with."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from scheduler_project.standalone.demo import make_demo


class Command(BaseCommand):
    help = "Create the demo tenant, its jobs, a login and a key, unless they exist."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--credentials-file", type=Path, required=True, help="where login and key are kept"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        for trouble in make_demo(options["credentials_file"], settings.PUBLIC_URL):
            self.stderr.write(f"not made: {trouble}")
