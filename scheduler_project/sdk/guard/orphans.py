"""The folders of workers that ended together with their guards, as when a machine went down.

The guard of another worker on the same machine reports the results in them.
"""

from __future__ import annotations

import fcntl
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..process import processes
from ..shared.folder import Runtime, read_config
from ..shared.slots import read_header

logger = logging.getLogger(__name__)

# Shorter than a lease: what an outage kept from being reported is reported before recovery takes it for lost.
LOOK_SECONDS = 5.0
LOCK = "orphan.lock"


class Settler(Protocol):
    """A guard for the folder that its worker left."""

    runtime: Runtime

    def settle(self) -> bool:
        """End what still runs and report the rest; return False if not all of it could be reported yet."""


class Orphans:
    """Settle the folders beside ours. One that cannot be settled yet keeps its guard, which knows what was refused."""

    def __init__(self, folder: Path, guard_of: Callable[[Runtime], Settler]) -> None:
        self._folder, self._guard_of = folder, guard_of
        self._guards: dict[Path, Settler] = {}
        self._warned: set[Path] = set()

    def keep_settling(self) -> None:
        # Again and again: the ledger may come back later than we start, and a worker beside us may end after that.
        while True:
            self.settle_all()
            time.sleep(LOOK_SECONDS)

    def settle_all(self) -> None:
        found = sorted(self._folder.parent.glob("worker-*"))
        for gone in self._guards.keys() - set(found):
            self._let_go(gone)
        for beside in found:
            try:
                if beside != self._folder and is_orphan(beside):
                    self._settle(beside)
            except (FileNotFoundError, BlockingIOError):
                # It is only being made, or another guard is settling it.
                continue
            except Exception as error:
                if beside not in self._warned:
                    logger.warning("%s is left as it is: %s", beside, error)
                self._warned.add(beside)

    def _settle(self, folder: Path) -> None:
        # One guard at a time: two would report the same results and spool the same slots.
        with open(folder / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            guard = self._guards.get(folder) or self._take_on(folder)
            if guard.settle():
                self._let_go(folder)

    def _take_on(self, folder: Path) -> Settler:
        runtime = Runtime(folder)
        try:
            self._guards[folder] = self._guard_of(runtime)
        except BaseException:
            # It is tried again and again, and each try opens the table anew.
            runtime.table.close()
            raise
        logger.info("A worker and its guard are gone (%s); its results are reported now", folder.name)
        return self._guards[folder]

    def _let_go(self, folder: Path) -> None:
        self._guards.pop(folder).runtime.table.close()


def is_orphan(folder: Path) -> bool:
    """Return whether a worker and its guard are dead, without keeping its table open: most of them live."""
    if read_config(folder).host != socket.gethostname():
        # Shared between containers: its processes may live, where we cannot see them.
        return False
    header = read_header(folder)
    both = (header.parent, header.guard)
    return bool(header.parent[0]) and not any(processes.alive(*process) for process in both)
