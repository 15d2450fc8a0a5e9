"""What a fleet of idle workers costs the database, and what many running runs and queues cost a pass of dispatch.

WORKERS simulated workers beat through the real ledger, at the pace that a guard's own code gives them, over SESSIONS
sessions: first while they hear wake-ups, then while they hear none.
"""

import heapq
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID, uuid4

from scheduler_project.sdk.guard.held_claims import HeldClaims
from scheduler_project.sdk.guard.pace import Pace
from scheduler_project.sdk.ledger.interface import LOOKS_PER_SECOND, MAX_QUIET, Beat, WorkerInfo
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.shared.folder import Config
from tests.benchmarks import pass_cost, stored
from tests.benchmarks.cpu import meter, sessions_of
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Database, Stage, say
from tests.benchmarks.throughput import DEFINITIONS

KEYS = (
    "idle_cores",
    "idle_ms_per_beat",
    "idle_cores_without_wakeups",
    "mb_per_session",
    "workers",
    "sessions",
    *pass_cost.KEYS,
)
SLOTS, MAX_SESSIONS = 8, 80
# All beat every 0.8 s then, so this is soon known.
DEAF_SECONDS = 10.0
# As many targets as a code base of a moderate size.
TARGETS = [f"billing.tasks.settle_{number}" for number in range(40)]
GOAL_CORES = 0.1
KIB_PER_MB = 1024


def measure(stage: Stage) -> dict[str, Any]:
    workers, seconds = whole("WORKERS", 1000), number("SECONDS", 30.0, 1.0)
    sessions = min(whole("SESSIONS", MAX_SESSIONS), workers, MAX_SESSIONS)
    database = Database(stage.migrated("fleet"), 0)
    try:
        for statement in DEFINITIONS.split(";\n"):
            stored.fill_in(database.session, statement, {"task": TARGETS[0]})
        with fleet(database, workers, sessions) as groups:
            stored.settle(database.session)
            hearing = _beats(database, groups, seconds, hears=True)
            deaf = _beats(database, groups, min(seconds, DEAF_SECONDS), hears=False)
            memory = [mb for pid in sessions_of(database) if (mb := private_mb(pid))]
    finally:
        database.session.close()
    if hearing.cores > GOAL_CORES:
        say(f"NOTE: they use {hearing.cores:.3f} cores, and should use at most {GOAL_CORES}")
    return {
        "idle_cores": round(hearing.cores, 4),
        "idle_beats_per_second": round(hearing.beats_per_second, 1),
        "idle_ms_per_beat": round(hearing.ms_per_beat, 3),
        "idle_cores_without_wakeups": round(deaf.cores, 3),
        "beats_per_second_without_wakeups": round(deaf.beats_per_second),
        "mb_per_session": round(median(memory), 2) if memory else None,
        "workers": workers,
        "sessions": sessions,
        "seconds": seconds,
        **pass_cost.measure_passes(stage),
    }


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    beats: int
    seconds: float

    @property
    def cores(self) -> float:
        return self.cpu_seconds / self.seconds

    @property
    def beats_per_second(self) -> float:
        return self.beats / self.seconds

    @property
    def ms_per_beat(self) -> float:
        return 1000 * self.cpu_seconds / max(1, self.beats)


@dataclass(eq=False)
class IdleWorker:
    config: Config
    incarnation: UUID = field(default_factory=uuid4)
    beats: int = 0

    def __post_init__(self) -> None:
        self.pace = Pace(self.config)

    def beat(self, ledger: PostgresLedger, hears: bool) -> float:
        """Beat as a guard whose worker has nothing in hand; return the pause after it."""
        held = HeldClaims()
        self.pace.begin(held, hears)
        self.beats += 1
        beat = Beat(
            incarnation=self.incarnation,
            number=self.beats,
            answered=self.beats - 1,
            slots=SLOTS,
            busy=0,
            foreign_busy=0,
            held=(),
            draining=False,
            feed_after=self.config.feed_after,
            skew_ms=0.1,
            lease=self.pace.lease,
            idle=self.pace.idle,
        )
        answer = ledger.heartbeat(beat)
        assert answer.known, "the platform holds this worker for lost"
        return self.pace.pause_after(answer, held, feeding=False)


class Group:
    """The workers that share a session, each beating when it is due."""

    def __init__(self, url: str, configs: Sequence[Config]) -> None:
        self.ledger = PostgresLedger(url)
        self.workers = [IdleWorker(config) for config in configs]
        for one in self.workers:
            info = WorkerInfo(
                one.incarnation,
                one.config.name,
                "default",
                one.config.host,
                1,
                SLOTS,
                TARGETS,
                lease=one.config.lease,
            )
            self.ledger.register(info)

    def beat_until(self, hears: bool, begin_at: float, until: float) -> int:
        """Return how many beats there were from `begin_at` on. Before it each worker finds its pace."""
        now = time.monotonic()
        due = [
            (now + one.config.look * place / len(self.workers), place)
            for place, one in enumerate(self.workers)
        ]
        heapq.heapify(due)
        counted = 0
        while due[0][0] < until:
            at, place = due[0]
            time.sleep(max(0.0, at - time.monotonic()))
            began = time.monotonic()
            pause = self.workers[place].beat(self.ledger, hears)
            counted += began >= begin_at
            heapq.heapreplace(due, (began + pause, place))
        return counted


@contextmanager
def fleet(database: Database, workers: int, sessions: int) -> Iterator[list[Group]]:
    """Yield the registered workers, by the session that they share."""
    host = socket.gethostname()
    configs = [
        Config(f"idle-{number}", host, "default", "", SLOTS, "", "", TARGETS) for number in range(workers)
    ]
    groups: list[Group] = []
    try:
        for place in range(sessions):
            groups.append(Group(database.url, configs[place::sessions]))
        yield groups
    finally:
        for group in groups:
            group.ledger.close()


def _beats(database: Database, groups: list[Group], seconds: float, *, hears: bool) -> Cost:
    config, workers = groups[0].workers[0].config, sum(len(group.workers) for group in groups)
    # Until each is idle, knows how long it may be silent, and has been silent for the first time.
    quiet = min(MAX_QUIET, workers / LOOKS_PER_SECOND) if hears else 0.0
    settling = config.beat + 3 * config.look + quiet
    begin_at = time.monotonic() + settling
    with ThreadPoolExecutor(len(groups)) as pool:
        running = [pool.submit(group.beat_until, hears, begin_at, begin_at + seconds) for group in groups]
        time.sleep(max(0.0, begin_at - time.monotonic()))
        spent: Callable[[], dict[str, float]] = meter({"sessions": sessions_of(database)})
        beats = sum(one.result() for one in running)
        cost = Cost(spent().get("sessions", 0.0), beats, seconds)
    words = "hear wake-ups" if hears else "hear no wake-ups"
    say(
        f"idle workers that {words}: {cost.beats_per_second:,.1f} beats a second,"
        f" {cost.ms_per_beat:.2f} ms each, {cost.cores:.3f} cores"
    )
    return cost


def private_mb(pid: int) -> float | None:
    """Return the memory that a process shares with no other; None if that is not known here."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return (sizes["Private_Clean"] + sizes["Private_Dirty"]) / KIB_PER_MB
    return None
