"""Everybody at once at the gates of a few jobs: limits and waiting are exact at every instant, and all runs end."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from uuid import uuid4

import pytest
from django.db import connections

from jobs.errors import RunIsFinal
from jobs.models import Job
from jobs.services.definition import edit_job
from runs.models import LiveRun, Run
from runs.scheduler.dispatch.dispatch import dispatch_pool
from runs.scheduler.partitions.lock_session import connect
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.scheduler.trigger.trigger import trigger_due
from runs.services.runs import cancel_run, run_now
from runs.states import LiveState, Trigger
from scheduler_project.sdk.ledger.interface import Claim, Ledger, given_back
from scheduler_project.sdk.ledger.postgres import SQL, PostgresLedger
from scheduler_project.sdk.retries import Verdict
from tests.races.staging import Session, dsn, result_after
from tests.runs.ledger.claims import (
    SUCCESS,
    WayToLedger,
    claim_next,
    failed,
    succeeded,
    tell,
    way_to_either_ledger,
)
from tests.runs.ledger.claims import either_ledger as ledger
from tests.runs.ledger.remote import RemoteLedgers
from tests.support.factories import (
    make_job,
    make_pool,
    make_queue,
    make_run,
    make_tenant,
    make_worker,
    now,
    post_job,
)
from tests.support.waiting import wait_until

__all__ = ["ledger", "way_to_either_ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
ALL = range(64)
LIMIT = 2
TIMES = 20
AGAIN = {"max_attempts": 100, "backoff": "fixed", "base": 0.0, "cap": 0.0}

OVER_THE_LIMIT = """
SELECT count(*) FROM beatkeeper_live_run
WHERE job_id = %s AND state IN ('queued', 'running', 'waiting_callback') HAVING count(*) > %s
"""
NOT_ONE_BY_ONE = """
SELECT count(*) FROM beatkeeper_live_run
WHERE job_id = %s AND trigger IN ('schedule', 'catch_up') AND NOT (state = 'blocked' AND reason = 'overlap')
HAVING count(*) > 1
"""
NEXT_TIME = "UPDATE beatkeeper_job_clock SET next_run_at = %s WHERE job_id = %s"


class Crowd:
    """Threads that go on until they are told to stop; the first mistake of any is the test's."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.broken: list[str] = []
        self._threads = ThreadPoolExecutor(16)
        self._futures = []  # type: ignore[var-annotated]

    def repeat(self, begin: Callable[[ExitStack], Callable[[], object]]) -> None:
        def go_on() -> None:
            with ExitStack() as stack:
                stack.callback(connections.close_all)
                act = begin(stack)
                while not self.over.is_set():
                    act()

        self._futures.append(self._threads.submit(go_on))

    def stop(self) -> None:
        self.over.set()
        for future in self._futures:
            future.result(timeout=30)
        self._threads.shutdown()

    # Who is in it.

    def worker(self, job: Job, seed: int, open_ledger: WayToLedger) -> None:
        """Succeeds, fails and gives back, whatever is next in the job's queue."""
        node = make_worker(job.pool, slots=8)
        chance = random.Random(seed)  # noqa: S311 - no secret

        def begin(stack: ExitStack) -> Callable[[], None]:
            own = stack.enter_context(closing(open_ledger()))

            def work() -> None:
                claim = claim_next(own, job, worker=node)
                if claim is not None:
                    _end(own, claim, chance)

            return work

        self.repeat(begin)

    def session(self, name: str, act: Callable[[Session], object]) -> None:
        def begin(stack: ExitStack) -> Callable[[], object]:
            session = stack.enter_context(connect(dsn(), name, 30))
            return lambda: act(session)

        self.repeat(begin)

    def watch(self, statement: str, *values: object) -> None:
        """One snapshot after another of what must never be."""

        def look(session: Session) -> None:
            if session.execute(statement, values).fetchone():
                self.broken.append(f"{statement} {values}")

        self.session("watcher", look)


def _end(own: PostgresLedger | RemoteLedgers, claim: Claim, chance: random.Random) -> None:
    what = chance.random()
    if what < 0.15:
        own.report([given_back(claim)])
    elif what < 0.3:
        tell(own, claim, failed(), Verdict("delayed", 0.01))
    else:
        tell(own, claim, succeeded(), SUCCESS)


def test_limits_and_waiting_are_exact_with_everybody_at_once(way_to_either_ledger: WayToLedger) -> None:
    """Two dispatchers, which production never has, triggers, workers, recovery, cancels, and a limit that is edited."""
    pool, tenant = make_pool(), make_tenant()
    shared = {"tenant": tenant, "pool": pool}
    limited = make_job(**shared, max_concurrency=LIMIT, spec={"retry": AGAIN})  # type: ignore[arg-type]
    waiting = make_job(**shared, spec={"overlap": "buffer_all", "retry": AGAIN})  # type: ignore[arg-type]
    ending = make_job(**shared, max_concurrency=1, spec={"overlap": "cancel_other", "retry": AGAIN})  # type: ignore[arg-type]
    for _ in range(60):
        make_run(limited, trigger=Trigger.MANUAL)
    start = now()
    crowd = Crowd()
    for number in range(4):
        crowd.worker(limited, number, way_to_either_ledger)
    for name in ("first", "second"):
        crowd.session(name, lambda session: dispatch_pool(session, pool.pk, now()))
    memory = RecoveryMemory()
    crowd.session("recovery", lambda session: recover_once(session, memory, now()))
    crowd.session("trigger", lambda session: trigger_due(session, ALL))
    crowd.watch(OVER_THE_LIMIT, limited.pk, LIMIT)
    crowd.watch(OVER_THE_LIMIT, ending.pk, 1)
    crowd.watch(NOT_ONE_BY_ONE, waiting.pk)
    crowd.watch(NOT_ONE_BY_ONE, ending.pk)
    try:
        with connect(dsn(), "times", 30) as times:
            for _ in range(TIMES):
                _next_time(times, [waiting, ending])
                _cancel_one(limited)
        wait_until(lambda: crowd.broken or not LiveRun.objects.exists(), 60, "all runs to end")
    finally:
        crowd.stop()
    assert not crowd.broken
    assert LiveRun.objects.count() == 0
    assert Run.objects.filter(job=waiting, state="succeeded", planned_at__gte=start).count() >= TIMES - 2
    assert Run.objects.filter(job=limited, state__in=["succeeded", "cancelled"]).count() == 60


def _next_time(session: Session, jobs: list[Job]) -> None:
    """Plan a time of its own, once the one before has been triggered."""
    for job in jobs:
        planned_at = now()
        session.execute(NEXT_TIME, [planned_at, job.pk])
        made = Run.objects.filter(job=job, planned_at=planned_at)
        wait_until(made.exists, 20, "the run")


def _cancel_one(job: Job) -> None:
    live = LiveRun.objects.filter(job=job, state=LiveState.BLOCKED).select_related("run").first()
    if live is not None:
        with suppress(RunIsFinal):
            cancel_run(live.run)


class TestEditsOfALimit:
    """A limit is exact from the commit of the edit on, for whoever goes after it; what runs is never stopped for it."""

    def job(self, limit: int | None) -> Job:
        make_pool(slug="default")
        job = post_job(max_concurrency=limit)
        make_worker(job.pool, slots=20)
        for _ in range(6):
            run_now(job, request=uuid4().bytes)
        return job

    def states(self, job: Job) -> dict[str, int]:
        states = list(LiveRun.objects.filter(job=job).values_list("state", flat=True))
        return {state: states.count(state) for state in set(states)}

    def test_a_dispatch_leaves_a_job_alone_whose_limit_is_being_edited(self, first: Session) -> None:
        job = self.job(3)
        with connect(dsn(), "edit", 30) as editing:
            editing.execute("BEGIN")
            editing.execute("UPDATE beatkeeper_job_gate SET max_running = 1 WHERE job_id = %s", [job.pk])
            assert dispatch_pool(first, job.pool_id, now()).queued == 0
            editing.execute("COMMIT")
        assert dispatch_pool(first, job.pool_id, now()).queued == 1

    def test_an_edit_waits_for_the_dispatch_and_holds_for_the_next(
        self, first: Session, second: Session, ledger: Ledger
    ) -> None:
        job = self.job(3)
        first.execute("BEGIN")
        assert dispatch_pool(first, job.pool_id, now()).queued == 3
        result_after(first, lambda: edit_job(job, {"max_concurrency": 1}))
        for left in (2, 1):
            _end_one(ledger, job)
            assert dispatch_pool(second, job.pool_id, now()).queued == 0
            assert self.states(job) == {"blocked": 3, "queued": left}
        _end_one(ledger, job)
        assert dispatch_pool(second, job.pool_id, now()).queued == 1

    def test_a_higher_limit_lets_runs_go_at_once(self, first: Session) -> None:
        job = self.job(1)
        dispatch_pool(first, job.pool_id, now())
        assert self.states(job) == {"queued": 1, "blocked": 5}
        edit_job(job, {"max_concurrency": 4})
        assert self.states(job) == {"queued": 1, "ready": 3, "blocked": 2}

    def test_a_limit_that_comes_counts_what_runs(self, first: Session, ledger: Ledger) -> None:
        job = self.job(None)
        dispatch_pool(first, job.pool_id, now())
        assert self.states(job) == {"queued": 6}
        for _ in range(2):
            run_now(job, request=uuid4().bytes)
        edit_job(job, {"max_concurrency": 2})
        for left in (5, 4, 3, 2):
            _end_one(ledger, job)
            assert dispatch_pool(first, job.pool_id, now()).queued == 0
            assert self.states(job)["queued"] == left
        _end_one(ledger, job)
        assert dispatch_pool(first, job.pool_id, now()).queued == 1

    def test_a_limit_that_goes_frees_all(self, first: Session) -> None:
        job = self.job(1)
        dispatch_pool(first, job.pool_id, now())
        edit_job(job, {"max_concurrency": None})
        assert dispatch_pool(first, job.pool_id, now()).queued == 5
        assert self.states(job) == {"queued": 6}


def test_two_dispatchers_never_pass_a_limit_together(first: Session, second: Session) -> None:
    """The second finds the gate taken, and after the commit counts what the first has marked."""
    job = make_job(max_concurrency=2)
    make_worker(job.pool, slots=20)
    make_queue(job)
    for _ in range(3):
        make_run(job)
    first.execute("BEGIN")
    assert dispatch_pool(first, job.pool_id, now()).queued == 2
    for _ in range(3):
        make_run(job)
    assert dispatch_pool(second, job.pool_id, now()).queued == 0
    first.execute("COMMIT")
    assert dispatch_pool(second, job.pool_id, now()).queued == 0
    assert LiveRun.objects.filter(job=job, state="queued").count() == 2


def test_a_release_of_blocked_runs_and_a_dispatch_count_one_after_the_other(
    first: Session, second: Session, ledger: Ledger
) -> None:
    job = make_job(max_concurrency=1)
    make_run(job, LiveState.QUEUED)
    claim = claim_next(ledger, job, worker=make_worker(job.pool, slots=4))
    assert claim is not None
    make_run(job, LiveState.BLOCKED, reason="concurrency")
    make_run(job)
    second.execute("BEGIN")
    second.execute(SQL["lock_gate"], {"job_id": job.pk})
    assert dispatch_pool(first, job.pool_id, now()).queued == 0
    second.execute("COMMIT")
    tell(ledger, claim, succeeded(), SUCCESS)
    assert dispatch_pool(first, job.pool_id, now()).queued == 1
    assert LiveRun.objects.filter(job=job, state="queued").count() == 1


def _end_one(ledger: Ledger, job: Job) -> None:
    claim = claim_next(ledger, job)
    assert claim is not None
    tell(ledger, claim, succeeded(), SUCCESS)
