"""Test the loop of pools whose worker has none that could be used."""

import subprocess
import sys

from tests.support.processes import CHECKOUT

BESIDE_GREENLETS = """
import kombu.asynchronous, kombu.utils.eventio
from gevent import monkey
monkey.patch_all()
import socket, time
from scheduler_project.sdk.worker.event_loop import EventLoop
here, there = socket.socketpair()
loop, read = EventLoop(), []
loop.add_reader(here, lambda: read.append(here.recv(1)))
loop.start()
end, rounds = time.monotonic() + 20, 0
while rounds < 20 and time.monotonic() < end:
    time.sleep(0.01)
    rounds += 1
there.send(b"x")
while not read and time.monotonic() < end:
    time.sleep(0.01)
loop.close()
print(rounds, read)
"""


def test_other_greenlets_run_though_kombu_was_imported_before_the_patch() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BESIDE_GREENLETS], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "20 [b'x']\n", ended.stderr
