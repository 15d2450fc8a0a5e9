"""Serve the API and the admin over HTTP."""

import argparse
import os
import resource
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand

from scheduler_project.server.protocol import HttpProtocol

# Longer than load balancers keep an idle connection (60 s is usual), so that none sends into one that we close.
KEEP_ALIVE_SECONDS = 75
STOP_SECONDS = 10
# Each connection is an open file: with the usual 1,024 a single client with half-open ones would stop a process.
OPEN_FILES = 8192
LOOP = "scheduler_project.server.loop:SharingLoop"


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 65_536):
        raise argparse.ArgumentTypeError(f"{text} has no port at its end, as 127.0.0.1:8000 has")
    return host.strip("[]") or "127.0.0.1", int(port)


class Command(BaseCommand):
    help = "Serve the API and the admin over HTTP, or over HTTPS with a certificate."
    requires_system_checks = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--bind", type=address, default="127.0.0.1:8000", help="address and port (127.0.0.1:8000)"
        )
        parser.add_argument(
            "--processes", type=int, default=os.cpu_count() or 1, help="how many (one for each core)"
        )
        parser.add_argument("--certificate", help="file of the certificate and its chain, for HTTPS")
        parser.add_argument("--private-key", help="file of the certificate's key")

    def handle(
        self, *, bind: tuple[str, int], processes: int, certificate: str, private_key: str, **options: Any
    ) -> None:
        host, port = bind
        allow_open_files(OPEN_FILES)
        uvicorn.run(
            "scheduler_project.asgi:application",
            host=host,
            port=port,
            workers=processes,
            http=HttpProtocol,
            loop=LOOP,
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


def allow_open_files(wanted: int) -> None:
    """Let this process and those it starts have so many open files, as far as its own limits allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
