"""Cuts a process of ours off from its servers as a failed route does: nothing arrives, and nobody is told.

With the right to it by the kernel's own packet filter, else by a forwarder that swallows what it is given. Either is
undone when the block ends; rules that a killed test left behind name groups and ports that nobody else uses.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

COMMENT = "beatkeeper-cut"
# What a process must be started with so that its packets are known: `python -c` of this, a group, then its command.
IN_GROUP = "import os, sys; os.setgid(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
# One for each user of this file at a time; no group of any system has such a number.
GROUPS = range(914_000_000, 914_100_000)


def own_group() -> int:
    return GROUPS[os.getpid() % len(GROUPS)]


def may_filter() -> bool:
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        return False
    rule = _outgoing(own_group())
    if _iptables("-A", rule):
        return _iptables("-D", rule)
    return False


def in_group(group: int, *command: str) -> list[str]:
    return [sys.executable, "-c", IN_GROUP, str(group), *command]


@contextmanager
def packets_dropped(group: int, server_port: int, client_ports: Sequence[int]) -> Iterator[None]:
    """Everything the group's processes send, new connections as well, and what the server sends to these ports."""
    rules = [_outgoing(group), *(_incoming(server_port, port) for port in client_ports)]
    added: list[list[str]] = []
    try:
        for rule in rules:
            if not _iptables("-A", rule):
                raise OSError(f"iptables refuses {' '.join(rule)}")
            added.append(rule)
        yield
    finally:
        for rule in added:
            _iptables("-D", rule)


def _outgoing(group: int) -> list[str]:
    return ["OUTPUT", "-p", "tcp", "-m", "owner", "--gid-owner", str(group), *_comment(), "-j", "DROP"]


def _incoming(server_port: int, client_port: int) -> list[str]:
    ports = ["--sport", str(server_port), "--dport", str(client_port)]
    return ["INPUT", "-i", "lo", "-p", "tcp", *ports, *_comment(), "-j", "DROP"]


def _comment() -> list[str]:
    return ["-m", "comment", "--comment", COMMENT]


def _iptables(action: str, rule: Sequence[str]) -> bool:
    chain, *rest = rule
    done = subprocess.run(["iptables", "-w", "5", action, chain, *rest], capture_output=True)
    return done.returncode == 0


class Forwarder:
    """Between a process and a server; while `swallowing`, connections stay open and nothing comes through."""

    def __init__(self, url: str) -> None:
        self._server = (urlsplit(url).hostname or "127.0.0.1", urlsplit(url).port or 5432)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = self._leading_here(url)
        self._open = threading.Event()
        self._open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _leading_here(self, url: str) -> str:
        parts = urlsplit(url)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self._listening.getsockname()[1]}"))

    @contextmanager
    def swallowing(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def close(self) -> None:
        self._open.set()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError):
            self._open.wait()
            with socket.create_connection(self._server, timeout=5) as server:
                server.settimeout(None)
                back = threading.Thread(target=self._copy, args=[server, client], daemon=True)
                back.start()
                self._copy(client, server)
                back.join()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
