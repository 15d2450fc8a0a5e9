"""The breaker of a job: it opens, holds, tries and closes, and says so wherever somebody asks."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client

from auditlog.models import AuditEntry
from jobs.models import Job, JobStatus, Role
from jobs.services.definition import edit_job
from runs.models import Breaker, BreakerState, JobGate, LiveRun, NodeState
from runs.scheduler.dispatch.dispatch import dispatch_pool
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.services import breakers
from runs.services import runs as services
from runs.states import LiveState, Trigger
from scheduler_project.sdk.ledger.interface import Claim, Ledger, given_back
from scheduler_project.sdk.outcomes import Outcome, stated_failure
from scheduler_project.sdk.retries import Verdict, verdict_on
from tests.runs.ledger.claims import SUCCESS, claim_next, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_job, make_pool, make_run, make_tenant, make_worker, now, post_job

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
Session = psycopg.Connection[Any]
LATER = timedelta(minutes=6)


@pytest.fixture
def job() -> Job:
    found = make_job(spec={"breaker": {"failures": 3, "cooldown": 300}})
    make_worker(found.pool)
    return found


def end(ledger: Ledger, job: Job, error_class: str = "transient", run: LiveRun | None = None) -> None:
    """One more run of the job that ends so, for good."""
    if run is None:
        make_run(job, LiveState.QUEUED)
    claim = claim_next(ledger, job)
    assert claim is not None
    tell(ledger, claim, failure(error_class), Verdict("dead"))


def failure(error_class: str = "transient") -> Outcome:
    return stated_failure(error_class, "ConnectionError", "no answer", now(), now())


def open_breaker(ledger: Ledger, job: Job) -> Breaker:
    for _ in range(3):
        end(ledger, job)
    return breaker(job)


def breaker(job: Job) -> Breaker:
    return Breaker.objects.get(job=job)


def cool_down(job: Job) -> None:
    Breaker.objects.filter(job=job).update(probe_at=now() - timedelta(seconds=1))


def dispatch(session: Session, job: Job) -> None:
    dispatch_pool(session, job.pool_id, now())


def recover(session: Session) -> None:
    at = now()
    recover_once(session, RecoveryMemory(trusted_from=at - timedelta(seconds=1), last_pass=at), at)


def held(job: Job) -> int:
    return LiveRun.objects.filter(job=job, state="blocked", reason="breaker").count()


def probe_of(session: Session, ledger: Ledger, job: Job) -> Claim:
    """End the cool-down while a run waits: recovery makes it the probe, and a worker has it."""
    make_run(job)
    dispatch(session, job)
    cool_down(job)
    recover(session)
    dispatch(session, job)
    claim = claim_next(ledger, job)
    assert claim is not None and breaker(job).probe == claim.run_id
    return claim


class TestCounting:
    @pytest.mark.parametrize("error_class", ["transient", "timeout", "worker_lost"])
    def test_so_many_failures_in_a_row_open_it(self, ledger: Ledger, job: Job, error_class: str) -> None:
        for number in (1, 2):
            end(ledger, job, error_class)
            assert (breaker(job).state, breaker(job).failures) == (BreakerState.CLOSED, number)
        end(ledger, job, error_class)
        opened = breaker(job)
        assert (opened.state, opened.failures) == (BreakerState.OPEN, 3)
        assert opened.opened_at and opened.probe_at
        assert timedelta(seconds=299) < opened.probe_at - opened.opened_at < timedelta(seconds=301)

    @pytest.mark.parametrize("error_class", ["permanent", "user", "cancelled"])
    def test_what_is_not_the_targets_fault_counts_neither_way(
        self, ledger: Ledger, job: Job, error_class: str
    ) -> None:
        end(ledger, job)
        for _ in range(4):
            end(ledger, job, error_class)
        assert (breaker(job).state, breaker(job).failures) == (BreakerState.CLOSED, 1)

    def test_a_success_ends_the_row(self, ledger: Ledger, job: Job) -> None:
        end(ledger, job)
        end(ledger, job)
        make_run(job, LiveState.QUEUED)
        claim = claim_next(ledger, job)
        assert claim is not None
        tell(ledger, claim, succeeded(), SUCCESS)
        assert breaker(job).failures == 0

    def test_attempts_count_so_one_run_may_open_it(self, ledger: Ledger, job: Job) -> None:
        run = make_run(job, LiveState.QUEUED)
        for _ in range(3):
            claim = claim_next(ledger, job)
            assert claim is not None
            tell(ledger, claim, failure(), verdict_on(failure(), claim.attempt, {"max_attempts": 9}))
            for state in (LiveState.READY, LiveState.QUEUED):
                LiveRun.objects.filter(pk=run.pk).update(state=state, queued_at=now())
        assert breaker(job).state == BreakerState.OPEN

    def test_a_report_sent_twice_counts_once(self, ledger: Ledger, job: Job) -> None:
        make_run(job, LiveState.QUEUED)
        claim = claim_next(ledger, job)
        assert claim is not None
        for _ in range(3):
            tell(ledger, claim, failure(), Verdict("dead"))
        assert breaker(job).failures == 1

    def test_a_failure_of_a_cancelled_run_and_a_give_back_do_not_count(
        self, ledger: Ledger, job: Job
    ) -> None:
        make_run(job, LiveState.QUEUED)
        claim = claim_next(ledger, job)
        assert claim is not None
        ledger.report([given_back(claim)])
        LiveRun.objects.update(state="queued", queued_at=now())
        claim = claim_next(ledger, job)
        assert claim is not None
        LiveRun.objects.update(cancel_requested_at=now())
        assert tell(ledger, claim, failure(), Verdict("dead")) == "cancelled"
        assert breaker(job).failures == 0

    def test_a_worker_that_recovery_finds_lost_counts(self, session: Session, job: Job) -> None:
        worker = make_worker(job.pool, state=NodeState.LOST)
        for _ in range(3):
            make_run(job, LiveState.RUNNING, worker=worker)
        recover(session)
        assert breaker(job).state == BreakerState.OPEN

    def test_another_job_is_not_touched(self, ledger: Ledger, job: Job) -> None:
        other = make_job(job.tenant, job.pool, spec={"breaker": {"failures": 3, "cooldown": 300}})
        open_breaker(ledger, job)
        assert breaker(other).state == BreakerState.CLOSED


class TestHolding:
    def test_dispatch_holds_the_runs_of_an_open_one(self, session: Session, ledger: Ledger, job: Job) -> None:
        open_breaker(ledger, job)
        make_run(job)
        free = make_run(make_job(job.tenant, job.pool))
        dispatch(session, job)
        free.refresh_from_db()
        assert (held(job), free.state) == (1, LiveState.QUEUED)

    def test_a_claim_hands_back_what_was_queued_before_it_opened(
        self, session: Session, ledger: Ledger, job: Job
    ) -> None:
        open_breaker(ledger, job)
        run = make_run(job, LiveState.QUEUED)
        assert claim_next(ledger, job) is None
        run.refresh_from_db()
        assert (run.state, run.attempt, run.claim_seq) == (LiveState.READY, 0, 0)
        dispatch(session, job)
        assert held(job) == 1

    def test_nothing_goes_before_the_cool_down_is_over(
        self, session: Session, ledger: Ledger, job: Job
    ) -> None:
        open_breaker(ledger, job)
        make_run(job)
        dispatch(session, job)
        recover(session)
        assert (held(job), breaker(job).state) == (1, BreakerState.OPEN)

    def test_what_began_before_it_opened_is_not_heard_any_more(
        self, session: Session, ledger: Ledger, job: Job
    ) -> None:
        for _ in range(2):
            make_run(job, LiveState.QUEUED)
        good, bad = claim_next(ledger, job), claim_next(ledger, job)
        assert good is not None and bad is not None
        opened = open_breaker(ledger, job)
        tell(ledger, good, succeeded(), SUCCESS)
        tell(ledger, bad, failure(), Verdict("dead"))
        after = breaker(job)
        assert (after.state, after.probe_at) == (BreakerState.OPEN, opened.probe_at)


class TestProbing:
    def test_after_the_cool_down_one_run_goes_and_the_others_wait(
        self, session: Session, ledger: Ledger, job: Job
    ) -> None:
        open_breaker(ledger, job)
        first, *_ = [make_run(job, planned_at=now() - timedelta(seconds=60 - n)) for n in range(4)]
        dispatch(session, job)
        cool_down(job)
        for _ in range(3):
            recover(session)
            dispatch(session, job)
        assert (breaker(job).state, breaker(job).probe) == (BreakerState.HALF_OPEN, first.run_id)
        assert (held(job), LiveRun.objects.filter(job=job, state="queued").count()) == (3, 1)
        make_run(job, LiveState.QUEUED, rank=-1)
        claim = claim_next(ledger, job)
        assert claim is not None and claim.run_id == first.run_id, "no other may be claimed"

    def test_its_success_closes_it_and_all_go(self, session: Session, ledger: Ledger, job: Job) -> None:
        open_breaker(ledger, job)
        probe = probe_of(session, ledger, job)
        for _ in range(5):
            make_run(job)
        dispatch(session, job)
        assert held(job) == 5
        tell(ledger, probe, succeeded(), SUCCESS)
        after = breaker(job)
        assert (after.state, after.failures, after.opened_at) == (BreakerState.CLOSED, 0, None)
        assert held(job) == 0

    def test_more_than_a_report_lets_go_the_sweep_lets_go(
        self, session: Session, ledger: Ledger, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scheduler_project.sdk.ledger.postgres.MAX_RELEASED", 2)
        open_breaker(ledger, job)
        probe = probe_of(session, ledger, job)
        for _ in range(5):
            make_run(job)
        dispatch(session, job)
        tell(ledger, probe, succeeded(), SUCCESS)
        assert held(job) == 3
        recover(session)
        assert held(job) == 0

    def test_its_failure_opens_it_for_another_cool_down(
        self, session: Session, ledger: Ledger, job: Job
    ) -> None:
        since = open_breaker(ledger, job).opened_at
        probe = probe_of(session, ledger, job)
        tell(ledger, probe, failure(), Verdict("delayed", 5.0))
        after = breaker(job)
        assert (after.state, after.probe, after.opened_at) == (BreakerState.OPEN, None, since)
        assert after.probe_at and after.probe_at > now() + timedelta(seconds=290)

    @pytest.mark.parametrize("how", ["user", "cancelled"])
    def test_a_probe_that_says_nothing_is_followed_by_another(
        self, session: Session, ledger: Ledger, job: Job, how: str
    ) -> None:
        open_breaker(ledger, job)
        probe = probe_of(session, ledger, job)
        second = make_run(job)
        dispatch(session, job)
        tell(ledger, probe, failure(how), Verdict("dead"))
        assert breaker(job).state == BreakerState.HALF_OPEN
        recover(session)
        assert breaker(job).probe == second.run_id

    def test_a_probe_that_is_paused_lets_another_try(
        self, session: Session, ledger: Ledger, job: Job
    ) -> None:
        """Whoever pauses a failing job and then runs it by hand wants to see whether it works again."""
        open_breaker(ledger, job)
        scheduled = [make_run(job, trigger=Trigger.SCHEDULE) for _ in range(2)]
        dispatch(session, job)
        cool_down(job)
        recover(session)
        assert breaker(job).probe == scheduled[0].run_id
        Job.objects.filter(pk=job.pk).update(status=JobStatus.PAUSED)
        by_hand = make_run(job, trigger=Trigger.MANUAL)
        for _ in range(2):
            dispatch(session, job)
        recover(session)
        assert breaker(job).probe == by_hand.run_id
        assert LiveRun.objects.get(pk=by_hand.pk).state == LiveState.READY

    def test_a_probe_that_is_given_back_stays_the_probe(
        self, session: Session, ledger: Ledger, job: Job
    ) -> None:
        open_breaker(ledger, job)
        probe = probe_of(session, ledger, job)
        ledger.report([given_back(probe)])
        dispatch(session, job)
        again = claim_next(ledger, job)
        assert again is not None and again.run_id == probe.run_id

    def test_a_probe_whose_worker_is_lost_opens_it(self, session: Session, ledger: Ledger, job: Job) -> None:
        open_breaker(ledger, job)
        probe = probe_of(session, ledger, job)
        job.pool.nodes.filter(incarnation=probe.incarnation).update(state=NodeState.LOST)
        recover(session)
        assert breaker(job).state == BreakerState.OPEN


class TestSpec:
    def test_a_job_gets_and_loses_its_breaker_with_its_gate(self) -> None:
        job = post_job(breaker={"failures": 2})
        assert (breaker(job).limit, breaker(job).cooldown_ms) == (2, 300_000)
        assert JobGate.objects.filter(job=job).exists()
        edit_job(job, {"breaker": {"failures": 7, "cooldown": "PT1M"}})
        assert (breaker(job).limit, breaker(job).cooldown_ms) == (7, 60_000)
        edit_job(job, {"breaker": None})
        assert not Breaker.objects.exists() and not JobGate.objects.exists()

    def test_an_edit_of_something_else_leaves_it_open(self, ledger: Ledger) -> None:
        job = post_job(breaker={"failures": 1})
        make_run(job, LiveState.QUEUED)
        end(ledger, job, run=LiveRun.objects.get())
        edit_job(job, {"timeout": "PT5M"})
        assert breaker(job).state == BreakerState.OPEN

    def test_without_the_breaker_what_it_held_goes(self, session: Session, ledger: Ledger) -> None:
        job = post_job(breaker={"failures": 1})
        make_worker(job.pool)
        make_run(job, LiveState.QUEUED)
        end(ledger, job, run=LiveRun.objects.get())
        make_run(job)
        dispatch(session, job)
        assert held(job) == 1
        edit_job(job, {"breaker": None})
        assert held(job) == 0


class TestPeople:
    @pytest.fixture
    def caller(self) -> Caller:
        make_pool(slug="default")
        return Caller(make_tenant(slug="acme"), Role.OPERATOR)

    @pytest.fixture
    def broken(self, session: Session, ledger: Ledger, caller: Caller) -> Job:
        job = post_job(caller.tenant, breaker={"failures": 1})
        make_worker(job.pool)
        make_run(job, LiveState.QUEUED)
        end(ledger, job, run=LiveRun.objects.get())
        services.run_now(job)
        dispatch(session, job)
        return job

    def test_it_is_reported_where_somebody_asks(self, caller: Caller, broken: Job) -> None:
        found = caller.get(f"jobs/{broken.pk}/breaker").json()
        assert (found["state"], found["failures"], found["limit"], found["held"]) == ("open", 1, 1, 1)
        said = caller.get(f"jobs/{broken.pk}/explain").json()["obstacles"]
        assert [one["code"] for one in said] == ["breaker", "schedule", "blocked"]
        assert "one may try again" in said[0]["detail"] and said[0]["link"].endswith("/breaker")
        run = caller.get("runs", state="blocked").json()["results"][0]
        assert run["reason"] == "breaker" and "one will try first" in run["reason_text"]

    def test_a_person_closes_it_and_is_in_the_audit_trail(self, caller: Caller, broken: Job) -> None:
        answer = caller.post(f"jobs/{broken.pk}/breaker/close", {"reason": "fixed"})
        assert answer.status_code == 200, answer.content
        assert (answer.json()["state"], answer.json()["held"], held(broken)) == ("closed", 0, 0)
        entry = AuditEntry.objects.get(action="breaker.closed")
        assert (entry.object_id, entry.reason) == (str(broken.pk), "fixed")
        before, after = entry.before or {}, entry.after or {}
        assert (before["state"], after["state"]) == ("open", "closed")
        assert refusal(caller.post(f"jobs/{broken.pk}/breaker/close"), 409)["code"] == "breaker_is_closed"

    def test_who_may_only_look_does_not_close_it(self, caller: Caller, broken: Job) -> None:
        viewer = Caller(caller.tenant, Role.VIEWER)
        assert viewer.get(f"jobs/{broken.pk}/breaker").status_code == 200
        assert viewer.post(f"jobs/{broken.pk}/breaker/close").status_code == 403

    def test_a_job_without_one_and_a_job_of_others_have_none(self, caller: Caller, broken: Job) -> None:
        plain = post_job(caller.tenant)
        for job, who in ((plain, caller), (broken, Caller(make_tenant()))):
            assert who.get(f"jobs/{job.pk}/breaker").status_code == 404
            assert who.post(f"jobs/{job.pk}/breaker/close").status_code == 404

    def test_after_the_probe_is_out_the_words_name_it(self, session: Session, broken: Job) -> None:
        cool_down(broken)
        recover(session)
        found = breaker(broken)
        assert found.state == BreakerState.HALF_OPEN
        assert f"the run {found.probe} tries" in breakers.describe(found)


class TestLists:
    @pytest.fixture
    def broken(self, ledger: Ledger, job: Job) -> Job:
        open_breaker(ledger, job)
        make_job(job.tenant, job.pool, spec={"breaker": {"failures": 3, "cooldown": 300}})
        make_job(job.tenant, job.pool)
        return job

    @pytest.mark.parametrize("state", ["open", "half_open"])
    def test_the_api_lists_the_jobs_that_breakers_hold(self, broken: Job, state: str) -> None:
        Breaker.objects.filter(job=broken).update(state=state, probe=broken.pk)
        caller = Caller(broken.tenant, Role.VIEWER)
        found = caller.get("jobs?held_by=breaker").json()["results"]
        assert [one["id"] for one in found] == [str(broken.pk)]
        assert len(caller.get("jobs").json()["results"]) == 3
        assert Caller(make_tenant(), Role.VIEWER).get("jobs?held_by=breaker").json()["results"] == []
        assert "breaker" in refusal(caller.get("jobs?held_by=mood"), 400, "held_by")["hint"]

    def test_so_does_the_admin_and_says_so_in_the_row(self, broken: Job, staff: Client) -> None:
        every, held = (
            staff.get("/admin/beatkeeper_jobs/job/", query) for query in ({}, {"held_by": "breaker"})
        )
        assert [len(answer.context["cl"].result_list) for answer in (every, held)] == [3, 1]
        assert (
            every.content.decode().count("breaker open") == held.content.decode().count("breaker open") == 1
        )
        breakers.close_breaker(broken)
        after = staff.get("/admin/beatkeeper_jobs/job/", {"held_by": "breaker"})
        assert len(after.context["cl"].result_list) == 0 and "breaker open" not in after.content.decode()

    def test_what_is_closed_is_not_looked_at(self, broken: Job) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        try:
            assert "breaker_not_closed_idx" in breakers.not_closed().values("job").explain()
        finally:
            connection.close()
