"""Many runs, several workers, and everything that can happen to them: each run ends once, and no two tries of one
overlap, by the lines that the bodies themselves put on disk."""

import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jobs.models import Job
from jobs.services import edit_job
from tests.network_cut import Forwarder
from tests.private_postgres import PrivatePostgres
from tests.system import crowd
from tests.system.platform import LEASE, RECOVERY, Platform, Worker, our_connection, send

SLOTS = 4
# Whatever happens to a run it is tried again: the subject is that it is never tried twice at once.
ALWAYS_AGAIN = {"max_attempts": 100, "backoff": "fixed", "base": 0.1, "cap": 0.1}
LONGER_THAN_THE_LEASE = 1.5 * LEASE
KILLS_PER_SECOND = 1.0


@dataclass
class Size:
    runs: int
    per_second: int
    workers: int
    seconds: float
    cuts: int


@dataclass
class Member:
    """A worker whose ledger lies behind a forwarder of its own, which may swallow what it is given."""

    worker: Worker
    way: Forwarder
    # Frozen or cut off just now: to kill it as well would only shorten that.
    spared: bool = False

    def at_work(self) -> bool:
        """All of it has been started."""
        worker = self.worker
        return bool(worker.spool_folders() and worker.table.guard[0] and worker.children())


@dataclass
class Chaos:
    """Kills what it chooses, and has what it killed replaced."""

    platform: Platform
    chance: random.Random
    members: list[Member] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def start_worker(self, name: str = "") -> None:
        way = Forwarder(self.platform.database_url)
        env = {"BEATKEEPER_DATABASE_URL": way.url, "SAMPLE_CROWD": str(self.platform.folder / "crowd")}
        self.members.append(Member(self.platform.worker(slots=SLOTS, name=name, **env), way))

    def one(self) -> Member:
        def chosen() -> Member | None:
            ready = [member for member in self.members if not member.spared and member.at_work()]
            return self.chance.choice(ready) if ready else None

        return self.platform.wait(chosen, 60, "a worker that may be killed")

    def kill_something(self) -> None:
        member = self.one()
        what = self.chance.choice(["child", "child", "guard", "parent", "worker"])
        self.done.append(what)
        worker = member.worker
        if what == "child":
            send(signal.SIGKILL, *worker.children()[:1])
        elif what == "guard":
            send(signal.SIGKILL, worker.guard)
        else:
            worker.kill_whole() if what == "worker" else send(signal.SIGKILL, worker.pid)
            self.members.remove(member)
            self.start_worker(worker.name if self.chance.random() < 0.5 else "")

    @contextmanager
    def one_frozen(self) -> Iterator[None]:
        """Its parent and its guard: what they run must end itself."""
        with self.spare() as member:
            stopped = [member.worker.pid, member.worker.guard]
            send(signal.SIGSTOP, *stopped)
            self.done.append("frozen")
            yield
            send(signal.SIGCONT, *stopped)

    @contextmanager
    def one_cut_off(self) -> Iterator[None]:
        """From its ledger alone."""
        with self.spare() as member, member.way.swallowing():
            self.done.append("cut off")
            yield

    @contextmanager
    def spare(self) -> Iterator[Member]:
        member = self.one()
        member.spared = True
        yield member
        member.spared = False

    def go_on(self, seconds: float) -> None:
        """A kill a second or so, of whatever may be killed."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.kill_something()
            pause = time.monotonic() + self.chance.expovariate(KILLS_PER_SECOND)
            self.platform.wait(lambda at=pause: time.monotonic() > at, 60, "the next kill")  # type: ignore[misc]


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(Size(runs=400, per_second=30, workers=3, seconds=0, cuts=1), id="short"),
        pytest.param(
            Size(runs=20_000, per_second=170, workers=4, seconds=120, cuts=2),
            id="20,000 runs",
            marks=pytest.mark.chaos,
        ),
    ],
)
def test_each_run_of_a_crowd_ends_once_and_no_two_tries_overlap(
    platform_with_own_database: Platform, private_postgres: PrivatePostgres, size: Size
) -> None:
    platform = platform_with_own_database
    (platform.folder / "crowd").mkdir()
    chaos = Chaos(platform, random.Random(size.runs))
    for _ in range(2):
        platform.scheduler()
    for _ in range(size.workers):
        chaos.start_worker()
    jobs = [
        platform.post(schedule={"every": 1}, task="tests.crowds", retry=ALWAYS_AGAIN)
        for _ in range(size.per_second)
    ]
    platform.wait(lambda: ended(platform) > size.per_second, 60, "load")

    began = time.monotonic()
    for _ in range(size.cuts):
        with chaos.one_cut_off():
            chaos.go_on(LONGER_THAN_THE_LEASE)
    with chaos.one_frozen():
        chaos.go_on(LONGER_THAN_THE_LEASE)
    private_postgres.stop()
    chaos.go_on(LONGER_THAN_THE_LEASE)
    private_postgres.start()
    while time.monotonic() - began < size.seconds or made(platform) < size.runs:
        chaos.go_on(1.0)

    plan_nothing_more(jobs)
    # What waited while everything was being killed has to be worked off first.
    platform.wait(lambda: not live(platform), 2 * RECOVERY + size.runs / 50, "all runs to end")
    check(platform, size)
    assert {"cut off", "frozen", "child", "worker"} <= set(chaos.done)


def check(platform: Platform, size: Size) -> None:
    runs = {str(run["id"]): run for run in platform.rows("SELECT id, state, attempts FROM beatkeeper_run")}
    files = {path.name: path for path in (platform.folder / "crowd").iterdir()}
    assert len(runs) >= size.runs
    # Nobody may cancel or skip them, and nobody gives up on them.
    assert {run["state"] for run in runs.values()} == {"succeeded"}
    assert set(runs) == set(files)
    assert not [told for path in files.values() for told in crowd.overlaps(path)]
    successes = platform.rows("SELECT run_id, claim_seq FROM beatkeeper_attempt WHERE outcome = 'succeeded'")
    assert len(successes) == len(runs)
    for success in successes:
        tries = {one.claim_seq: one for one in crowd.tries(files[str(success["run_id"])])}
        assert tries[success["claim_seq"]].ended_at is not None, f"{success} was never at its end"


def plan_nothing_more(jobs: Sequence[Job]) -> None:
    with our_connection():
        for job in jobs:
            edit_job(job, {"schedule": None})


def ended(platform: Platform) -> int:
    return count(platform, "SELECT count(*) FROM beatkeeper_run WHERE state IS NOT NULL")


def made(platform: Platform) -> int:
    return count(platform, "SELECT count(*) FROM beatkeeper_run")


def live(platform: Platform) -> int:
    return count(platform, "SELECT count(*) FROM beatkeeper_live_run")


def count(platform: Platform, query: str) -> int:
    return int(platform.rows(query)[0]["count"])


def test_the_check_sees_an_overlap(tmp_path: Path) -> None:
    path = tmp_path / "run"
    lines = [("start", 1, 10.0), ("start", 2, 11.0), ("end", 1, 11.5), ("end", 2, 12.0)]
    path.write_text(
        "".join(
            f'{{"event": "{event}", "claim_seq": {claim_seq}, "pid": 1, "at": {at}}}\n'
            for event, claim_seq, at in lines
        )
    )
    assert crowd.overlaps(path) == [
        f"run: claim 1 was at work 0.500 s into {crowd.tries(path)[1]}",
    ]
