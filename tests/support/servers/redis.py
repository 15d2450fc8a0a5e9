"""A Redis for tests that stop it, fill it or need one to themselves."""

import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from scheduler_project.sdk.process.processes import die_with_parent
from tests.support.certificates import OwnCA
from tests.support.ports import answers, free_port
from tests.support.waiting import wait_until


class PrivateRedis:
    """On a port of its own, over a folder of the test's; `kill` and `start` keep what it holds."""

    def __init__(self, folder: Path, ca: OwnCA | None = None) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise FileNotFoundError("redis-server is not installed")
        self.port = free_port()
        self.url = f"{'rediss' if ca else 'redis'}://127.0.0.1:{self.port}/0"
        kept = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(folder))
        self._command = [program, "--bind", "127.0.0.1", *self._listening(ca), *kept]
        self._end_with_us = partial(die_with_parent, os.getpid(), signal.SIGKILL)
        self._server: subprocess.Popen[bytes] | None = None

    def _listening(self, ca: OwnCA | None) -> list[str]:
        """With an authority: over TLS and in no other way."""
        if ca is None:
            return ["--port", str(self.port)]
        files = {"cert": ca.certificate, "key": ca.key, "ca-cert": ca.ca}
        named = [word for name, path in files.items() for word in (f"--tls-{name}-file", str(path))]
        return ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no", *named]

    def start(self) -> None:
        self._server = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=self._end_with_us,
        )
        wait_until(lambda: answers(self.port), 20, "Redis")

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def suspend(self) -> None:
        """Nothing answers any more and no connection is closed."""
        if self._server is not None:
            self._server.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGCONT)

    def client(self) -> Any:
        return redis.Redis.from_url(self.url)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
