"""The worker's protocol: what comes in is read by the SDK's own module, and answered by the ledger of its key.

Every answer is `{"answer": …}`, may be asked for again, and is kept by nobody on the way: a claim's holds secrets.
"""

import time
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from rest_framework.exceptions import APIException
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.authentication import WorkerPermission, key_of
from jobs.input_checks import refused
from jobs.refusals import Missing
from runs import run_logs
from runs.api import worker_schema as schema
from runs.remote_ledger import HIGHEST_CLAIM_SEQ, LARGEST_LOG, RemoteLedger, check_member
from scheduler_project.sdk import https, wire
from scheduler_project.sdk.ledger import Beat, WorkerInfo

T = TypeVar("T")

LARGEST_CHUNK = 1024 * 1024


class BodyTooLarge(APIException):
    status_code = 413

    def __init__(self, largest: int) -> None:
        super().__init__(f"the body is over {largest} bytes")


class Bytes(BaseParser):
    """A body as it is, up to a size that the view bears."""

    largest = LARGEST_CHUNK

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        body: bytes = stream.read(self.largest + 1)
        if len(body) > self.largest:
            raise BodyTooLarge(self.largest)
        return body


class Lines(Bytes):
    media_type = https.LINES


class GzipMember(Bytes):
    media_type = https.GZIP
    # Of lines that cannot be compressed.
    largest = LARGEST_LOG + LARGEST_LOG // 100


class WorkerView(APIView):
    permission_classes = [WorkerPermission]

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response

    def handle_exception(self, error: Exception) -> Response:
        if isinstance(error, wire.WireWrong):
            error = refused(error.field, error.wrong)
        elif isinstance(error, psycopg.DataError):
            error = refused("", f"the ledger cannot keep this: {str(error).partition(chr(10))[0]}")
        return super().handle_exception(error)

    def ledger(self, request: Request) -> RemoteLedger:
        return RemoteLedger(key_of(request), run_logs.store())


class Register(WorkerView):
    @schema.register
    def post(self, request: Request) -> Response:
        return answer(self.ledger(request).register(read(WorkerInfo, request)))


class Heartbeat(WorkerView):
    @schema.heartbeat
    def post(self, request: Request) -> Response:
        heard = self.ledger(request).heartbeat(read(Beat, request))
        # How far this host's clock is from the database's was measured on the way; the worker's is its own affair.
        if heard.skew_ms is None:
            return answer(wire.Heard(heard))
        return answer(wire.Heard(heard, datetime.fromtimestamp(time.time() - heard.skew_ms / 1000, UTC)))


class Claims(WorkerView):
    @schema.claim
    def post(self, request: Request) -> Response:
        asked = read(wire.ClaimAsked, request)
        return answer(self.ledger(request).claim(asked.wanted, asked.again))


class Report(WorkerView):
    @schema.report
    def post(self, request: Request) -> Response:
        told = read(wire.Reported, request)
        return answer(self.ledger(request).report_ends(told.ended, told.wanted))


class Leave(WorkerView):
    @schema.leave
    def post(self, request: Request) -> Response:
        self.ledger(request).leave(read(wire.Left, request).incarnation)
        return answer(True)


class Declare(WorkerView):
    @schema.declare
    def post(self, request: Request) -> Response:
        declared = read(wire.Declared, request)
        self.ledger(request).declare(declared.pool, declared.tenant, declared.declarations)
        return answer(True)


class DeclarationErrors(WorkerView):
    @schema.declaration_errors
    def post(self, request: Request) -> Response:
        asked = read(wire.Names, request)
        return answer(self.ledger(request).declaration_errors(asked.tenant, asked.names))


class FinishedLog(WorkerView):
    parser_classes = [GzipMember]

    @schema.keep_log
    def put(self, request: Request, run_id: str, claim_seq: str) -> Response:
        run, seq, incarnation = read_claim(request, run_id, claim_seq)
        member = body_of(request)
        check_member(member, "body")
        return answer(self.ledger(request).keep_log(run, seq, incarnation, member))


class OpenLog(WorkerView):
    parser_classes = [Lines]

    @schema.append_log
    def post(self, request: Request, run_id: str, claim_seq: str) -> Response:
        run, seq, incarnation = read_claim(request, run_id, claim_seq)
        offset = read_number(request.query_params.get("offset", ""), "offset", LARGEST_LOG)
        lines = body_of(request)
        if offset + len(lines) > LARGEST_LOG:
            raise BodyTooLarge(LARGEST_LOG)
        return answer(self.ledger(request).append_log(run, seq, incarnation, offset, lines))


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
    seq = read_number(claim_seq, "claim_seq", HIGHEST_CLAIM_SEQ)
    return run, seq, wire.unpacked(UUID, request.query_params.get("incarnation"), "incarnation")


def read_number(given: str, field: str, largest: int) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= 12 and int(given) <= largest):
        raise refused(
            field, f"{given[:20]!r} is out of range", f"a whole number up to {largest}", "out_of_range"
        )
    return int(given)
