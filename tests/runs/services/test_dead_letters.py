"""What dies has a dead letter with its end; what is decided of it is decided once."""

from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import psycopg
import pytest
from django.db import IntegrityError, transaction

from auditlog.models import AuditEntry
from jobs.errors import InvalidInput, JobNotRunnable, Missing
from jobs.models import Job, Tenant
from jobs.secrets.service import create_secret, delete_secret
from jobs.services.definition import delete_job
from jobs.services.status import cancel_job
from runs.models import DeadLetter, LiveRun, NodeState, Redrive, RedriveState, Run
from runs.scheduler.recovery.lost_attempts import fail as fail_claims
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.services import dead_letters, redrives
from runs.services import runs as services
from runs.services.dead_letters import AlreadyDecided, NotDead
from runs.services.redrives import RedriveIsOver, RedriveUnderWay, allowed
from runs.states import LiveState
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.outcomes import worker_lost
from tests.runs.ledger.claims import DEAD, claim_next, failed, ledger, tell
from tests.support.factories import (
    make_dead,
    make_finished_run,
    make_run,
    make_tenant,
    make_worker,
    now,
    post_job,
)

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant(slug="acme")


@pytest.fixture
def job(tenant: Tenant) -> Job:
    return post_job(tenant)


class TestLetters:
    @pytest.mark.django_db(transaction=True)
    def test_a_run_that_dies_leaves_one(self, ledger: PostgresLedger, job: Job) -> None:
        make_run(job, LiveState.QUEUED)
        claim = claim_next(ledger, job)
        assert claim is not None
        tell(ledger, claim, failed(), DEAD)
        letter = DeadLetter.objects.get()
        run = Run.objects.get()
        assert (letter.run_id, letter.job_id, letter.tenant_id) == (run.pk, job.pk, job.tenant_id)
        assert (letter.fingerprint, letter.error_type, letter.error_line) == (
            run.fingerprint,
            "ValueError",
            "no luck",
        )
        assert (letter.died_at, letter.decision) == (run.finished_at, "")

    def test_so_does_one_that_recovery_gives_up(self, session: psycopg.Connection[Any], job: Job) -> None:
        worker = make_worker(job.pool, state=NodeState.LOST)
        for _ in range(2):
            make_run(job, LiveState.RUNNING, worker=worker, losses=99)
        at = now()
        recover_once(session, RecoveryMemory(trusted_from=at, last_pass=at), at)
        letters = DeadLetter.objects.all()
        assert {letter.error_class for letter in letters} == {"worker_lost"}
        assert len({letter.fingerprint for letter in letters}) == 1 and letters[0].fingerprint

    @pytest.mark.django_db(transaction=True)
    def test_a_loss_is_in_one_group_whoever_found_it(
        self, ledger: PostgresLedger, session: psycopg.Connection[Any], job: Job
    ) -> None:
        make_run(job, LiveState.QUEUED)
        claim = claim_next(ledger, job)
        assert claim is not None
        tell(ledger, claim, worker_lost("The process that ran it was killed.", now(), now()), DEAD)
        lost = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool, state=NodeState.LOST), losses=99)
        assert fail_claims(session, {lost.pk: lost.claim_seq}, "The worker was lost.") == {lost.pk: "dead"}
        [group] = dead_letters.groups([job.tenant_id])
        assert (group.size, group.error_type) == (2, "WorkerLost")

    @pytest.mark.parametrize("state", ["succeeded", "cancelled", "skipped"])
    def test_nothing_else_does(self, job: Job, state: Any) -> None:
        make_finished_run(job, state)
        assert not DeadLetter.objects.exists()

    def test_what_is_decided_stays_decided(self, job: Job) -> None:
        run = make_dead(job)
        dead_letters.dismiss(job.tenant, [run.pk], "known")
        with pytest.raises(IntegrityError, match="stays"), transaction.atomic():
            DeadLetter.objects.update(decision="", decided_at=None)


class TestGroups:
    def test_they_are_counted_by_error_the_latest_death_first(self, tenant: Tenant, job: Job) -> None:
        other = post_job(tenant)
        early = make_dead(job, fingerprint="a1", finished_at=now() - 60 * SECOND)
        late = make_dead(other, fingerprint="a1", error_line="line 2")
        make_dead(job, fingerprint="b2", finished_at=now() - 30 * SECOND)
        make_dead(post_job(), fingerprint="a1")
        first, second = dead_letters.groups([tenant.pk])
        assert (first.fingerprint, first.size, first.newest) == ("a1", 2, late.pk)
        assert (first.first_at, first.last_at) == (early.finished_at, late.finished_at)
        assert (first.error_line, set(first.jobs)) == ("line 2", {job.pk, other.pk})
        assert (second.fingerprint, second.size) == ("b2", 1)

    def test_of_all_tenants_each_has_its_own(self, tenant: Tenant, job: Job) -> None:
        other = post_job()
        for dead in (job, other):
            make_dead(dead)
        assert {group.tenant_id for group in dead_letters.groups(None)} == {tenant.pk, other.tenant_id}
        assert dead_letters.count_open(None) == 2
        assert dead_letters.count_open([tenant.pk]) == 1

    def test_what_is_decided_is_not_in_them(self, tenant: Tenant, job: Job) -> None:
        run = make_dead(job)
        dead_letters.dismiss(tenant, [run.pk], "known")
        assert dead_letters.groups([tenant.pk]) == []


class TestRedriving:
    def test_it_is_a_new_run_that_points_to_the_dead_one(self, tenant: Tenant, job: Job) -> None:
        dead = make_dead(job, input={"args": [1]})
        done = dead_letters.redrive(tenant, [dead.pk], reason="fixed")
        again = done.runs[dead.pk]
        assert (again.trigger, again.retry_of, again.version) == ("redrive", dead.pk, dead.version)
        assert (again.input, again.planned_at) == ({"args": [1]}, dead.planned_at)
        assert again.requested_reason == "fixed"
        assert LiveRun.objects.get().run_id == again.pk
        letter = DeadLetter.objects.get()
        assert (letter.decision, letter.redriven_as, letter.reason) == ("redriven", again.pk, "fixed")
        entry = AuditEntry.objects.get(action="run.redriven")
        assert (entry.object_id, entry.reason) == (str(again.pk), "fixed")
        assert (entry.after or {})["retry_of"] == str(dead.pk)
        assert Run.objects.get(pk=dead.pk).state == "dead"

    def test_another_input_may_be_given(self, tenant: Tenant, job: Job) -> None:
        dead = make_dead(job, input={"args": [1]})
        done = dead_letters.redrive(tenant, [dead.pk], {"args": [2]})
        assert done.runs[dead.pk].input == {"args": [2]}
        with pytest.raises(InvalidInput):
            dead_letters.redrive(tenant, [dead.pk], [1, 2])

    def test_it_is_done_once(self, tenant: Tenant, job: Job) -> None:
        dead = make_dead(job)
        first = dead_letters.redrive(tenant, [dead.pk, dead.pk])
        second = dead_letters.redrive(tenant, [dead.pk])
        assert (len(first.runs), len(second.runs)) == (1, 0)
        refusal = second.refused[dead.pk]
        assert isinstance(refusal, AlreadyDecided) and str(first.runs[dead.pk].pk) in refusal.detail
        assert LiveRun.objects.count() == 1

    def test_each_that_cannot_go_is_named_and_the_others_go(self, tenant: Tenant, job: Job) -> None:
        gone, cancelled = post_job(tenant), post_job(tenant)
        fine, of_gone, of_cancelled = make_dead(job), make_dead(gone), make_dead(cancelled)
        of_others, succeeded = make_dead(post_job()), make_finished_run(job)
        delete_job(gone)
        cancel_job(cancelled)
        unknown = uuid4()
        ids = [run.pk for run in (fine, of_gone, of_cancelled, of_others, succeeded)] + [unknown]
        done = dead_letters.redrive(tenant, ids)
        assert list(done.runs) == [fine.pk]
        assert "deleted" in done.refused[of_gone.pk].detail
        assert "cancelled" in done.refused[of_cancelled.pk].detail
        for identity in (of_others.pk, succeeded.pk, unknown):
            assert isinstance(done.refused[identity], NotDead)
        assert DeadLetter.objects.get(pk=of_others.pk).decision == ""

    def test_a_retry_by_hand_closes_its_dead_letter(self, job: Job) -> None:
        dead = make_dead(job)
        again = services.retry_run(dead)
        letter = DeadLetter.objects.get()
        assert (letter.decision, letter.redriven_as) == ("redriven", again.pk)
        services.retry_run(dead)
        letter.refresh_from_db()
        assert letter.redriven_as == again.pk

    def test_what_dies_again_is_open_again(self, tenant: Tenant, job: Job) -> None:
        done = dead_letters.redrive(tenant, [make_dead(job).pk])
        (again,) = done.runs.values()
        for state in ("queued", "running"):
            LiveRun.objects.filter(pk=again.pk).update(
                state=state, worker=uuid4(), claim_token=uuid4(), claimed_at=now()
            )
        ending = {"ended_from": "running", "finished_at": now(), "error_class": "transient"}
        Run.objects.filter(pk=again.pk).update(state="dead", **ending)
        assert DeadLetter.objects.filter(decision="").get().run_id == again.pk

    def test_so_many_at_once_are_too_many(self, tenant: Tenant) -> None:
        with pytest.raises(InvalidInput, match="too many"):
            dead_letters.redrive(tenant, [uuid4() for _ in range(101)])


class TestDismissing:
    def test_it_is_closed_with_a_note(self, tenant: Tenant, job: Job) -> None:
        dead = make_dead(job)
        dead_letters.dismiss(tenant, [dead.pk], "known bug 7")
        letter = DeadLetter.objects.get()
        assert (letter.decision, letter.reason) == ("dismissed", "known bug 7")
        entry = AuditEntry.objects.get(action="run.dismissed")
        assert (entry.object_id, entry.reason) == (str(dead.pk), "known bug 7")
        assert "known bug 7" in dead_letters.redrive(tenant, [dead.pk]).refused[dead.pk].detail

    def test_a_whole_group_may_go(self, tenant: Tenant, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(3):
            make_dead(job)
        kept = make_dead(job, fingerprint="b2")
        of_others = make_dead(post_job())
        monkeypatch.setattr(dead_letters, "MAX_DISMISSED", 2)
        assert [dead_letters.dismiss_group(tenant, "f00d", "known") for _ in range(2)] == [2, 1]
        with pytest.raises(Missing):
            dead_letters.dismiss_group(tenant, "f00d", "known")
        left = set(DeadLetter.objects.filter(decision="").values_list("pk", flat=True))
        assert left == {kept.pk, of_others.pk}
        assert AuditEntry.objects.filter(action="run.dismissed").count() == 3


class TestGroupsOnTheirWay:
    @pytest.mark.parametrize(
        ("late", "per_minute", "count", "ahead"),
        [(0, 60, 1, 1.0), (3, 60, 4, 1.0), (1000, 60, 6, 1.0), (0, 6000, 1, 0.01), (5, 6000, 100, -4.0)],
    )
    def test_the_pace_is_kept_and_not_made_up_for(
        self, late: float, per_minute: int, count: int, ahead: float
    ) -> None:
        at = now()
        number, next_at = allowed(at - late * SECOND, at, per_minute)
        assert number == count
        assert (next_at - at).total_seconds() == pytest.approx(ahead, abs=0.01)

    def test_it_makes_the_runs_one_by_one_and_ends(self, tenant: Tenant, job: Job) -> None:
        dead = [make_dead(job, finished_at=now() - n * SECOND) for n in (3, 2, 1)]
        redrive = redrives.start(tenant, "f00d", 60, reason="fixed")
        assert [self.pass_of(redrive) for _ in range(4)] == [1, 1, 1, 0]
        redrive.refresh_from_db()
        assert (redrive.state, redrive.made, redrive.refused) == (RedriveState.DONE, 3, 0)
        made = Run.objects.filter(trigger="redrive").order_by("created_at").values_list("retry_of", flat=True)
        assert list(made) == [run.pk for run in dead]
        letters = DeadLetter.objects.all()
        assert {(letter.decision, letter.reason, letter.redrive_id) for letter in letters} == {
            ("redriven", "fixed", redrive.pk)
        }
        assert AuditEntry.objects.filter(action="run.redriven").count() == 3
        assert AuditEntry.objects.filter(action="redrive.started").count() == 1

    def test_between_its_times_it_makes_nothing(self, tenant: Tenant, job: Job) -> None:
        for _ in range(3):
            make_dead(job, finished_at=now() - SECOND)
        redrives.start(tenant, "f00d", 1)
        assert [redrives.work_off() for _ in range(3)] == [1, 0, 0]

    def test_what_dies_meanwhile_stays_open(self, tenant: Tenant, job: Job) -> None:
        make_dead(job, finished_at=now() - SECOND)
        redrive = redrives.start(tenant, "f00d", 6000)
        later = make_dead(job, finished_at=now() + SECOND)
        assert [self.pass_of(redrive) for _ in range(2)] == [1, 0]
        assert DeadLetter.objects.filter(decision="").get().run_id == later.pk

    def test_it_stops_when_a_secret_of_its_input_is_gone(self, tenant: Tenant, job: Job) -> None:
        make_dead(job, finished_at=now() - SECOND)
        create_secret(tenant, {"name": "KEY", "value": "a value of it"})
        redrive = redrives.start(tenant, "f00d", 60, {"args": ["${secret:KEY}"]})
        delete_secret(tenant.secrets.get())
        assert redrives.work_off() == 0
        redrive.refresh_from_db()
        assert redrive.state == RedriveState.STOPPED and "no secret KEY" in redrive.last_refusal
        assert DeadLetter.objects.get().decision == "" and not LiveRun.objects.exists()

    def test_what_cannot_go_is_counted_and_left(self, tenant: Tenant, job: Job) -> None:
        gone = post_job(tenant)
        make_dead(gone, finished_at=now() - 2 * SECOND)
        make_dead(job, finished_at=now() - SECOND)
        delete_job(gone)
        redrive = redrives.start(tenant, "f00d", 60)
        assert [self.pass_of(redrive) for _ in range(3)] == [0, 1, 0]
        redrive.refresh_from_db()
        assert (redrive.state, redrive.made, redrive.refused) == (RedriveState.DONE, 1, 1)
        assert "deleted" in redrive.last_refusal

    def test_another_redrive_tries_again_what_could_not_go(self, tenant: Tenant, job: Job) -> None:
        dead = make_dead(job, finished_at=now() - SECOND)
        with refusing_everything():
            first = redrives.start(tenant, "f00d", 60)
            assert [self.pass_of(first) for _ in range(3)] == [0, 0, 0]
        first.refresh_from_db()
        assert (first.state, first.made, first.refused) == (RedriveState.DONE, 0, 1)
        assert self.pass_of(redrives.start(tenant, "f00d", 60)) == 1
        assert DeadLetter.objects.get(pk=dead.pk).decision == "redriven"

    def test_of_what_it_could_not_run_a_dismissal_says_nothing_of_it(self, tenant: Tenant, job: Job) -> None:
        make_dead(job, finished_at=now() - SECOND)
        with refusing_everything():
            self.pass_of(redrives.start(tenant, "f00d", 60))
        assert DeadLetter.objects.get().redrive is not None
        dead_letters.dismiss_group(tenant, "f00d", "known")
        assert DeadLetter.objects.get().redrive is None

    def test_it_can_be_stopped(self, tenant: Tenant, job: Job) -> None:
        for _ in range(3):
            make_dead(job, finished_at=now() - SECOND)
        redrive = redrives.start(tenant, "f00d", 60)
        self.pass_of(redrive)
        stopped = redrives.stop(redrive, "too early")
        assert (stopped.state, stopped.made, redrives.left(stopped)) == (RedriveState.STOPPED, 1, 0)
        assert redrives.work_off() == 0
        assert DeadLetter.objects.filter(decision="").count() == 2
        assert AuditEntry.objects.get(action="redrive.stopped").reason == "too early"
        with pytest.raises(RedriveIsOver):
            redrives.stop(redrive)
        assert redrives.start(tenant, "f00d", 60).state == RedriveState.WORKING

    def test_a_group_goes_once_at_a_time(self, tenant: Tenant, job: Job) -> None:
        make_dead(job)
        first = redrives.start(tenant, "f00d", 60)
        with pytest.raises(RedriveUnderWay) as refused:
            redrives.start(tenant, "f00d", 60)
        assert str(first.pk) in refused.value.link

    @pytest.mark.parametrize("pace", [0, 6001, "many", None, True])
    def test_a_pace_is_a_number(self, tenant: Tenant, job: Job, pace: Any) -> None:
        make_dead(job)
        with pytest.raises(InvalidInput):
            redrives.start(tenant, "f00d", pace)

    def test_a_group_of_others_is_none(self, job: Job) -> None:
        make_dead(job)
        with pytest.raises(Missing):
            redrives.start(make_tenant(), "f00d", 60)

    @staticmethod
    def pass_of(redrive: Redrive) -> int:
        """When its time has come."""
        Redrive.objects.filter(pk=redrive.pk).update(next_at=now())
        return redrives.work_off()


def refusing_everything() -> Any:
    return patch("runs.services.dead_letters.services.insert_run", side_effect=JobNotRunnable("not now"))
