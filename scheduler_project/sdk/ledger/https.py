"""The ledger over HTTPS, for workers that see neither the platform's database nor its keys."""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit, urlunsplit
from uuid import UUID

from ..errors import KeyRefused, LedgerRefused, LedgerUnavailable, error_of
from ..logs.remote import HERE, RemoteLogStore
from ..outcomes import LogPointer
from ..transport.http import JSON, HttpTransport, NoReply, TransportReply, checked_key, checked_url
from . import wire
from .clock_skew import RoundTrip
from .interface import (
    ANSWER_SECONDS,
    Beat,
    Claim,
    ClaimRequest,
    CompletedClaim,
    HeartbeatResponse,
    ReportResult,
    WorkerInfo,
    WorkQueue,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_SECONDS = 5.0
# Compressed logs within a report; larger ones are sent separately.
MAX_INLINE_LOGS = 256 * 1024
# The longest silence that a server may request: by then the fence may have to be kept.
MAX_SILENCE = 2.0
GZIP = "application/gzip"
LINES = "application/x-ndjson"
# Statuses that request a repetition later.
LATER = (408, 425, 429)


@dataclass(frozen=True)
class Address:
    url: str
    key: str = field(repr=False)
    ca_file: str


def remote_ledger_url(url: str, key: str, ca_file: str = "") -> str:
    """Write all that opens the ledger as one URL, which is a secret."""
    parts = urlsplit(checked_url(url))
    query = urlencode({"ca_file": ca_file}) if ca_file else ""
    return urlunsplit(
        parts._replace(netloc=f"{quote(checked_key(key), safe='')}@{parts.netloc}", query=query)
    )


def read_address(url: str) -> Address:
    """Read `https://<key>@host:port`, with `?ca_file=…` for a certificate authority of one's own."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    # The key stands in the place of the user name or of the password.
    key = unquote(login.strip(":"))
    if not key:
        raise ValueError(
            "The address of the platform comes without a key: give a worker's key in BEATKEEPER_API_KEY, or as api_key"
        )
    [ca_file] = parse_qs(parts.query).get("ca_file", [""])
    if ca_file and not os.path.isfile(ca_file):
        raise ValueError(f"There is no file {ca_file}: BEATKEEPER_CA_FILE names the certificate authority")
    plain = urlunsplit(parts._replace(netloc=host, query=""))
    return Address(checked_url(plain), checked_key(key), ca_file)


class HttpsLedger(HttpTransport):
    def __init__(self, url: str, logs: RemoteLogStore | None = None) -> None:
        self._logs = logs
        limits = {"connect_seconds": CONNECT_SECONDS, "reply_seconds": ANSWER_SECONDS}
        address = read_address(url)
        super().__init__(address.url, address.key, address.ca_file, **limits)
        # A mistake in the CA file is found now, not by the first request.
        _ = self.tls
        self._silent_until = 0.0

    def register(self, info: WorkerInfo) -> list[WorkQueue]:
        return self._request(list[WorkQueue], "/register", info)

    def heartbeat(self, beat: Beat) -> HeartbeatResponse:
        round_trip = RoundTrip()
        reply = self._request(wire.HeartbeatReply, "/heartbeat", beat)
        return replace(reply.response, skew_ms=round_trip.skew_ms(reply.at) if reply.at else None)

    def claim(self, request: ClaimRequest, again: bool = False) -> list[Claim]:
        return self._request(list[Claim], "/claim", wire.ClaimBody(request, again))

    def report(self, ended: Sequence[CompletedClaim], request: ClaimRequest | None = None) -> ReportResult:
        ends = [wire.end_of(one, log) for one, log in zip(ended, self._logs_of(ended), strict=True)]
        return self._request(ReportResult, "/report", wire.ReportBody(ends, request))

    def leave(self, incarnation: UUID) -> None:
        self._request(bool, "/leave", wire.LeaveBody(incarnation))

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None:
        """Declare all at once, and each by itself when one is refused: it must not cost the others."""
        try:
            self._request(bool, "/declare", wire.DeclareBody(pool, tenant, declarations))
        except LedgerRefused as refusal:
            if isinstance(refusal, KeyRefused) or len(declarations) <= 1:
                raise
            errors = []
            for one in declarations:
                try:
                    self.declare(pool, tenant, [one])
                except KeyRefused:
                    raise
                except LedgerRefused as error:
                    errors.append(str(error))
            if errors:
                raise LedgerRefused(" ".join(errors)) from None

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        return self._request(dict[str, str], "/declaration-errors", wire.DeclarationNames(tenant, names))

    def _logs_of(self, ended: Sequence[CompletedClaim]) -> Iterator[str]:
        """Yield the logs to send within the report. A large log is sent before it, so that the platform has it."""
        room = MAX_INLINE_LOGS
        for one in ended:
            member = self._member_of(one)
            if len(member) <= room:
                room -= len(member)
                yield base64.b64encode(member).decode()
                continue
            claim = one.claim
            try:
                self.keep_log(claim.run_id, claim.claim_seq, claim.incarnation, member)
            except LedgerRefused as error:
                logger.warning("The log of run %s is not taken: %s", claim.run_id, error)
            yield ""

    def _member_of(self, one: CompletedClaim) -> bytes:
        if self._logs is None or one.outcome.log != HERE:
            return b""
        try:
            return self._logs.member(one.claim.run_id, one.claim.claim_seq)
        except OSError:
            logger.exception("The log of run %s cannot be read", one.claim.run_id)
            return b""

    def keep_log(self, run: UUID, claim_seq: int, incarnation: UUID, member: bytes) -> LogPointer:
        """Send the log of an ended attempt as one gzip member. Sent twice, it is stored once."""
        where = f"/logs/{run}/{claim_seq}?incarnation={incarnation}"
        return self._answer(LogPointer, "PUT", where, member, GZIP)

    def append_log(self, run: UUID, claim_seq: int, incarnation: UUID, offset: int, lines: bytes) -> int:
        """Send lines of a running attempt, from the offset on, and return how far the platform has them."""
        where = f"/logs/{run}/{claim_seq}/lines?incarnation={incarnation}&offset={offset}"
        return self._answer(int, "POST", where, lines, LINES)

    def _request(self, kind: type[T], path: str, body: Any) -> T:
        return self._answer(kind, "POST", path, json.dumps(wire.packed(body)).encode(), JSON)

    def _answer(self, kind: type[T], method: str, path: str, body: bytes, content_type: str) -> T:
        if time.monotonic() < self._silent_until:
            raise LedgerUnavailable("the platform requested silence for a while")
        try:
            reply = self.send(method, f"/worker{path}", body, content_type)
        except NoReply as error:
            raise LedgerUnavailable(f"{self.url}: {error}") from error
        if reply.status != 200:
            raise self._error_of(reply)
        try:
            return wire.unpacked(kind, json.loads(reply.body)["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerUnavailable(
                f"{self.url} answers in another language: is it the address of Beatkeeper?"
            ) from error

    def _error_of(self, reply: TransportReply) -> Exception:
        if reply.status in LATER or reply.status >= 500:
            # Whether the request was carried out is not known.
            if reply.retry_after.isascii() and reply.retry_after.isdecimal():
                self._silent_until = time.monotonic() + min(float(reply.retry_after[:9]), MAX_SILENCE)
            return LedgerUnavailable(f"{self.url} answered {reply.status}")
        refused = error_of(reply.status, reply.problem())
        sentence = f"The platform at {self.url} refuses this: {refused}."
        return KeyRefused(sentence) if isinstance(refused, KeyRefused) else LedgerRefused(sentence)
