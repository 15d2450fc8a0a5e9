"""Clients in a process of their own: each sends a request, reads its answer, and sends the next."""

import asyncio
import json
import sys
import time
from typing import Any


async def client(load: dict[str, Any], until: float, number: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", load["port"])
    seconds, count = [], 0
    while time.monotonic() < until:
        body = load["body"].replace("%name%", f"{load['name']}-{number}-{count}").encode()
        count += 1
        began_at = time.perf_counter()
        writer.write(f"{load['head']}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        status, length = int(head[9:12]), int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        answer = await reader.readexactly(length)
        seconds.append(time.perf_counter() - began_at)
        if status != load["status"]:
            raise SystemExit(f"{status} instead of {load['status']}: {answer[:500].decode()}")
    writer.close()
    return seconds


async def all_clients(load: dict[str, Any]) -> list[float]:
    until = time.monotonic() + load["seconds"]
    found = await asyncio.gather(*(client(load, until, number) for number in range(load["clients"])))
    return [second for seconds in found for second in seconds]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(all_clients(json.loads(sys.argv[1])))))
