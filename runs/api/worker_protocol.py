"""Serve the worker's protocol. The SDK's own module reads the bodies, and the ledger of the caller's key answers.

Every response is `{"answer": …}`, may be requested again, and must not be cached on the way: a claim's holds secrets.
"""

import io
import time
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from jobs.api.authentication import WorkerPermission, principal_of
from jobs.api.openapi import query
from jobs.errors import BodyTooLarge, Missing
from jobs.validation.checks import abbreviate, invalid
from jobs.validation.schema import number
from runs import logs as run_logs
from runs.api.wire_schema import exchange, upload
from runs.ledger.checks import MAX_CLAIM_SEQ, MAX_LOG, check_member
from runs.ledger.remote import RemoteLedger
from scheduler_project.sdk.ledger import https, wire
from scheduler_project.sdk.ledger.interface import Beat, Claim, ReportResult, WorkerInfo, WorkQueue
from scheduler_project.sdk.outcomes import LogPointer

T = TypeVar("T")

MAX_CHUNK = 1024 * 1024
# Parts of addresses, for OpenAPI.
OF_CLAIM = {"claim_seq": number(minimum=0, maximum=MAX_CLAIM_SEQ)}


class BodyNotRead(Exception):
    """Everything before the body is in order."""


class UnreadBody(io.BytesIO):
    """Stand for a body until it is read, which is when the head of its request was accepted."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise BodyNotRead


class RawBody(BaseParser):
    """Read a body as it is, up to a size that the view bears."""

    max_bytes = MAX_CHUNK

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        body: bytes = stream.read(self.max_bytes + 1)
        if len(body) > self.max_bytes:
            raise BodyTooLarge(self.max_bytes)
        return body


class LinesBody(RawBody):
    media_type = https.LINES


class GzipBody(RawBody):
    media_type = https.GZIP
    # Of lines that cannot be compressed.
    max_bytes = MAX_LOG + MAX_LOG // 100


class WorkerView(ViewSet):
    permission_classes = [WorkerPermission]
    # Never throttled: a worker whose heartbeat is refused loses its lease. Its slots bound what it requests.
    throttle_classes = ()

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response

    def handle_exception(self, error: Exception) -> Response:
        if isinstance(error, BodyNotRead):
            return Response(status=100)
        if isinstance(error, wire.InvalidMessage):
            error = invalid(error.field, error.wrong)
        elif isinstance(error, psycopg.DataError):
            error = invalid("", f"the ledger cannot keep this: {str(error).partition(chr(10))[0]}")
        return super().handle_exception(error)

    def ledger(self, request: Request) -> RemoteLedger:
        return RemoteLedger(principal_of(request), run_logs.store())


class WorkerProtocol(WorkerView):
    @exchange("worker_register", "Make a worker known", WorkerInfo, list[WorkQueue], (400, 409))
    def register(self, request: Request) -> Response:
        return answer(self.ledger(request).register(read(WorkerInfo, request)))

    @exchange("worker_heartbeat", "Renew a worker's lease", Beat, wire.HeartbeatReply, (400, 409))
    def heartbeat(self, request: Request) -> Response:
        response = self.ledger(request).heartbeat(read(Beat, request))
        # How far this host's clock is from the database's was measured on the way; the worker's is its own affair.
        skew_ms = response.skew_ms
        at = None if skew_ms is None else datetime.fromtimestamp(time.time() - skew_ms / 1000, UTC)
        return answer(wire.HeartbeatReply(response, at))

    @exchange("worker_claim", "Claim the next runs", wire.ClaimBody, list[Claim])
    def claim(self, request: Request) -> Response:
        body = read(wire.ClaimBody, request)
        return answer(self.ledger(request).claim(body.request, body.again))

    @exchange("worker_report", "Report runs, and claim the next", wire.ReportBody, ReportResult)
    def report(self, request: Request) -> Response:
        body = read(wire.ReportBody, request)
        return answer(self.ledger(request).report_ends(body.ended, body.request))

    @exchange("worker_leave", "Say that a worker stopped", wire.LeaveBody, bool)
    def leave(self, request: Request) -> Response:
        self.ledger(request).leave(read(wire.LeaveBody, request).incarnation)
        return answer(True)

    @exchange("worker_declare", "Declare jobs", wire.DeclareBody, bool, (400, 409))
    def declare(self, request: Request) -> Response:
        declared = read(wire.DeclareBody, request)
        self.ledger(request).declare(declared.pool, declared.tenant, declared.declarations)
        return answer(True)

    @exchange(
        "worker_declaration_errors",
        "What was wrong with declared jobs",
        wire.DeclarationNames,
        dict[str, str],
        (400, 409),
    )
    def declaration_errors(self, request: Request) -> Response:
        body = read(wire.DeclarationNames, request)
        return answer(self.ledger(request).declaration_errors(body.tenant, body.names))


class FinishedLog(WorkerView):
    path_schemas = OF_CLAIM
    parser_classes = [GzipBody]

    @upload("worker_keep_log", "Keep the log of an attempt that ended", https.GZIP, LogPointer)
    def keep(self, request: Request, run_id: str, claim_seq: str) -> Response:
        claim, member = read_claim(request, run_id, claim_seq), body_of(request)
        check_member(member, "body")
        return answer(self.ledger(request).keep_log(*claim, member))


class OpenLog(WorkerView):
    path_schemas = OF_CLAIM
    parser_classes = [LinesBody]

    @upload(
        "worker_append_log",
        "Lines of an attempt that runs",
        https.LINES,
        int,
        query("offset", "Where the lines begin.", number(minimum=0, maximum=MAX_LOG), required=True),
    )
    def append(self, request: Request, run_id: str, claim_seq: str) -> Response:
        claim = read_claim(request, run_id, claim_seq)
        offset = read_number(request.query_params.get("offset", ""), "offset", MAX_LOG)
        lines = body_of(request)
        if not lines:
            raise invalid("body", "there are no lines", "send them once there are some")
        if offset + len(lines) > MAX_LOG:
            raise BodyTooLarge(MAX_LOG)
        return answer(self.ledger(request).append_log(*claim, offset, lines))


def answer(value: object) -> Response:
    return Response({"answer": wire.packed(value)})


def read(kind: type[T], request: Request) -> T:
    return wire.unpacked(kind, request.data)


def body_of(request: Request) -> bytes:
    # Without a body no parser is asked.
    return request.data if isinstance(request.data, bytes) else b""


def read_claim(request: Request, run_id: str, claim_seq: str) -> tuple[UUID, int, UUID]:
    try:
        run = UUID(run_id)
    except ValueError:
        raise Missing(f"there is no run {run_id[:60]}") from None
    seq = read_number(claim_seq, "claim_seq", MAX_CLAIM_SEQ)
    return run, seq, wire.unpacked(UUID, request.query_params.get("incarnation"), "incarnation")


def read_number(given: str, field: str, largest: int) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= 12 and int(given) <= largest):
        hint = f"a whole number up to {largest}"
        raise invalid(field, f"{abbreviate(given)} is out of range", hint, "out_of_range")
    return int(given)
