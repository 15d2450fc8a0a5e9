"""Ports nobody listens on at the moment."""

import os
import random
import socket

# Below those that the kernel gives to clients: one of these could be taken before the server that shall have it starts.
OURS = range(15_000, 32_000)
# Each process by itself, whatever seed its tests are given.
chance = random.Random(os.urandom(8))


def free_port() -> int:
    while True:
        port = chance.choice(OURS)
        with socket.socket() as probe:
            # As a server does, which may follow one that has just ended.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def answers(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
