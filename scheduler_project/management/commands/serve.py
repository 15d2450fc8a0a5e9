"""Serve the API and the admin over HTTP."""

import argparse
import os
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand

from scheduler_project.server.protocol import HttpProtocol

# Longer than load balancers keep an idle connection (60 s is usual), so that none sends into one that we close.
KEEP_ALIVE_SECONDS = 75
STOP_SECONDS = 10


class Command(BaseCommand):
    help = "Serve the API and the admin over HTTP, or over HTTPS with a certificate."
    requires_system_checks = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--bind", default="127.0.0.1:8000", help="address and port (127.0.0.1:8000)")
        parser.add_argument(
            "--processes", type=int, default=os.cpu_count() or 1, help="how many (one for each core)"
        )
        parser.add_argument("--certificate", help="file of the certificate and its chain, for HTTPS")
        parser.add_argument("--private-key", help="file of the certificate's key")

    def handle(
        self, *, bind: str, processes: int, certificate: str, private_key: str, **options: Any
    ) -> None:
        host, _, port = bind.rpartition(":")
        uvicorn.run(
            "scheduler_project.asgi:application",
            host=host.strip("[]") or "127.0.0.1",
            port=int(port),
            workers=processes,
            http=HttpProtocol,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_certfile=certificate,
            ssl_keyfile=private_key,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            # Our own settings say how many proxies are ours; what others claim is not believed.
            proxy_headers=False,
            server_header=False,
        )
