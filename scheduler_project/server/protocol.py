"""Bound the head of a request: how long it may take to arrive, and how long it may be."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 20.0
MAX_HEAD = 64 * 1024


class HttpProtocol(HttpToolsProtocol):
    _deadline: asyncio.TimerHandle | None = None
    _received = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, error: Exception | None) -> None:
        self._end_head()
        super().connection_lost(error)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._received += len(data)
        if self._deadline is not None and self._received > MAX_HEAD:
            self._refuse(431, f"the head of the request is longer than {MAX_HEAD} bytes")

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

    def _refuse(self, status: int, detail: str) -> None:
        # Each process loads this module before Django is set up.
        from scheduler_project.api.problems import PROBLEM_TYPE, problem_body

        self._end_head()
        if self.transport.is_closing():
            return
        body = json.dumps(problem_body(status, detail)).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {PROBLEM_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
