"""Looks for a secret in everything a platform leaves behind: written plainly, in base64, percent-encoded, as JSON."""

import base64
import gzip
import json
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import kombu
import psycopg
from psycopg import sql

from jobs.models import Pool
from runs.models import Queue
from tests.support.leftovers import listed_queues
from tests.system.platform import Platform

# Of base64 what stands around a secret decides the first and the last characters.
EDGE = 4

Found = set[tuple[str, str]]


def written(secret: str) -> list[bytes]:
    """By other means than those of the platform, which are what is tested."""
    texts = [secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]]
    for before in ("", "x", "xx"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            texts.append(encode((before + secret).encode()).decode().rstrip("=")[EDGE:-EDGE])
    return [text.encode() for text in dict.fromkeys(texts)]


class Traces:
    """Every place, as bytes by name. What an answer or a page showed is noted when it comes."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.answers: list[tuple[str, bytes]] = []
        self.messages: list[tuple[str, bytes]] = []

    def found(self, secrets: Iterable[str]) -> Found:
        """Where each was found: the kind of place and the place."""
        needles = [needle for secret in secrets for needle in written(secret)]
        return {
            (kind, place)
            for kind, place, content in self.everything()
            if any(needle in content for needle in needles)
        }

    def everything(self) -> Iterator[tuple[str, str, bytes]]:
        yield "database", *database(self.platform.database_url)
        for kind, folder in (("log", self.platform.folder / "logs"), ("spool", self.platform.spool)):
            for path in files(folder):
                yield kind, str(path), unpacked(path)
        for path in self.platform.folder.glob("*.log"):
            yield "output", path.name, path.read_bytes()
        for pid in self.platform.processes():
            with suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                yield "environment", str(pid), environ + Path(f"/proc/{pid}/cmdline").read_bytes()
        for place, content in self.answers:
            yield "answer", place, content
        for queue, content in self.messages:
            yield "queue", queue, content

    def note(self, place: str, response: Any) -> Any:
        headers = "\n".join(f"{name}: {value}" for name, value in response.items())
        self.answers.append((place, headers.encode() + b"\n" + response.content))
        return response

    def drain_queues(self) -> int:
        """Every message that waits anywhere, its headers and properties too. Returns how many there were."""
        with kombu.Connection(self.platform.broker_url, connect_timeout=5) as broker:
            for queue in self.queues():
                self._drain(broker, queue)
        return len(self.messages)

    def queues(self) -> list[str]:
        prefix = os.environ["BEATKEEPER_QUEUE_PREFIX"]
        known = {
            *Queue.objects.values_list("broker_queue", flat=True),
            *Pool.objects.exclude(broker_queue="").values_list("broker_queue", flat=True),
            self.platform.own_queue,
            f"{prefix}.dead",
        }
        return sorted(known | {name for name in listed_queues() if name.startswith(f"{prefix}.")} - {""})

    def _drain(self, broker: kombu.Connection, queue: str) -> None:
        channel: Any = broker.channel()
        with suppress(*broker.channel_errors):
            while message := channel.basic_get(queue, no_ack=True):
                text = json.dumps([message.headers, message.properties], default=str)
                body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
                self.messages.append((queue, text.encode() + body))


def database(url: str) -> tuple[str, bytes]:
    """Through pg_dump; where there is none, or one of another version, each table by COPY."""
    if program := shutil.which("pg_dump"):
        dump = subprocess.run([program, "--dbname", url], capture_output=True)
        if dump.returncode == 0:
            return "pg_dump", dump.stdout
    with psycopg.connect(url) as session:
        tables = session.execute(
            "SELECT quote_ident(schemaname), quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        return "COPY", b"".join(chunk for schema, table in tables for chunk in copied(session, schema, table))


def copied(session: psycopg.Connection[Any], schema: str, table: str) -> Iterator[bytes]:
    with session.cursor().copy(sql.SQL(f"COPY {schema}.{table} TO STDOUT")) as copy:
        yield from (bytes(chunk) for chunk in copy)


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    with suppress(OSError, EOFError, zlib.error):
        return gzip.decompress(content)
    return content
