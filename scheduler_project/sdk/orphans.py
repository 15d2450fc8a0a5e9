"""What workers leave that ended together with their guards: a machine that went down, a killed group. The guard of
another worker on the same machine tells it.
"""

from __future__ import annotations

import fcntl
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from . import processes
from .runtime import Runtime, read_config
from .slots import read_header

logger = logging.getLogger(__name__)

# A lease is longer: what an outage kept from being told is told before rescue takes it for lost.
LOOK_SECONDS = 5.0
LOCK = "orphan.lock"


class Settler(Protocol):
    """A guard for what its worker left."""

    def settle(self) -> bool:
        """Ends what still runs and tells the rest. False: not all of it could be told yet."""


class Orphans:
    """Folders beside ours. Of each that cannot be settled yet the same guard tries again: it knows what was refused."""

    def __init__(self, folder: Path, guard_of: Callable[[Runtime], Settler]) -> None:
        self._folder, self._guard_of = folder, guard_of
        self._guards: dict[Path, tuple[Runtime, Settler]] = {}
        self._complained_of: set[Path] = set()

    def keep_settling(self) -> None:
        """Again and again: the ledger may come back later than we start, and a worker beside us end after that."""
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
                # It is only being made, or somebody else is at it.
                continue
            except Exception as error:
                if beside not in self._complained_of:
                    logger.warning("%s is left as it is: %s", beside, error)
                self._complained_of.add(beside)

    def _settle(self, folder: Path) -> None:
        with open(folder / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _, guard = self._guards.get(folder) or self._take_on(folder)
            if guard.settle():
                self._let_go(folder)

    def _take_on(self, folder: Path) -> tuple[Runtime, Settler]:
        runtime = Runtime(folder)
        try:
            guard = self._guard_of(runtime)
        except BaseException:
            # It is tried again and again, and each try opens the table anew.
            runtime.table.close()
            raise
        logger.info("A worker ended without a word (%s); its results are told now", folder.name)
        self._guards[folder] = runtime, guard
        return self._guards[folder]

    def _let_go(self, folder: Path) -> None:
        runtime, _ = self._guards.pop(folder)
        runtime.table.close()


def is_orphan(folder: Path) -> bool:
    """Looked at often, and mostly of workers that live: nothing is opened for longer than the look."""
    if read_config(folder).host != socket.gethostname():
        # Shared between containers: its processes may live, where we cannot see them.
        return False
    header = read_header(folder)
    parent, started = header.parent
    return bool(parent) and not processes.alive(parent, started) and not processes.alive(*header.guard)
