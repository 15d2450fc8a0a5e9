"""How soon `/health` answers, and whether a worker's heartbeats come in time, while slow clients hold connections.

CLIENTS of each kind: one sends half of a request's head, the other a head and the first byte of a body. Whoever is cut
off by a deadline comes again. The worker is a real one over HTTPS, on the same server.
"""

import asyncio
import ssl
import time
from itertools import pairwise
from typing import Any

import psycopg

from jobs.models import Role
from tests.benchmarks.figures import percentile
from tests.benchmarks.recovery import queues_of
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Stage, check_alive, say
from tests.support.certificates import OwnCA
from tests.support.factories import make_key
from tests.support.ports import free_port
from tests.support.servers.api import serve
from tests.system.platform import BEAT, LEASE, Platform, django_at, remote_env

KEYS = (
    "health_p99_ms",
    "health_worst_ms",
    "heartbeat_worst_ms",
    "heartbeat_ms",
    "lease_ms",
    "late_heartbeats",
)
HALF_OPEN = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
SLOW_BODY = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
HEALTH = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LAST_HEARTBEAT = "SELECT extract(epoch FROM last_beat_at)::float FROM beatkeeper_worker_node"


def measure(stage: Stage) -> dict[str, Any]:
    url, port, ca = stage.migrated("slow"), free_port(), OwnCA.make(stage.folder)
    with queues_of(stage), django_at(url):
        platform = Platform(stage.processes, stage.folder, url, stage.broker_url)
        try:
            server = serve(stage.processes, port, platform.env(), ca=ca)
            key = make_key(platform.tenant, Role.WORKER, pool=platform.pool)[1]
            address: dict[str, Any] = remote_env(f"https://localhost:{port}", key, ca)
            worker = platform.worker(**address)
            worker.wait_until_known()
            watch = Watch(port, ssl.create_default_context(cafile=str(ca.ca)), number("SECONDS", 60.0, 1.0))
            asyncio.run(watch.everything(url, whole("CLIENTS", 16)))
            check_alive(server, worker.process)
        finally:
            platform.end_everything()
    return watch.figures()


class Watch:
    def __init__(self, port: int, tls: ssl.SSLContext, seconds: float) -> None:
        self.port, self.tls = port, tls
        self.until = time.monotonic() + seconds
        self.health_seconds: list[float] = []
        self.heartbeats: list[float] = []
        self.cut_off = 0

    async def everything(self, database: str, clients: int) -> None:
        slow = [self.slow_client(request) for request in (HALF_OPEN, SLOW_BODY) for _ in range(clients)]
        await asyncio.gather(*slow, self.health(), self.watched_worker(database))

    async def slow_client(self, request: bytes) -> None:
        while (left := self.until - time.monotonic()) > 0:
            reader, writer = await self.connect()
            writer.write(request)
            try:
                await asyncio.wait_for(reader.read(), left)
                self.cut_off += 1
            except TimeoutError:
                pass
            writer.transport.abort()

    async def health(self) -> None:
        while time.monotonic() < self.until:
            began_at = time.perf_counter()
            reader, writer = await self.connect()
            writer.write(HEALTH)
            answer = await reader.read()
            self.health_seconds.append(time.perf_counter() - began_at)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            writer.close()
            await asyncio.sleep(0.1)

    async def watched_worker(self, database: str) -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as session:
            while time.monotonic() < self.until:
                found = await (await session.execute(LAST_HEARTBEAT)).fetchone()
                assert found is not None
                if found[0] not in self.heartbeats[-1:]:
                    self.heartbeats.append(found[0])
                await asyncio.sleep(0.05)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("localhost", self.port, ssl=self.tls)

    def figures(self) -> dict[str, Any]:
        pauses = [later - earlier for earlier, later in pairwise(self.heartbeats)]
        say(
            f"{self.cut_off} slow requests were cut off by a deadline;"
            f" {len(self.health_seconds)} answers of /health/ready, {len(self.heartbeats)} heartbeats"
        )
        return {
            "health_p99_ms": round(percentile(self.health_seconds, 99) * 1000, 1),
            "health_worst_ms": round(max(self.health_seconds) * 1000, 1),
            "heartbeat_worst_ms": round(max(pauses) * 1000),
            "heartbeat_ms": round(BEAT * 1000),
            "lease_ms": round(LEASE * 1000),
            # A heartbeat is late when the next one was due before it came.
            "late_heartbeats": sum(pause > 2 * BEAT for pause in pauses),
        }
