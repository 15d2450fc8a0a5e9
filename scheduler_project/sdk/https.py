"""The ledger over HTTPS, for workers that see neither the platform's database nor its keys.

A request is never sent twice by itself: a claim whose answer was lost must be asked for `again`, and only the caller
knows that it was. So a kept connection is looked at before it is used, and one the server has closed is replaced
before anything is sent.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import select
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit, urlunsplit
from uuid import UUID

from . import wire
from .client import BASE, checked_key, checked_url, in_words, problem_of
from .clock_skew import RoundTrip
from .errors import KeyRefused, refusal
from .ledger import (
    ANSWER_SECONDS,
    Answer,
    Beat,
    Claim,
    Ended,
    Lane,
    LedgerRefused,
    LedgerUnavailable,
    Told,
    Wanted,
    WorkerInfo,
    given_back,
)
from .outcomes import LogPointer
from .remote_logs import HERE, RemoteLogStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_SECONDS = 5.0
# Of logs that go along with reports, packed; larger ones go by themselves.
LARGEST_LOGS_INLINE = 256 * 1024
LARGEST_ANSWER = 64 * 1024 * 1024
# Longer silences than this a server does not impose: by then the fence may have to be kept.
LONGEST_WAIT = 2.0
MOST_KEPT = 8
JSON = "application/json"
GZIP = "application/gzip"
LINES = "application/x-ndjson"
# Told to come again later.
LATER = (408, 425, 429)


@dataclass(frozen=True)
class Address:
    url: str
    key: str
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


def ledger_url(url: str, key: str, ca_file: str = "") -> str:
    """All that opens the ledger, as one text: a secret."""
    parts = urlsplit(checked_url(url))
    query = urlencode({"ca_file": ca_file}) if ca_file else ""
    return urlunsplit(
        parts._replace(netloc=f"{quote(checked_key(key), safe='')}@{parts.netloc}", query=query)
    )


def read_address(url: str) -> Address:
    """`https://<key>@host:port`, with `?ca_file=…` for a certificate authority of one's own."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    # As a user name, or where one would write a password.
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


class Response(NamedTuple):
    status: int
    kind: str
    body: bytes
    retry_after: str


class HttpsLedger:
    """Connections are kept, as many as are used at once, and none is used by a process that did not open it."""

    def __init__(self, url: str, logs: RemoteLogStore | None = None) -> None:
        self._logs = logs
        self._address = read_address(url)
        parts = urlsplit(self._address.url)
        self._host, self._port = str(parts.hostname), parts.port
        self._base = f"{parts.path}{BASE}/worker"
        self._tls = ssl.create_default_context(cafile=self._address.ca_file or None)
        self._encrypted = parts.scheme == "https"
        self._idle: list[http.client.HTTPConnection] = []
        self._pid = os.getpid()
        self._silent_until = 0.0

    def __repr__(self) -> str:
        return f"HttpsLedger({self._address.url!r})"

    # What a worker says.

    def register(self, info: WorkerInfo) -> list[Lane]:
        return self._ask(list[Lane], "/register", info)

    def heartbeat(self, beat: Beat) -> Answer:
        asked = RoundTrip()
        heard = self._ask(wire.Heard, "/heartbeat", beat)
        skew_ms = asked.skew_ms(heard.at) if heard.at else None
        return Answer(**{**vars(heard.answer), "skew_ms": skew_ms})

    def claim(self, wanted: Wanted, again: bool = False) -> list[Claim]:
        return self._ask(list[Claim], "/claim", wire.ClaimAsked(wanted, again))

    def report(self, ended: Sequence[Ended], wanted: Wanted | None = None) -> Told:
        ends = [wire.end_of(one, log) for one, log in zip(ended, self._logs_of(ended), strict=True)]
        return self._ask(Told, "/report", wire.Reported(ends, wanted))

    def give_back(self, claim: Claim) -> str | None:
        return self.report([given_back(claim)]).states[0]

    def leave(self, incarnation: UUID) -> None:
        self._ask(bool, "/leave", wire.Left(incarnation))

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None:
        """One that is refused must not cost the others: then each is told by itself."""
        try:
            self._ask(bool, "/declare", wire.Declared(pool, tenant, declarations))
        except KeyRefused:
            raise
        except LedgerRefused:
            if len(declarations) <= 1:
                raise
            refused = [error for one in declarations if (error := self._refused(pool, tenant, one))]
            if refused:
                raise LedgerRefused(" ".join(refused)) from None

    def _refused(self, pool: str, tenant: str, declaration: dict[str, Any]) -> str:
        try:
            self.declare(pool, tenant, [declaration])
        except KeyRefused:
            raise
        except LedgerRefused as error:
            return str(error)
        return ""

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        return self._ask(dict[str, str], "/declaration-errors", wire.Names(tenant, names))

    # Logs.

    def _logs_of(self, ended: Sequence[Ended]) -> Iterator[str]:
        """What goes along with the report. A large log goes first: then the platform knows of it."""
        room = LARGEST_LOGS_INLINE
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

    def _member_of(self, one: Ended) -> bytes:
        if self._logs is None or one.outcome.log != HERE:
            return b""
        try:
            return self._logs.member(one.claim.run_id, one.claim.claim_seq)
        except OSError:
            logger.exception("The log of run %s cannot be read", one.claim.run_id)
            return b""

    def keep_log(self, run: UUID, claim_seq: int, incarnation: UUID, member: bytes) -> LogPointer:
        """Of an attempt that ended, as one gzip member. Told twice, it is kept once."""
        where = f"/logs/{run}/{claim_seq}?incarnation={incarnation}"
        return self._answer(LogPointer, "PUT", where, member, GZIP)

    def append_log(self, run: UUID, claim_seq: int, incarnation: UUID, offset: int, lines: bytes) -> int:
        """Lines of an attempt that runs, from the offset on. Returns how far the platform has them."""
        where = f"/logs/{run}/{claim_seq}/lines?incarnation={incarnation}&offset={offset}"
        return self._answer(int, "POST", where, lines, LINES)

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # One request.

    def _ask(self, kind: type[T], path: str, body: Any) -> T:
        return self._answer(kind, "POST", path, json.dumps(wire.packed(body)).encode(), JSON)

    def _answer(self, kind: type[T], method: str, path: str, body: bytes, content: str) -> T:
        response = self._send(method, f"{self._base}{path}", body, content)
        if response.status != 200:
            raise self._refusal(response)
        try:
            return wire.unpacked(kind, json.loads(response.body)["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerUnavailable(
                f"{self._address.url} answers in another language: is it the address of Beatkeeper?"
            ) from error

    def _send(self, method: str, path: str, body: bytes, content: str) -> Response:
        if time.monotonic() < self._silent_until:
            raise LedgerUnavailable("it asked not to be asked for a while")
        headers = {"Authorization": f"Bearer {self._address.key}", "Content-Type": content}
        connection = None
        try:
            connection = self._connection()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            read = answer.read(LARGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            if connection is not None:
                connection.close()
            raise LedgerUnavailable(f"{self._address.url}: {in_words(error)}") from error
        except BaseException:
            # A run that is stopped here must not leave half an answer for the next.
            if connection is not None:
                connection.close()
            raise
        self._put_back(connection, whole=len(read) <= LARGEST_ANSWER and not answer.will_close)
        retry_after = answer.headers.get("Retry-After", "")
        return Response(answer.status, answer.headers.get_content_type(), read, retry_after)

    def _connection(self) -> http.client.HTTPConnection:
        if self._pid != os.getpid():
            # The parent's connections are the parent's: two processes would mix their words in one stream.
            self._idle, self._pid = [], os.getpid()
        while self._idle:
            connection = self._idle.pop()
            if is_quiet(connection):
                return connection
            connection.close()
        connection = self._new()
        connection.connect()
        connection.sock.settimeout(ANSWER_SECONDS)
        return connection

    def _new(self) -> http.client.HTTPConnection:
        if not self._encrypted:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_SECONDS, context=self._tls)

    def _put_back(self, connection: http.client.HTTPConnection, whole: bool) -> None:
        if whole and connection.sock is not None and len(self._idle) < MOST_KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def _refusal(self, response: Response) -> Exception:
        if is_away(response.status):
            self._wait(response.retry_after)
            return LedgerUnavailable(f"{self._address.url} answered {response.status}")
        refused = refusal(response.status, problem_of(response.kind, response.body))
        sentence = f"The platform at {self._address.url} refuses this: {refused}."
        return KeyRefused(sentence) if isinstance(refused, KeyRefused) else LedgerRefused(sentence)

    def _wait(self, retry_after: str) -> None:
        if retry_after.isascii() and retry_after.isdecimal():
            self._silent_until = time.monotonic() + min(float(retry_after[:9]), LONGEST_WAIT)


def is_away(status: int) -> bool:
    """The platform, or what stands before it, cannot answer now. Whether it did what was asked is not known."""
    return status in LATER or status >= 500


def is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Open, and nothing to read on it: a server says nothing unasked but that it is leaving."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)
