"""Bound what a client may do beside its body: how long its head takes and is, and what it sends or leaves unread."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 20.0
MAX_HEAD = 64 * 1024
# Of an answer that waits to be read, some part must be taken in so long a time.
UNREAD_SECONDS = 60.0
# Requests that are sent before the answers to those before them.
MAX_AHEAD = 16


class TooFarAhead(Exception):
    """More requests than are kept wait for the answer to an earlier one."""


class HttpProtocol(HttpToolsProtocol):
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    # Bytes since a head or a part of a body was whole.
    _received = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, error: Exception | None) -> None:
        self._end_head()
        self._end_unread()
        super().connection_lost(error)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_AHEAD:
            raise TooFarAhead
        super().on_message_begin()
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows the body is no header: a proxy in front of us has not checked it.
        if self._deadline is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_head()
        self._received = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._received = 0
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            # Some bytes end its idle time without beginning a request, such as an empty line.
            self._expect_head()
        self._received += len(data)
        super().data_received(data)
        if self._received > MAX_HEAD:
            self._refuse(
                431, f"the head of the request, or what is beside its body, is over {MAX_HEAD} bytes"
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        self._end_unread()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "the request is not HTTP")

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._received = 0
            self._deadline = self.loop.call_later(
                HEAD_SECONDS, self._refuse, 408, f"the head of the request took over {HEAD_SECONDS:.0f} s"
            )

    def _end_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expect_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self._check_reader, left)

    def _check_reader(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:
            self._expect_reader()
        else:
            self.transport.abort()

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _may_answer(self) -> bool:
        """Test whether the client would take an answer for that to the request which it is sending."""
        latest = self.cycle
        if latest is None or latest.response_complete:
            return True
        return latest.more_body and not latest.response_started and not self.pipeline

    def _refuse(self, status: int, detail: str) -> None:
        # Each process loads this module before Django is set up.
        from scheduler_project.api.problems import PROBLEM_TYPE, problem_body

        self._end_head()
        if self.transport.is_closing():
            return
        if not self._may_answer():
            self.transport.close()
            return
        body = json.dumps(problem_body(status, detail)).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {PROBLEM_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
