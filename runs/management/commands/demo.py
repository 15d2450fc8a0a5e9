from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from runs.demo import make_demo
from scheduler_project import env


class Command(BaseCommand):
    help = "Makes the demo tenant, its jobs, a login and a key, as far as they are not there yet."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--credentials-file", type=Path, required=True, help="where login and key are kept"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        public_url = env.url("BEATKEEPER_PUBLIC_URL", "http://127.0.0.1:8000", ("http", "https"))
        for trouble in make_demo(options["credentials_file"], public_url):
            self.stderr.write(f"not made: {trouble}")
