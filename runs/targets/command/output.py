"""Send the lines of a command to its log as they come."""

import codecs
import os
import selectors
import subprocess

from scheduler_project.sdk.targets.registry import TargetCall

CHUNK = 65_536
AFTER_EXIT = 1.0


class StreamLines:
    """The bytes of a stream, split into lines as they come."""

    def __init__(self, attempt: TargetCall, stream: str) -> None:
        self._attempt, self._stream = attempt, stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, final: bool = False) -> None:
        *lines, self._rest = (self._rest + self._decoder.decode(data, final)).split("\n")
        if self._rest and (final or len(self._rest) > CHUNK):
            # A line without an end is not cut through a secret.
            at = len(self._rest) if final else self._attempt.log.masked.cut(self._rest)
            lines.append(self._rest[:at])
            self._rest = self._rest[at:]
        for line in lines:
            self._attempt.log.write(self._stream, line)


def stream_output(process: subprocess.Popen[bytes], attempt: TargetCall) -> None:
    """Log both streams until they end, or the command has ended and only its leftover children hold them."""
    handle = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
                if pipe is not None:
                    selector.register(pipe, selectors.EVENT_READ, StreamLines(attempt, name))
            selector.register(handle, selectors.EVENT_READ, None)
            read_all(selector, handle)
    finally:
        os.close(handle)


def read_all(selector: selectors.BaseSelector, handle: int) -> None:
    ended = False
    while len(selector.get_map()) > (0 if ended else 1):
        events = selector.select(AFTER_EXIT if ended else None)
        if ended and not events:
            return
        for key, _ in events:
            if key.fd == handle:
                selector.unregister(handle)
                ended = True
            else:
                data = os.read(key.fd, CHUNK)
                key.data.feed(data, final=not data)
                if not data:
                    selector.unregister(key.fileobj)
