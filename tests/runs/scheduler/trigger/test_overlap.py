"""The six overlap policies: what becomes of a time that comes while an earlier run is unfinished (promise 3)."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from jobs.models import Job, Overlap
from jobs.services.definition import edit_job
from jobs.services.status import cancel_job
from runs.models import JobGate, LiveRun, Run
from runs.reasons import Reason
from runs.scheduler.partitions.lock_session import connect
from runs.scheduler.recovery.lost_attempts import fail as fail_claims
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.scheduler.trigger.overlap import (
    GOES,
    WAITS,
    Unfinished,
    decide,
    decide_all,
)
from runs.scheduler.trigger.trigger import Triggered, trigger_due
from runs.services.runs import cancel_run
from runs.states import LiveState, Trigger
from runs.transitions import release_waiting
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.retries import Verdict
from tests.races.staging import Session, dsn
from tests.runs.ledger.claims import DEAD, SUCCESS, claim_next, failed, ledger, succeeded, tell
from tests.support.api_client import Caller
from tests.support.factories import (
    make_due,
    make_finished_run,
    make_job,
    make_run,
    make_tenant,
    make_user,
    make_worker,
    now,
    post_job,
)

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
ALL = range(64)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
BUFFERING = ["buffer_one", "buffer_all"]
ENDING = ["cancel_other", "terminate_other"]


@pytest.fixture
def session() -> Iterator[Session]:
    with connect(dsn(), "overlap", 30) as connection:
        yield connection


def job_with(policy: str, **spec: Any) -> Job:
    return make_job(spec={"overlap": policy, **spec})


def come(session: Session, job: Job, count: int = 1) -> list[Run]:
    """So many planned times of the job come, one after the other."""
    came = []
    for _ in range(count):
        planned_at = make_due(job, now() - SECOND)
        trigger_due(session, ALL)
        came.append(Run.objects.get(job=job, planned_at=planned_at))
    return came


def come_at_once(session: Session, policy: str) -> tuple[Job, Triggered]:
    """Three times that one decision finds due."""
    anchor = now() - 3.5 * SECOND
    job = make_job(
        next_run_at=anchor + SECOND,
        spec={"schedule": {"every": 1}, "anchor_at": anchor, "overlap": policy},
    )
    return job, trigger_due(session, ALL)


def how(run: Run) -> tuple[str, str]:
    """Return the one state of a run, and why."""
    run.refresh_from_db()
    if run.state is not None:
        return run.state, run.reason
    live = LiveRun.objects.get(run=run)
    return live.state, live.reason


class TestDecide:
    @pytest.mark.parametrize("policy", Overlap.values)
    def test_a_time_goes_when_nothing_is_unfinished(self, policy: str) -> None:
        assert decide(policy, False) == GOES

    @pytest.mark.parametrize(
        ("policy", "waiting", "state", "reason"),
        [
            ("skip", False, "skipped", Reason.OVERLAP_SKIPPED),
            ("buffer_one", False, "blocked", "overlap"),
            ("buffer_one", True, "skipped", Reason.OVERLAP_ONE_WAITS),
            ("buffer_all", True, "blocked", "overlap"),
            ("cancel_other", False, "blocked", "overlap"),
            ("terminate_other", True, "blocked", "overlap"),
            ("allow_all", True, "ready", ""),
        ],
    )
    def test_each_policy_has_its_answer(self, policy: str, waiting: bool, state: str, reason: str) -> None:
        decision = decide(policy, True, waiting)
        assert (decision.state or decision.live_state, decision.reason) == (state, reason)

    def test_of_times_that_come_together_the_first_goes_for_the_others(self) -> None:
        reasons = {
            policy: [decision.reason for decision in decide_all(policy, 3, Unfinished())]
            for policy in Overlap.values
        }
        assert reasons == {
            "skip": ["", Reason.OVERLAP_SKIPPED, Reason.OVERLAP_SKIPPED],
            "buffer_one": ["", "overlap", Reason.OVERLAP_ONE_WAITS],
            "buffer_all": ["", "overlap", "overlap"],
            "cancel_other": [Reason.OVERLAP_SUPERSEDED, Reason.OVERLAP_SUPERSEDED, ""],
            "terminate_other": [Reason.OVERLAP_SUPERSEDED, Reason.OVERLAP_SUPERSEDED, ""],
            "allow_all": ["", "", ""],
        }
        assert list(decide_all("buffer_all", 1, Unfinished(True))) == [WAITS]


class TestBuffering:
    def test_buffer_one_lets_one_wait_and_tells_the_others(self, session: Session) -> None:
        job = job_with("buffer_one")
        assert [how(run) for run in come(session, job, 4)] == [
            ("ready", ""),
            ("blocked", "overlap"),
            ("skipped", Reason.OVERLAP_ONE_WAITS),
            ("skipped", Reason.OVERLAP_ONE_WAITS),
        ]

    def test_buffer_all_lets_all_wait(self, session: Session) -> None:
        job = job_with("buffer_all")
        assert [how(run)[0] for run in come(session, job, 4)] == ["ready", "blocked", "blocked", "blocked"]
        assert set(LiveRun.objects.values_list("gated", flat=True)) == {True}

    def test_times_that_come_at_once_wait_for_each_other(self, session: Session) -> None:
        job, done = come_at_once(session, "buffer_all")
        states = LiveRun.objects.filter(job=job).order_by("planned_at").values_list("state", flat=True)
        assert (done.runs, list(states)) == (3, ["ready", "blocked", "blocked"])
        job, done = come_at_once(session, "buffer_one")
        assert (done.runs, done.skipped) == (2, 1)

    @pytest.mark.parametrize("policy", BUFFERING)
    @pytest.mark.parametrize(
        "state", [LiveState.DELAYED, LiveState.QUEUED, LiveState.RUNNING, LiveState.BLOCKED]
    )
    def test_any_unfinished_planned_run_is_waited_for(
        self, session: Session, policy: str, state: str
    ) -> None:
        job = job_with(policy)
        make_run(job, state, trigger=Trigger.CATCH_UP, planned_at=now() - MINUTE)
        assert [how(run) for run in come(session, job)] == [("blocked", "overlap")]

    @pytest.mark.parametrize("policy", BUFFERING)
    @pytest.mark.parametrize("trigger", [Trigger.MANUAL, Trigger.RETRY])
    def test_nobody_waits_for_what_a_person_asked_for(
        self, session: Session, policy: str, trigger: Trigger
    ) -> None:
        job = job_with(policy)
        make_run(job, LiveState.RUNNING, trigger=trigger, planned_at=now() - MINUTE)
        assert [how(run) for run in come(session, job)] == [("ready", "")]

    def test_a_job_without_its_gate_gets_it_back(self, session: Session) -> None:
        """Old code beside ours takes it away with the limit."""
        job = job_with("buffer_one")
        JobGate.objects.all().delete()
        assert [how(run)[0] for run in come(session, job, 2)] == ["ready", "blocked"]
        assert JobGate.objects.get().max_running is None


class TestRelease:
    def test_waiting_runs_go_one_by_one_in_the_order_of_their_times(
        self, session: Session, ledger: PostgresLedger
    ) -> None:
        job = job_with("buffer_all")
        came = come(session, job, 4)
        for number in range(4):
            assert [how(run)[0] for run in came[number:]] == ["ready", *["blocked"] * (3 - number)]
            claim = claim_ready(ledger, job)
            assert claim.run_id == came[number].pk
            tell(ledger, claim, succeeded(), SUCCESS)
        assert {how(run)[0] for run in came} == {"succeeded"}

    def test_a_try_that_fails_is_not_the_end(self, session: Session, ledger: PostgresLedger) -> None:
        job = job_with("buffer_one")
        _, waiting = come(session, job, 2)
        tell(ledger, claim_ready(ledger, job), failed(), Verdict("delayed", 60.0))
        assert how(waiting) == ("blocked", "overlap")

    @pytest.mark.parametrize("verdict", [SUCCESS, DEAD])
    def test_every_end_lets_the_next_one_go(
        self, session: Session, ledger: PostgresLedger, verdict: Verdict
    ) -> None:
        job = job_with("buffer_one")
        _, waiting = come(session, job, 2)
        outcome = succeeded() if verdict is SUCCESS else failed()
        tell(ledger, claim_ready(ledger, job), outcome, verdict)
        assert how(waiting) == ("ready", "")

    def test_a_cancel_of_what_nobody_has_lets_the_next_one_go(self, session: Session) -> None:
        job = job_with("buffer_one")
        first, waiting = come(session, job, 2)
        cancel_run(first)
        assert [how(first)[0], how(waiting)[0]] == ["cancelled", "ready"]

    def test_a_cancel_of_what_waits_lets_nobody_go(self, session: Session) -> None:
        job = job_with("buffer_all")
        first, second, third = come(session, job, 3)
        cancel_run(second)
        assert [how(run)[0] for run in (first, second, third)] == ["ready", "cancelled", "blocked"]

    def test_a_cancelled_job_leaves_nothing_waiting(self, session: Session) -> None:
        job = job_with("buffer_all")
        come(session, job, 3)
        cancel_job(job)
        assert not LiveRun.objects.exists()

    def test_a_lost_worker_lets_the_next_one_go_when_its_run_is_dead(self, session: Session) -> None:
        job = job_with("buffer_one", retry={"max_attempts": 1, "backoff": "fixed", "base": 1.0, "cap": 1.0})
        running = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool))
        [waiting] = come(session, job)
        assert fail_claims(session, {running.run_id: running.claim_seq}, "lost") == {running.run_id: "dead"}
        assert how(waiting) == ("ready", "")

    def test_a_lost_worker_whose_run_is_tried_again_lets_nobody_go(self, session: Session) -> None:
        job = job_with("buffer_one")
        running = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool))
        [waiting] = come(session, job)
        assert fail_claims(session, {running.run_id: running.claim_seq}, "lost") == {
            running.run_id: "delayed"
        }
        assert how(waiting) == ("blocked", "overlap")

    @pytest.mark.parametrize("reason", ["concurrency", "paused"])
    def test_a_run_held_up_for_another_reason_is_waited_for(self, session: Session, reason: str) -> None:
        job = job_with("buffer_all")
        held_up = make_run(job, LiveState.BLOCKED, reason=reason, planned_at=now() - MINUTE)
        [waiting] = come(session, job)
        assert release_waiting(session, [job.pk]) == 0
        LiveRun.objects.filter(pk=held_up.pk).delete()
        assert release_waiting(session, [job.pk]) == 1
        assert how(waiting)[0] == "ready"

    def test_a_run_whose_window_is_not_over_waits_for_that_too(self, session: Session) -> None:
        job = job_with("buffer_all")
        later = now() + MINUTE
        run = make_run(job, LiveState.BLOCKED, reason="overlap", available_at=later)
        assert release_waiting(session, [job.pk]) == 1
        run.refresh_from_db()
        assert (run.state, run.reason, run.wake_at) == ("delayed", "flexible_window", later)

    def test_what_nobody_released_is_found_by_recovery(self, session: Session) -> None:
        """Of many jobs at once: a round of recovery looks at them all, a gate in somebody's hands comes later."""
        jobs = [job_with("buffer_one") for _ in range(230)]
        for job in jobs:
            make_run(job, LiveState.BLOCKED, reason="overlap")
        JobGate.objects.filter(job=jobs[0]).delete()
        memory = RecoveryMemory()
        instant = now()
        while LiveRun.objects.filter(state=LiveState.BLOCKED).exists():
            assert recover_once(session, memory, instant).released
            assert now() < instant + MINUTE
        assert set(LiveRun.objects.values_list("state", flat=True)) == {"ready"}


class TestEndingOthers:
    @pytest.mark.parametrize("policy", ENDING)
    @pytest.mark.parametrize(
        "state", [LiveState.READY, LiveState.QUEUED, LiveState.DELAYED, LiveState.BLOCKED]
    )
    def test_what_no_worker_has_ends_at_once_and_the_new_one_goes(
        self, session: Session, policy: str, state: str
    ) -> None:
        job = job_with(policy)
        earlier = make_run(job, state, planned_at=now() - MINUTE)
        [new] = come(session, job)
        assert how(new) == ("ready", "")
        assert how(earlier.run) == ("cancelled", Reason.OVERLAP_SUPERSEDED)

    @pytest.mark.parametrize("policy", ENDING)
    def test_a_running_one_is_asked_to_end_and_waited_for(
        self, session: Session, ledger: PostgresLedger, policy: str
    ) -> None:
        job = job_with(policy)
        make_run(job, LiveState.QUEUED, planned_at=now() - MINUTE)
        claim = claim_next(ledger, job)
        assert claim is not None
        [new] = come(session, job)
        asked = LiveRun.objects.get(pk=claim.run_id)
        assert asked.cancel_requested_at is not None and asked.cancel_reason == Reason.OVERLAP_SUPERSEDED
        assert asked.terminate == (policy == "terminate_other")
        assert how(new) == ("blocked", "overlap")
        assert tell(ledger, claim, failed(), Verdict("delayed", 60.0)) == "cancelled"
        assert how(new) == ("ready", "")

    @pytest.mark.parametrize("policy", ENDING)
    def test_a_third_time_takes_the_place_of_the_one_that_waits(self, session: Session, policy: str) -> None:
        job = job_with(policy)
        running = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool), planned_at=now() - MINUTE)
        second, third = come(session, job, 2)
        assert how(second) == ("cancelled", Reason.OVERLAP_SUPERSEDED)
        assert how(third) == ("blocked", "overlap")
        assert fail_claims(session, {running.run_id: running.claim_seq}, "lost") == {
            running.run_id: "cancelled"
        }
        assert how(third) == ("ready", "")

    def test_of_times_that_come_at_once_the_last_one_goes(self, session: Session) -> None:
        job, done = come_at_once(session, "cancel_other")
        assert (done.runs, done.skipped) == (1, 2)
        last = Run.objects.filter(job=job).order_by("id").last()
        assert last is not None and last.pk == LiveRun.objects.get(job=job).pk

    @pytest.mark.parametrize("policy", ENDING)
    def test_very_many_are_ended_in_several_passes(
        self, session: Session, monkeypatch: pytest.MonkeyPatch, policy: str
    ) -> None:
        """A long queue whose job no longer buffers must not cost the other jobs a pass that never ends."""
        monkeypatch.setattr("runs.scheduler.trigger.overlap.MAX_ENDED", 2)
        job = job_with(policy)
        running = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool), planned_at=now() - MINUTE)
        for number in range(3):
            make_run(job, LiveState.BLOCKED, reason="overlap", planned_at=now() - (10 + number) * SECOND)
        make_due(job)
        assert trigger_due(session, ALL).runs == 0
        assert LiveRun.objects.filter(job=job).count() == 2
        assert trigger_due(session, ALL).runs == 1
        assert trigger_due(session, ALL).runs == 0
        left = set(LiveRun.objects.filter(job=job).values_list("state", "reason", "cancel_reason"))
        assert left == {("running", "", Reason.OVERLAP_SUPERSEDED), ("blocked", "overlap", "")}
        assert LiveRun.objects.get(pk=running.pk).terminate == (policy == "terminate_other")

    def test_manual_runs_are_left_alone(self, session: Session) -> None:
        job = job_with("cancel_other")
        manual = make_run(job, LiveState.READY, trigger=Trigger.MANUAL, planned_at=now() - MINUTE)
        come(session, job)
        assert how(manual.run) == ("ready", "")

    def test_a_time_that_has_its_run_already_ends_nobody(self, session: Session) -> None:
        job = job_with("cancel_other")
        running = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool), planned_at=now() - MINUTE)
        planned_at = now() - SECOND
        make_finished_run(job, planned_at=planned_at)
        make_due(job, planned_at)
        assert trigger_due(session, ALL).runs == 0
        assert LiveRun.objects.get(pk=running.pk).cancel_requested_at is None

    def test_a_run_that_a_person_cancelled_can_still_be_terminated(self, session: Session) -> None:
        job = job_with("terminate_other")
        running = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool), planned_at=now() - MINUTE)
        cancel_run(running.run, "asked by a person")
        running.refresh_from_db()
        assert not running.terminate
        since = running.cancel_requested_at
        come(session, job)
        running.refresh_from_db()
        assert running.terminate
        assert (running.cancel_requested_at, running.cancel_reason) == (since, "cancelled: asked by a person")

    def test_a_cancel_by_a_person_never_terminates(self, session: Session) -> None:
        job = job_with("cancel_other")
        running = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool), planned_at=now() - MINUTE)
        come(session, job, 2)
        running.refresh_from_db()
        assert running.cancel_requested_at is not None and not running.terminate


class TestWords:
    def test_the_api_and_the_page_of_a_run_say_what_it_waits_for(self, client: Client) -> None:
        tenant = make_tenant()
        run = make_run(post_job(tenant, overlap="buffer_one"), LiveState.BLOCKED, reason="overlap")
        body = Caller(tenant).get(f"runs/{run.pk}").json()
        assert (body["state"], body["reason"]) == ("blocked", "overlap")
        assert body["reason_text"] == "waits until the earlier planned run of its job has ended"
        client.force_login(make_user(is_staff=True, is_superuser=True))
        page = client.get(f"/admin/beatkeeper_runs/run/{run.pk}/change/").content.decode()
        # The page begins a sentence with it.
        assert body["reason_text"][1:] in page

    def test_a_cancel_by_a_policy_says_why(self) -> None:
        live = make_run(make_job(), LiveState.RUNNING)
        live.cancel_requested_at, live.cancel_reason = now(), Reason.OVERLAP_SUPERSEDED
        assert live.describe_reason().startswith("to be asked to stop, which its worker has not confirmed")
        live.cancel_acknowledged_at = now()
        assert live.describe_reason() == "asked to stop: a later time took its place"
        live.terminate = True
        assert live.describe_reason().startswith("killed: ")


class TestEdits:
    def test_a_policy_comes_and_goes_with_its_gate(self) -> None:
        job = post_job(overlap="buffer_all")
        assert JobGate.objects.get(job=job).max_running is None
        edit_job(job, {"max_concurrency": 3})
        assert JobGate.objects.get(job=job).max_running == 3
        edit_job(job, {"overlap": "skip"})
        assert JobGate.objects.get(job=job).max_running == 3
        edit_job(job, {"max_concurrency": None})
        assert not JobGate.objects.filter(job=job).exists()

    def test_runs_that_wait_go_on_one_by_one_under_a_policy_without_waiting(
        self, session: Session, ledger: PostgresLedger
    ) -> None:
        job = post_job(schedule={"every": 3600}, overlap="buffer_all")
        came = come(session, job, 3)
        edit_job(job, {"overlap": "skip"})
        assert [how(run)[0] for run in came] == ["ready", "blocked", "blocked"]
        for number in range(3):
            claim = claim_ready(ledger, job)
            assert claim.run_id == came[number].pk
            tell(ledger, claim, succeeded(), SUCCESS)
        assert {how(run)[0] for run in came} == {"succeeded"}

    def test_nothing_waits_any_more_when_all_are_allowed(self, session: Session) -> None:
        job = post_job(schedule={"every": 3600}, overlap="buffer_all")
        came = come(session, job, 3)
        edit_job(job, {"overlap": "allow_all"})
        assert [how(run)[0] for run in came] == ["ready", "ready", "ready"]
        assert not JobGate.objects.filter(job=job).exists()
        assert not LiveRun.objects.filter(gated=True).exists()

    def test_a_limit_that_goes_lets_its_runs_go_while_others_still_wait(self, session: Session) -> None:
        job = post_job(schedule={"every": 3600}, overlap="buffer_all", max_concurrency=1)
        limited = make_run(job, LiveState.BLOCKED, reason="concurrency", trigger=Trigger.MANUAL)
        come(session, job, 2)
        edit_job(job, {"max_concurrency": None})
        assert how(limited.run) == ("ready", "")
        assert LiveRun.objects.filter(state="blocked", reason="overlap").count() == 1

    def test_a_run_claimed_before_the_policy_came_lets_the_next_one_go(
        self, session: Session, ledger: PostgresLedger
    ) -> None:
        job = post_job(schedule={"every": 3600}, overlap="allow_all")
        come(session, job)
        claim = claim_ready(ledger, job)
        assert not claim.gated
        edit_job(job, {"overlap": "buffer_one"})
        [waiting] = come(session, job)
        assert how(waiting) == ("blocked", "overlap")
        tell(ledger, claim, succeeded(), SUCCESS)
        assert how(waiting) == ("ready", "")


def claim_ready(ledger: PostgresLedger, job: Job) -> Any:
    """Dispatch would hand over what is ready; here that is done by hand."""
    LiveRun.objects.filter(job=job, state=LiveState.READY).update(state=LiveState.QUEUED, queued_at=now())
    claim = claim_next(ledger, job)
    assert claim is not None
    return claim
