"""Carries connections from one port to another: `python -m tests.system.relay 8000 9000`."""

import socket
import sys
import threading
from contextlib import suppress


def main(listen: int, to: int) -> None:
    with socket.create_server(("127.0.0.1", listen)) as server:
        while True:
            client, _address = server.accept()
            target = socket.create_connection(("127.0.0.1", to))
            for source, sink in ((client, target), (target, client)):
                threading.Thread(target=carry, args=(source, sink), daemon=True).start()


def carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while received := source.recv(65536):
            sink.sendall(received)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
