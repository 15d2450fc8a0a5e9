"""The folder a worker, its children and its guard share: configuration, slots, the last answer, the spool."""

from __future__ import annotations

import importlib
import json
import os
import secrets
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlsplit

from .doorbell import Doorbell
from .ledger import ANSWER_SECONDS, Lane, Ledger
from .log_store import LogStore, log_store
from .remote_logs import RemoteLogStore
from .slots import SlotTable
from .spool import Spool

if TYPE_CHECKING:
    from .https import HttpsLedger

POSTGRES_SCHEMES = ("postgresql", "postgres")
HTTP_SCHEMES = ("https", "http")


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
    # Between asking a body to stop and stopping it.
    grace: float = 5.0
    drain: float = 20.0
    feed_after: float = 1.0
    # Between beats while a slot is free: they name runs that wait behind a busy worker or in a lane just made.
    look: float = 0.8
    # The guard asks for work twice a second then.
    without_permits: bool = False
    # How `feed --attached` finds the app again; empty: it cannot.
    app: str = ""
    # The worker's own pool cannot stop a body, so all of them run in children of a feed that it keeps.
    keeps_feed: bool = False
    declarations: Sequence[dict[str, Any]] = field(default_factory=tuple)
    # After so many runs, or with more KiB, a child ends and another takes its place; 0: it stays.
    runs_per_child: int = 0
    memory_per_child: int = 0

    @property
    def counts_runs(self) -> bool:
        """Whoever replaces children looks at them after each run."""
        return bool(self.runs_per_child or self.memory_per_child)

    def __repr__(self) -> str:
        return f"Config(name={self.name!r}, pool={self.pool!r}, slots={self.slots})"


class Runtime:
    def __init__(self, folder: Path, config: Config | None = None) -> None:
        self.folder = folder
        self.config = config or read_config(folder)
        self.table = SlotTable(folder)
        self.spool = Spool(folder / "spool")
        self.log_store: LogStore = self._open_logs()
        self._ledger: tuple[int, Ledger] | None = None
        self._lock = threading.Lock()
        self._answer = ""

    @classmethod
    def create(cls, spool_folder: Path, config: Config) -> Runtime:
        spool_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"worker-{os.getpid()}-", dir=spool_folder))
        write_privately(folder / "config.json", json.dumps(asdict(config)))
        table = SlotTable.create(folder, config.slots)
        table.parent = os.getpid()
        (folder / "spool").mkdir(mode=0o700)
        Doorbell.create(folder)
        return cls(folder, config)

    def ledger(self) -> Ledger:
        """This process' own: connections do not survive a fork."""
        with self._lock:
            if self._ledger is None or self._ledger[0] != os.getpid():
                self._ledger = (os.getpid(), self.open_ledger())
            return self._ledger[1]

    def open_ledger(self) -> Ledger:
        """Another of this process', for a thread that must not wait for the others."""
        if is_remote(self.config.ledger_url):
            return self.open_remote_ledger()
        # Within the fence there must be time for another connection.
        return open_ledger(self.config.ledger_url, min(ANSWER_SECONDS, self.config.lease / 3))

    def open_remote_ledger(self) -> HttpsLedger:
        from .https import HttpsLedger

        return HttpsLedger(self.config.ledger_url, cast(RemoteLogStore, self.log_store))

    def _open_logs(self) -> LogStore:
        if is_remote(self.config.ledger_url):
            return RemoteLogStore(self.folder.parent / "logs")
        return log_store(self.config.log_store_url)

    def write_answer(self, lanes: Iterable[Lane], work: Iterable[Lane]) -> None:
        answer = {"lanes": [asdict(lane) for lane in lanes], "work": [asdict(lane) for lane in work]}
        text = json.dumps(answer)
        if text != self._answer:
            write_privately(self.folder / "answer.json", text)
            self._answer = text
        self.table.answered()

    def lanes(self) -> list[Lane]:
        return self._answered("lanes")

    def work(self) -> list[Lane]:
        """Lanes the last answer named because runs wait in them."""
        return self._answered("work")

    def _answered(self, part: str) -> list[Lane]:
        try:
            answer = json.loads((self.folder / "answer.json").read_text())
        except FileNotFoundError:
            return []
        return [Lane(**lane) for lane in answer[part]]


def read_config(folder: Path) -> Config:
    stored = json.loads((folder / "config.json").read_text())
    if "fed" in stored:
        # By a worker that began before it was upgraded.
        stored["without_permits"] = stored.pop("fed")
    return Config(**stored)


def write_privately(path: Path, text: str) -> None:
    """Whole or not at all, and for nobody else: it may hold passwords."""
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
        # Anybody may write there, and whoever owns the folder can put another in the place of ours.
        raise PermissionError(f"{folder} belongs to another user: name a folder in BEATKEEPER_SPOOL_DIR")
    return folder


def is_remote(url: str) -> bool:
    return url.partition("://")[0] in HTTP_SCHEMES


def open_ledger(url: str, answer_seconds: float = ANSWER_SECONDS) -> Ledger:
    """`https://<key>@host`, `postgresql://…`, or `python://module/function?option=value` for one of one's own."""
    if is_remote(url):
        from .https import HttpsLedger

        return HttpsLedger(url)
    if url.partition("://")[0] in POSTGRES_SCHEMES:
        from .postgres import PostgresLedger

        if not _is_readable(url):
            raise ValueError(
                "The address of the ledger cannot be read: use postgresql://user:password@host:5432/name, with every "
                "character of user and password that is no letter or digit percent-encoded"
            )
        return PostgresLedger(url, answer_seconds=answer_seconds)
    parts = urlsplit(url)
    if parts.scheme == "python":
        make = getattr(importlib.import_module(parts.netloc), parts.path.strip("/"))
        return cast(Ledger, make(**dict(parse_qsl(parts.query))))
    raise ValueError(f"The ledger {parts.scheme!r} is not known: use https://… or postgresql://…")


def _is_readable(url: str) -> bool:
    """What libpq cannot read it would quote, passwords and all."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return False
    return True
