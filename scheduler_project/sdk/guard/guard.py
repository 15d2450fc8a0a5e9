"""The guard: a small process beside a worker that stops what must not go on.

It looks at the slots ten times a second and never waits for the network: heartbeats and deliveries have threads of
their own.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from ..ledger import is_remote
from ..process import processes
from ..process.liveness import HangDetector
from ..shared.folder import Runtime
from ..shared.slot_record import CLAIMED, FREE
from ..shared.spool import REQUEST_SECONDS
from .delivery import Delivery
from .feed_supervisor import FeedSupervisor
from .heartbeat import HeartbeatThread
from .held_claims import held_claims
from .log_follower import LogFollower
from .orphans import Orphans
from .slot_watch import SlotWatch

logger = logging.getLogger(__name__)

TICK = 0.1
FEED_PATIENCE = 3.0
MAX_FEED_PATIENCE = 15.0
FEED_RESTART = 10.0
LEAVING_SECONDS = 3.0


class Guard:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.config = runtime, runtime.config
        self.table, self.header = runtime.table, runtime.table.header
        self.heartbeat = HeartbeatThread(runtime, runtime.open_ledger())
        self.delivery = Delivery(runtime, runtime.open_ledger())
        self.slot_watch = SlotWatch(runtime, self.heartbeat, self.delivery)
        self.feed_supervisor = FeedSupervisor(runtime)
        self._feed_started = 0.0
        self._hung_since = 0.0
        self._parent_loop = HangDetector()
        self._was_full = self._was_draining = False

    def run(self) -> None:
        threading.Thread(target=Orphans(self.runtime.folder, Guard).keep_settling, daemon=True).start()
        self.heartbeat.start()
        self.delivery.start()
        if is_remote(self.config.ledger_url):
            LogFollower(self.runtime, self.runtime.open_remote_ledger).start()
        while self.parent_lives() and not (self.header.stopping and not self.any_claim()):
            self.header.ticked_at = processes.boottime()
            self.try_tick()
            if self.heartbeat.instructed.wait(TICK):
                self.heartbeat.instructed.clear()
        self.shut_down()

    def try_tick(self) -> None:
        try:
            self.tick()
        except Exception:
            # Whatever goes wrong, the watch goes on.
            logger.exception("The worker could not be checked")

    def tick(self) -> None:
        now = processes.boottime()
        self.watch_parent(now)
        if self.heartbeat.must_register:
            # Close the fence: children must not claim for an incarnation that is over.
            self.header.fence_at = 0.0
        for index, state in enumerate(self.table.states()):
            if state != FREE:
                # Again at each slot: with many slots, and much to kill, one tick may take long.
                self.header.ticked_at = processes.boottime()
                self.slot_watch.watch(index, now)
        full, draining = FREE not in self.table.states(), self.header.draining
        if (full, draining) != (self._was_full, self._was_draining):
            # Reported at once: the worker fills, empties or drains.
            self._was_full, self._was_draining = full, draining
            self.heartbeat.wake()
        self.heartbeat.end_quiet()
        self.feed_on_demand(now)

    def any_claim(self) -> bool:
        return any(state in CLAIMED for state in self.table.states())

    # The parent.

    def parent_lives(self) -> bool:
        try:
            return processes.alive(*self.header.parent)
        except OSError:
            # A guard that cannot look, as with too many open files, takes the worker for living.
            logger.exception("The worker could not be checked")
            return True

    def watch_parent(self, now: float) -> None:
        """Treat a worker that hangs for as long as a lease as lost; it registers anew when it goes on."""
        if not self.parent_hangs():
            self._hung_since = 0.0
            self.heartbeat.silent = False
            return
        self._hung_since = self._hung_since or now
        if not self.heartbeat.silent and now - self._hung_since > self.config.lease - self.config.margin:
            logger.error("The worker hangs: what it runs is killed")
            self.heartbeat.silent = self.heartbeat.must_register = True

    def parent_hangs(self) -> bool:
        """Return whether the parent is stopped, or is a feed whose loop stands still and that has no children left."""
        pid = self.header.parent[0]
        if processes.stopped(pid):
            return True
        if self.header.feed_pid != pid:
            return False
        still = self._parent_loop.look(self.header.feed_turned_at) > self.config.lease
        return still and not any(child != os.getpid() for child, _ in processes.children(pid))

    # The feed that takes over while wake-ups do not come through.

    def feed_on_demand(self, now: float) -> None:
        since = self.heartbeat.last_response.work_since
        self.feed_supervisor.replace_if_hung()
        self.heartbeat.feeding = self.feed_supervisor.is_running()
        if self.config.without_wakeups or self.config.keeps_feed or not self.config.app:
            return
        if self.heartbeat.feeding or not since or self.header.draining:
            return
        if now - self._feed_started < FEED_RESTART:
            return
        # A worker whose event loop turns serves what the responses name; it gets more time for it.
        loop_hangs = now - self.header.looped_at > FEED_PATIENCE
        if now - since > (FEED_PATIENCE if loop_hangs else MAX_FEED_PATIENCE):
            logger.warning("Wake-ups do not come through: runs are fetched from the ledger instead")
            self._feed_started = now
            self.feed_supervisor.start()

    # The end.

    def shut_down(self) -> None:
        """End everything that runs, deliver every result, and leave; the worker is gone or going."""
        logger.info("The worker is leaving")
        self.end_everything()
        # The thread first, so that no result is reported by both; then the rest from here, until the fence: behind
        # it others report these runs.
        self.delivery.finish()
        self.delivery.join(LEAVING_SECONDS)
        while not self.delivery.deliver_all() and not self.header.fenced:
            time.sleep(TICK)
        # Beats go on until here: a worker silent for its lease would lose the runs whose results are on the way.
        self.heartbeat.finish()
        self.heartbeat.join(LEAVING_SECONDS)
        self.leave()

    def end_everything(self) -> None:
        until = time.monotonic() + LEAVING_SECONDS
        while self.any_claim() and time.monotonic() < until:
            for index, state in enumerate(self.table.states()):
                if state in CLAIMED and self.table.take_ownership(index):
                    self.slot_watch.reclaim(index)
                elif state in CLAIMED:
                    self.slot_watch.kill_owner(index)
            time.sleep(TICK)

    def settle(self) -> bool:
        """Report what a worker left that ended together with its guard; return False if not all could be."""
        self.end_everything()
        until = time.monotonic() + REQUEST_SECONDS + LEAVING_SECONDS
        while not (delivered := self.delivery.deliver_all()) and time.monotonic() < until:
            time.sleep(TICK)
        return delivered and self.leave()

    def leave(self) -> bool:
        """Report to the ledger that the worker left, and remove its folder; return False if results remain."""
        if held_claims(self.runtime).tokens:
            logger.error("Results could not be reported; they stay in %s", self.runtime.folder)
            return False
        try:
            self.runtime.open_ledger().leave(self.header.incarnation)
        except Exception as error:
            logger.warning("The ledger does not know that the worker left: %s", error)
        shutil.rmtree(self.runtime.folder, ignore_errors=True)
        return True


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", __package__, "--dir", str(folder)]


def main() -> None:
    parser = argparse.ArgumentParser(description="The guard of a Beatkeeper worker; the worker starts it.")
    parser.add_argument("--dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s beatkeeper guard: %(message)s")
    # A terminal's Ctrl-C and a service's SIGTERM go to the worker; the guard leaves after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    runtime = Runtime(arguments.dir)
    runtime.table.header.guard = processes.identity(os.getpid())
    Guard(runtime).run()
