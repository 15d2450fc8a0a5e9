"""Real worker processes over a ledger in a file, with short leases so that what takes a minute takes seconds."""

import os
import signal
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from scheduler_project.sdk.logs.folder import FolderLogStore
from scheduler_project.sdk.outcomes import LogPointer
from scheduler_project.sdk.process import processes as os_processes
from scheduler_project.sdk.shared.slots import SlotTable
from scheduler_project.sdk.shared.spool import Spool
from tests.sdk.fake_ledger import FakeLedger
from tests.support.processes import Processes, RealProcess
from tests.support.sample_tasks import journal
from tests.support.waiting import wait_until

LEASE, BEAT, MARGIN, GRACE = 4.0, 0.3, 1.0, 0.5


class Stage:
    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes = processes
        self.ledger = FakeLedger(str(folder / "ledger"))
        self.spool = folder / "spool"
        self.journal_path = folder / "journal"
        self.logs = FolderLogStore(self.spool / "logs")

    def environment(self, **changes: str) -> dict[str, str]:
        return {
            "BEATKEEPER_DATABASE_URL": self.ledger.url,
            "BEATKEEPER_SPOOL_DIR": str(self.spool),
            "BEATKEEPER_LEASE_SECONDS": str(LEASE),
            "BEATKEEPER_BEAT_SECONDS": str(BEAT),
            "BEATKEEPER_FENCE_MARGIN_SECONDS": str(MARGIN),
            "BEATKEEPER_GRACE_SECONDS": str(GRACE),
            "BEATKEEPER_DRAIN_SECONDS": "10",
            "SAMPLE_JOURNAL": str(self.journal_path),
            **changes,
        }

    def feed(self, slots: int = 1, **changes: str) -> RealProcess:
        worker = self.processes.python(
            *(
                "scheduler_project.sdk.worker.feed",
                "--app",
                "tests.support.sample_tasks",
                "--slots",
                str(slots),
            ),
            env=self.environment(**changes),
            name="feed",
        )
        wait_until(lambda: self.ledger.workers() or not worker.is_alive(), 30, "a registered worker")
        assert worker.is_alive(), worker.text()
        return worker

    # What happened.

    def events(self, event: str, run: UUID | None = None) -> list[dict[str, Any]]:
        entries = [entry for entry in journal(self.journal_path) if entry["event"] == event]
        return [entry for entry in entries if run is None or entry["run"] == str(run)]

    def wait_for_event(self, event: str, run: UUID, count: int = 1) -> dict[str, Any]:
        wait_until(lambda: len(self.events(event, run)) >= count, 20, f"{event} of {run}")
        return self.events(event, run)[-1]

    def wait_for_end(self, run: UUID, count: int = 1, timeout: float = 20) -> dict[str, Any]:
        wait_until(lambda: len(self.ledger.ends(run)) >= count, timeout, f"end {count} of {run}")
        return self.ledger.ends(run)[count - 1]

    def log_of(self, end: dict[str, Any]) -> str:
        return self.logs.read(LogPointer(**end["log"])).decode()

    def table(self) -> SlotTable:
        [folder] = self.spool.glob("worker-*")
        return SlotTable(folder)

    def worker_spool(self) -> Spool:
        [folder] = self.spool.glob("worker-*")
        return Spool(folder / "spool")

    def guard_pid(self) -> int:
        return self.table().header.guard[0]


def gone(pid: int) -> bool:
    found = os_processes.status(pid)
    return found is None or found[0] in os_processes.DEAD_STATES


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def cpu_share(pid: int) -> float:
    """Of one CPU, over the next three seconds."""
    before, since = cpu_seconds(pid), time.monotonic()
    time.sleep(3)
    return (cpu_seconds(pid) - before) / (time.monotonic() - since)


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
