"""Nobody starves (promise 6): not under an endless flood of what is more urgent, and not beside a neighbour's backlog.

All instants are the database's: when a run was due, when it was made, when it started.
"""

import signal
from datetime import timedelta
from statistics import median
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.conf import LazySettings

from jobs.models import Job, Pool, Tenant
from runs.models import Queue
from runs.services.runs import run_now
from tests.support.factories import make_tenant, make_worker
from tests.system.flood import endless, pour
from tests.system.platform import Platform, Row, our_connection, send

BOUND = 3
SLOTS = 4
BACKLOG = 50_000
# Ready at any time: more than a window, and worked off in less than the bound.
LEVEL = 24
BODY = 0.1
# A machine of two cores does other things too; what must not happen takes for ever.
SLACK = 7.0


SLEEPS = "tests.sleeps"


def post(platform: Platform, tenant: Tenant | None = None, **spec: Any) -> Job:
    return platform.post(tenant, task=SLEEPS, **spec)


def ask(platform: Platform, job: Job) -> None:
    with our_connection():
        run_now(job, request=uuid4().bytes)


def live_in(platform: Platform, job: Job, state: str) -> int:
    query = "SELECT count(*) AS count FROM beatkeeper_live_run WHERE job_id = %s AND state = %s"
    return int(platform.rows(query, job.pk, state)[0]["count"])


@pytest.fixture(autouse=True)
def _exported(platform: Platform) -> None:
    Pool.objects.update(exported_tasks=[SLEEPS])


@pytest.fixture
def small_bound(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.STARVATION_BOUND_SECONDS = BOUND
    monkeypatch.setenv("BEATKEEPER_STARVATION_BOUND", str(BOUND))


@pytest.mark.usefixtures("small_bound")
class TestUnderAnEndlessFlood:
    """Of priority 1000 in the same queue: a run of priority 0 starts within the bound and one window."""

    def test_a_run_that_comes_into_the_flood_starts(self, platform: Platform) -> None:
        urgent, patient = self.jobs(platform)
        platform.scheduler()
        platform.worker(slots=SLOTS).wait_until_known()
        with endless(platform.database_url, urgent, BOUND, LEVEL) as flood:
            platform.wait(lambda: len(platform.finished(urgent)) > 2 * SLOTS, 40, "the flood to run")
            ask(platform, patient)
            run = self.run_of(platform, patient)
            assert flood.dry == 0, "the flood ran dry"
        self.assert_in_time(platform, run)

    def test_a_run_that_was_queued_as_the_flood_began_starts(self, platform: Platform) -> None:
        """Whoever claims takes the lowest rank that is queued: the flood goes past it, but not for ever."""
        urgent, patient = self.jobs(platform)
        platform.scheduler()
        worker = platform.worker(slots=SLOTS)
        worker.wait_until_known()
        send(signal.SIGSTOP, *worker.whole())
        # Dispatch queues as much as living slots can take: more than the real ones can take at once.
        make_worker(platform.pool, slots=2 * SLOTS, known_targets=[SLEEPS])
        ask(platform, patient)
        platform.wait(lambda: live_in(platform, patient, "queued"), 20, "the run to be queued")
        with endless(platform.database_url, urgent, BOUND, LEVEL) as flood:
            platform.wait(lambda: live_in(platform, urgent, "queued") > SLOTS, 20, "the flood to be queued")
            send(signal.SIGCONT, *worker.whole())
            run = self.run_of(platform, patient)
            assert flood.dry == 0, "the flood ran dry"
        self.assert_in_time(platform, run)

    def jobs(self, platform: Platform) -> tuple[Job, Job]:
        return post(platform, priority=1000, seconds=BODY), post(platform, priority=0, seconds=BODY)

    def run_of(self, platform: Platform, job: Job) -> Row:
        return platform.run_of(job, "succeeded", timeout=60)

    def assert_in_time(self, platform: Platform, run: Row) -> None:
        due_at = run["planned_at"]
        assert (run["started_at"] - due_at).total_seconds() < BOUND + SLACK
        before = platform.rows(STARTED_BEFORE, run["started_at"], due_at)
        # The flood went first while it was more urgent; what became due after the bound did not.
        assert len(before) >= SLOTS
        too_late = [other for other in before if other["planned_at"] > due_at + timedelta(seconds=BOUND)]
        assert len(too_late) <= SLOTS, too_late


# Of the flood, what started while the run waited.
STARTED_BEFORE = """
SELECT id, planned_at
FROM (SELECT id, planned_at, priority, started_at FROM beatkeeper_run WHERE started_at IS NOT NULL
      UNION ALL
      SELECT id, planned_at, priority, started_at FROM beatkeeper_live_run WHERE started_at IS NOT NULL) run
WHERE priority = 1000 AND started_at < %s AND started_at > %s
"""


class TestBesideABacklog:
    """Of 50,000 ready runs of another tenant, with every slot it may have full of its 10-minute runs."""

    @pytest.mark.parametrize("slots", [2, SLOTS])
    def test_a_tenant_with_one_job_starts_within_a_second(self, platform: Platform, slots: int) -> None:
        modest = make_tenant()
        job = post(platform, modest, seconds=0)
        greedy = self.fill(platform, slots)
        assert live_in(platform, greedy, "ready") > BACKLOG - 2 * slots
        assert median(self.waits(platform, job, 5)) < 1.0

    def test_a_tenant_that_was_never_seen_there_starts_within_a_second(self, platform: Platform) -> None:
        make_tenant()
        self.fill(platform, SLOTS)
        with our_connection():
            newcomer = make_tenant()
        job = post(platform, newcomer, seconds=0)
        assert not Queue.objects.filter(tenant=newcomer).exists()
        first = self.waits(platform, job, 1)
        # Its queue is made on the way.
        assert first[0] < SLACK
        assert median(self.waits(platform, job, 3)) < 1.0

    @pytest.mark.parametrize("pool", ["prefork", "threads"])
    def test_a_backlog_of_short_runs_delays_nobody(self, platform: Platform, pool: str) -> None:
        """Of thousands, on one worker: its slots are free again all the time, and not for one tenant alone."""
        modest = make_tenant()
        job, greedy = post(platform, modest, seconds=0), post(platform, seconds=0.01)
        with psycopg.connect(platform.database_url, autocommit=True) as session:
            pour(session, greedy, BACKLOG)
        platform.scheduler()
        platform.worker(slots=2, pool=pool).wait_until_known()
        platform.wait(lambda: platform.finished(greedy), 40, "the backlog to begin")
        self.waits(platform, job, 1)
        assert median(self.waits(platform, job, 5)) < 1.5
        assert live_in(platform, greedy, "ready"), "the backlog lasts"

    def fill(self, platform: Platform, slots: int) -> Job:
        greedy = post(platform, seconds=600, timeout="PT20M")
        with psycopg.connect(platform.database_url, autocommit=True) as session:
            pour(session, greedy, BACKLOG)
        platform.scheduler()
        platform.worker(slots=slots).wait_until_known()
        platform.wait(lambda: live_in(platform, greedy, "running") == slots - 1, 40, "full slots")
        return greedy

    def waits(self, platform: Platform, job: Job, times: int) -> list[float]:
        """Of runs one after the other: from when each was asked for until it started."""
        found = []
        for _ in range(times):
            ask(platform, job)
            platform.wait(lambda: not platform.live(job), 30, "it to end")
            run = platform.finished(job)[-1]
            found.append((run["started_at"] - run["created_at"]).total_seconds())
        return found
