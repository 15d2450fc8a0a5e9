"""Show that each run of many ends once whatever happens to several workers, and that no two tries overlap.

The proof is the lines that the bodies themselves put on disk.
"""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from uuid import UUID

import pytest

from jobs.models import Job
from jobs.services.definition import edit_job
from tests.support.factories import make_tenant
from tests.support.network import Forwarder
from tests.support.servers.postgres import PrivatePostgres
from tests.system import crowd
from tests.system.platform import LEASE, RECOVERY, Platform, Row, Worker, our_connection, send

SLOTS = 4
# Whatever happens to a run it is tried again: the subject is that it is never tried twice at once.
ALWAYS_AGAIN = {"max_attempts": 100, "backoff": "fixed", "base": 0.1, "cap": 0.1}
LONGER_THAN_THE_LEASE = 1.5 * LEASE
KILLS_PER_SECOND = 1.0
BATCH_OF_SEVERAL = """
SELECT FROM beatkeeper_live_run WHERE state = 'running'
GROUP BY worker, left(claim_token::text, -2) HAVING count(DISTINCT tenant_id) > 1
"""
KINDS = ["child", "child", "guard", "parent", "worker"]
# Both at work for that long after the second began: many lines of the first would show it.
SIDE_BY_SIDE = 2.0


@dataclass
class Size:
    runs: int
    per_second: int
    workers: int
    # Of kills.
    seconds: float
    # While others are killed, of workers in the middle of the crowd's runs.
    cuts: int
    freezes: int
    # How long a worker is cut off or frozen while nobody else is touched.
    alone: float
    # With a queue each, in one pool.
    tenants: int = 1
    # Seconds between two runs of a job.
    every: int = 1


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
        # It is only beginning, or has just come to its end.
        with suppress(FileNotFoundError, ValueError):
            return bool(worker.table.header.guard[0] and worker.children())
        return False


@dataclass
class Chaos:
    """Kills what it chooses, and has what it killed replaced."""

    platform: Platform
    chance: random.Random
    members: list[Member] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def start_worker(self, name: str = "") -> None:
        way = Forwarder(self.platform.database_url)
        env = {"BEATKEEPER_DATABASE_URL": way.url, "SAMPLE_CROWD": str(self.platform.folder / "crowd")}
        self.members.append(Member(self.platform.worker(slots=SLOTS, name=name, **env), way))

    def one(self, suits: Callable[[Member], object] = lambda member: True) -> Member:
        def chosen() -> Member | None:
            ready = [one for one in self.members if not one.spared and one.at_work() and suits(one)]
            return self.chance.choice(ready) if ready else None

        return self.platform.wait(chosen, 60, "a worker that may be killed")

    def kill_something(self) -> None:
        member = self.one()
        what = self.chance.choice(KINDS)
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
    def frozen(self, member: Member) -> Iterator[None]:
        """Its parent and its guard: what they run must end itself."""
        stopped = [member.worker.pid, member.worker.guard]
        with self.spare(member):
            send(signal.SIGSTOP, *stopped)
            self.done.append("frozen")
            yield
            send(signal.SIGCONT, *stopped)

    @contextmanager
    def cut_off(self, member: Member) -> Iterator[None]:
        """From its ledger alone: its guard must end what it runs."""
        with self.spare(member), member.way.swallowing():
            self.done.append("cut off")
            yield

    @contextmanager
    def spare(self, member: Member) -> Iterator[None]:
        member.spared = True
        yield
        member.spared = False

    def go_on(self, seconds: float) -> None:
        """Kill about one process a second, of whatever may be killed."""
        self.seconds += seconds
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.kill_something()
            pause = time.monotonic() + self.chance.expovariate(KILLS_PER_SECOND)
            self.platform.wait(lambda at=pause: time.monotonic() > at, 60, "the next kill")  # type: ignore[misc]


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(
            Size(
                runs=300, per_second=15, workers=3, seconds=0, cuts=0, freezes=0, alone=LONGER_THAN_THE_LEASE
            ),
            id="short",
        ),
        pytest.param(
            Size(
                runs=300,
                per_second=25,
                workers=3,
                seconds=0,
                cuts=0,
                freezes=0,
                alone=LONGER_THAN_THE_LEASE,
                tenants=50,
                every=2,
            ),
            id="50 tenants",
        ),
        pytest.param(
            Size(runs=20_000, per_second=100, workers=4, seconds=120, cuts=2, freezes=1, alone=3 * LEASE),
            id="20,000 runs",
            marks=pytest.mark.chaos,
        ),
    ],
)
def test_each_run_of_a_crowd_ends_once_and_no_two_tries_overlap(
    platform_with_own_database: Platform,
    private_postgres: PrivatePostgres,
    capsys: pytest.CaptureFixture[str],
    size: Size,
) -> None:
    platform = platform_with_own_database
    (platform.folder / "crowd").mkdir()
    chaos = Chaos(platform, random.Random(size.runs))
    for _ in range(2):
        platform.scheduler()
    for _ in range(size.workers):
        chaos.start_worker()
    # First, while nobody else is silent: else recovery would wait for one more lease before it trusts silence. And no
    # report is cut in two: the locks of its session would keep recovery waiting for as long as the cut lasts.
    its_runs_go_elsewhere(chaos, chaos.cut_off, size)
    its_runs_go_elsewhere(chaos, chaos.frozen, size)
    with our_connection():
        tenants = [platform.tenant, *(make_tenant() for _ in range(1, size.tenants))]
    jobs = [
        platform.post(tenant, schedule={"every": size.every}, task="tests.crowds", retry=ALWAYS_AGAIN)
        for tenant in islice(cycle(tenants), size.per_second * size.every)
    ]
    platform.wait(lambda: ended(platform) > size.per_second, 60, "load")
    if size.tenants > 1:
        platform.wait(lambda: platform.rows(BATCH_OF_SEVERAL), 60, "a batch with runs of several tenants")

    for _ in range(size.cuts):
        with chaos.cut_off(chaos.one()):
            chaos.go_on(LONGER_THAN_THE_LEASE)
    for _ in range(size.freezes):
        with chaos.frozen(chaos.one(lambda member: has_claims(platform, member))):
            chaos.go_on(LONGER_THAN_THE_LEASE)
    private_postgres.stop()
    chaos.go_on(LONGER_THAN_THE_LEASE)
    private_postgres.start()
    while chaos.seconds < size.seconds or made(platform) < size.runs or not set(KINDS) <= set(chaos.done):
        chaos.go_on(1.0)

    plan_nothing_more(jobs)
    # What waited while everything was being killed has to be worked off first.
    platform.wait(lambda: not live(platform), 2 * RECOVERY + size.runs / 50, "all runs to end")
    check(platform, size)
    tries = count(platform, "SELECT count(*) FROM beatkeeper_attempt")
    with capsys.disabled():
        sys.stdout.write(f"\n{made(platform):,} runs in {tries:,} tries; {dict(Counter(chaos.done))}\n")


def its_runs_go_elsewhere(
    chaos: Chaos, away: Callable[[Member], AbstractContextManager[None]], size: Size
) -> None:
    """Take a worker away, with bodies that would go on for as long, until others have had its runs for a while.

    Without a fence these lines overlap; that they could is what is waited for.
    """
    platform = chaos.platform
    gate = platform.folder / f"gate-{len(chaos.done)}"
    job = platform.run_often(
        size.workers, task="tests.crowds", until=str(gate), retry=ALWAYS_AGAIN, priority=1000
    )
    member = chaos.one(lambda one: at_work_on(platform, job, one.worker.table.header.incarnation))
    lost_by = member.worker.table.header.incarnation
    with away(member):
        # Others may have it sooner; what is asked for is an absence longer than the lease.
        began = time.monotonic()
        platform.wait(lambda: time.monotonic() > began + size.alone, 60, "a worker to be away for long")
        platform.wait(lambda: others_work_on(platform, job, lost_by), 60, "others to run what it has lost")
    gate.touch()


def has_claims(platform: Platform, member: Member) -> bool:
    claims = "SELECT FROM beatkeeper_live_run WHERE state = 'running' AND worker = %s LIMIT 1"
    return bool(platform.rows(claims, member.worker.table.header.incarnation))


def at_work_on(platform: Platform, job: Job, incarnation: UUID) -> bool:
    return any(
        run["worker"] == incarnation and last_try(platform, run) is not None for run in platform.live(job)
    )


def others_work_on(platform: Platform, job: Job, lost_by: UUID) -> bool:
    """And have for so long that a body left behind would have been seen beside theirs."""
    lost = platform.rows(
        "SELECT run_id FROM beatkeeper_attempt WHERE worker = %s AND outcome = 'lost'", lost_by
    )
    elsewhere = [
        last_try(platform, run)
        for run in platform.live(job)
        if run["worker"] not in (None, lost_by) and {"run_id": run["id"]} in lost
    ]
    return any(one is not None and one.last_seen_at > one.started_at + SIDE_BY_SIDE for one in elsewhere)


def last_try(platform: Platform, run: Row) -> crowd.Try | None:
    """Return what the live claim's body has written, if it has begun."""
    path = platform.folder / "crowd" / str(run["id"])
    found = crowd.tries(path) if path.exists() else []
    return next((one for one in found if one.claim_seq == run["claim_seq"]), None)


def check(platform: Platform, size: Size) -> None:
    runs = {str(run["id"]): run for run in platform.rows("SELECT id, state, attempts FROM beatkeeper_run")}
    files = {path.name: path for path in (platform.folder / "crowd").iterdir()}
    assert len(runs) >= size.runs
    # Nobody may cancel or skip them, and nobody gives up on them.
    assert {run["state"] for run in runs.values()} == {"succeeded"}
    assert set(runs) == set(files)
    overlaps = [overlap for path in files.values() for overlap in crowd.overlaps(path)]
    assert not overlaps, "\n".join(overlaps)
    successes = platform.rows("SELECT run_id, claim_seq FROM beatkeeper_attempt WHERE outcome = 'succeeded'")
    assert len(successes) == len(runs)
    for success in successes:
        tries = {one.claim_seq: one for one in crowd.tries(files[str(success["run_id"])])}
        assert tries[success["claim_seq"]].ended, f"{success} was never at its end"


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


@pytest.mark.parametrize("last_line", ["alive", "end"])
def test_the_check_sees_an_overlap(tmp_path: Path, last_line: str) -> None:
    """Also of one that was killed before it came to its end."""
    path = tmp_path / "run"
    lines = [("start", 1, 10.0), ("start", 2, 11.0), (last_line, 1, 11.5), ("end", 2, 12.0)]
    path.write_text(
        "".join(
            f'{{"event": "{event}", "claim_seq": {claim_seq}, "pid": 1, "at": {at}}}\n'
            for event, claim_seq, at in lines
        )
    )
    assert crowd.overlaps(path) == [
        f"run: claim 1 was at work 0.500 s into {crowd.tries(path)[1]}",
    ]
