"""Run Django in threads; a request takes one when it has arrived whole.

A slow client therefore holds a socket and no thread. Django's own ASGI handler makes a thread for each request, and
such a thread has no database connection yet.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import IO, Any

from django.conf import settings
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler
from django.http import (
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.urls import set_script_prefix

from jobs.errors import BodyTooLarge
from runs.api.worker_protocol import GzipBody, UnreadBody
from scheduler_project.api.problems import PROBLEM_TYPE, problem_body
from scheduler_project.server.threads import QueueFull, Threads

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_SECONDS = 30.0
MAX_ADDRESS = 8190
SPOOLED_FROM = 256 * 1024
WORKERS, HEALTH = "/api/v1/worker/", "/health"
UPLOADS = f"{WORKERS}logs/"


class RequestHandler(ASGIHandler):
    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware()
        # However many clients wait for an answer, workers renew their leases and monitors get their report.
        self.reserved = Threads("reserved", in_turn=False)
        self.threads = Threads("requests")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reserved = scope["path"].startswith((WORKERS, HEALTH))
        threads = self.reserved if reserved else self.threads
        try:
            response = await self._respond(scope, receive, threads)
        except RequestAborted:
            return
        if not isinstance(response, StreamingHttpResponse):
            await self.send_response(response, send)
            return
        response.streaming_content = threads.iterate(iter(response))
        try:
            await self.send_response(response, send)
        finally:
            await threads.go_on(response.close)

    async def _respond(self, scope: Scope, receive: Receive, threads: Threads) -> HttpResponseBase:
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_ADDRESS:
            return refusal(414, f"the address is longer than {MAX_ADDRESS} characters")
        try:
            if scope["path"].startswith(UPLOADS):
                # A body that is refused for its key is not read: until it is, the client's `Expect` is not answered.
                response = await threads.run(self._call, scope, UnreadBody(), 1)
                if response.status_code != HTTPStatus.CONTINUE:
                    response["Connection"] = "close"
                    return response
            with tempfile.SpooledTemporaryFile(SPOOLED_FROM) as body:
                async with asyncio.timeout(BODY_SECONDS):
                    length = await read_into(body, receive, max_body(scope["path"]))
                return await threads.run(self._call, scope, body, length)
        except TimeoutError:
            return refusal(408, f"the body did not arrive within {BODY_SECONDS:.0f} s")
        except BodyTooLarge as error:
            return refusal(413, error.detail)
        except QueueFull:
            return refusal(503, "too many requests wait for an answer", code="busy")

    def _call(self, scope: Scope, body: IO[bytes], length: int) -> HttpResponseBase:
        set_script_prefix("/")
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refused = self.create_request(scope, body)
        if request is not None:
            # One that came in chunks has no such header, and the framework would take it for empty.
            request.META["CONTENT_LENGTH"] = str(length)
        response = self.get_response(request) if request is not None else refused or HttpResponseBadRequest()
        if not response.streaming:
            # Here and not after it was sent: it ends what this thread holds, its database connection among others.
            response.close()
        return response


async def read_into(body: IO[bytes], receive: Receive, limit: int) -> int:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestAborted
        body.write(message.get("body", b""))
        if body.tell() > limit:
            raise BodyTooLarge(limit)
        more = message.get("more_body", False)
    length = body.tell()
    body.seek(0)
    return length


def max_body(path: str) -> int:
    """Return how long a body may be: a worker uploads the log of an attempt, which may not be compressible."""
    if path.startswith(UPLOADS):
        return GzipBody.max_bytes
    limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    return limit


def refusal(status: int, detail: str, code: str = "") -> HttpResponse:
    """Answer without Django, and close the connection: the rest of the request has not been read."""
    response = JsonResponse(problem_body(status, detail, code), status=status, content_type=PROBLEM_TYPE)
    response["Content-Length"] = len(response.content)
    response["Connection"] = "close"
    if status == 503:
        response["Retry-After"] = "1"
    return response
