"""The folder that a worker, its children and its guard share: configuration, slots, last response, spool."""

from __future__ import annotations

import json
import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..ledger import is_remote, open_ledger
from ..ledger.interface import ANSWER_SECONDS, Claim, Ledger, WorkQueue
from ..logs.remote import RemoteLogStore
from ..logs.store import LogStore, open_log_store
from ..outcomes import LogPointer
from ..process import processes
from .run_lengths import RunLengths
from .slots import SlotTable
from .spool import Spool
from .wakeup_pipe import WakePipe

if TYPE_CHECKING:
    from ..ledger.https import HttpsLedger

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Config:
    name: str
    host: str
    pool: str
    tenant: str
    slots: int
    ledger_url: str
    log_store_url: str
    known_targets: Sequence[str]
    version: str = ""
    region: str = ""
    lease: float = 30.0
    beat: float = 5.0
    margin: float = 5.0
    # Between the request to stop and the kill.
    grace: float = 5.0
    drain: float = 20.0
    feed_after: float = 1.0
    # Between beats while a slot is free: their responses name runs that wait behind a busy worker or in a new queue.
    look: float = 0.8
    # The guard beats twice a second then, to learn of work.
    without_wakeups: bool = False
    # The path by which `feed --attached` finds the app again; empty: it cannot.
    app: str = ""
    # The worker's own pool cannot stop a body, so all bodies run in children of a feed that the worker keeps.
    keeps_feed: bool = False
    declarations: Sequence[dict[str, Any]] = field(default_factory=tuple)
    # A child is replaced after so many runs, or when it has more KiB; 0: never.
    runs_per_child: int = 0
    memory_per_child: int = 0

    @property
    def counts_runs(self) -> bool:
        """Return whether children are replaced, so that each is looked at after every run."""
        return bool(self.runs_per_child or self.memory_per_child)

    def __repr__(self) -> str:
        return f"Config(name={self.name!r}, pool={self.pool!r}, slots={self.slots})"


class Runtime:
    def __init__(self, folder: Path, config: Config | None = None) -> None:
        self.folder = folder
        self.config = config or read_config(folder)
        self.table = SlotTable(folder)
        self.spool = Spool(folder / "spool")
        if is_remote(self.config.ledger_url):
            self.log_store: LogStore = RemoteLogStore(folder.parent / "logs")
        else:
            self.log_store = open_log_store(self.config.log_store_url)
        self._ledger: tuple[int, Ledger] | None = None
        self._lock = threading.Lock()
        self._response = ""

    @classmethod
    def create(cls, spool_folder: Path, config: Config) -> Runtime:
        spool_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"worker-{os.getpid()}-", dir=spool_folder))
        write_privately(folder / "config.json", json.dumps(asdict(config)))
        table = SlotTable.create(folder, config.slots)
        table.header.parent = processes.identity(os.getpid())
        (folder / "spool").mkdir(mode=0o700)
        WakePipe.create(folder)
        RunLengths.create(folder)
        return cls(folder, config)

    @cached_property
    def lengths(self) -> RunLengths:
        # When it is needed: the folder that a worker of another version left may have none.
        return RunLengths(self.folder)

    def ledger(self) -> Ledger:
        """Return the ledger of this process, opened once."""
        # The lock keeps two threads from opening one each. The pid is compared because connections do not survive a
        # fork: parent and child would read each other's responses.
        with self._lock:
            if self._ledger is None or self._ledger[0] != os.getpid():
                self._ledger = (os.getpid(), self.open_ledger())
            return self._ledger[1]

    def open_ledger(self) -> Ledger:
        """Open another ledger, for a thread that must not wait for the others of this process."""
        if is_remote(self.config.ledger_url):
            return self.open_remote_ledger()
        # A third of a lease: before the fence there must be time for another connection.
        return open_ledger(self.config.ledger_url, min(ANSWER_SECONDS, self.config.lease / 3))

    def open_remote_ledger(self) -> HttpsLedger:
        from ..ledger.https import HttpsLedger

        return HttpsLedger(self.config.ledger_url, cast(RemoteLogStore, self.log_store))

    def write_response(self, queues: Iterable[WorkQueue], with_work: Iterable[WorkQueue]) -> None:
        """Keep what the last heartbeat's response lists of queues, for the processes that serve them."""
        text = json.dumps({"queues": list(map(asdict, queues)), "work": list(map(asdict, with_work))})
        if text != self._response:
            write_privately(self.folder / "response.json", text)
            self._response = text
        # After the file: a process that sees the number change reads this response or a later one.
        self.table.header.responses += 1

    def queues(self) -> list[WorkQueue]:
        return self._read_response("queues")

    def queues_with_work(self) -> list[WorkQueue]:
        """Return the queues that the last response named because runs wait in them."""
        return self._read_response("work")

    def _read_response(self, part: str) -> list[WorkQueue]:
        try:
            response = json.loads((self.folder / "response.json").read_text())
        except FileNotFoundError:
            return []
        return [WorkQueue(**queue) for queue in response[part]]


def seal_log(store: LogStore, claim: Claim) -> LogPointer | None:
    """Store the log of an ended attempt; a failure costs the log, not the result."""
    try:
        return store.seal(claim.run_id, claim.claim_seq, claim.tenant, claim.incarnation)
    except OSError:
        logger.exception("The log of run %s cannot be stored", claim.run_id)
        return None


def read_config(folder: Path) -> Config:
    return Config(**json.loads((folder / "config.json").read_text()))


def write_privately(path: Path, text: str) -> None:
    """Write a file whole or not at all, readable for its owner alone: it may hold passwords."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    beside.replace(path)


def default_spool_folder() -> Path:
    if configured := os.environ.get("BEATKEEPER_SPOOL_DIR"):
        return Path(configured).absolute()
    if run_time := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(run_time) / "beatkeeper"
    folder = Path(tempfile.gettempdir()) / f"beatkeeper-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        # Anybody may write to the temporary folder, and the owner of this one could put another in its place.
        raise PermissionError(f"{folder} belongs to another user: name a folder in BEATKEEPER_SPOOL_DIR")
    return folder
