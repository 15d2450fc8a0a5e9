"""Two people, or two schedulers, at the same dead runs: each runs again once."""

from datetime import timedelta

import pytest
from django.db import connection as django_connection
from django.db import transaction

from jobs.models import Job
from runs.models import DeadLetter, Redrive, RedriveState, Run
from runs.services import dead_letters, redrives
from runs.states import LiveState
from tests.races.staging import held_open, meanwhile, result_after, second_connection
from tests.support.factories import make_dead, make_run, now, post_job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job() -> Job:
    return post_job()


def redriven() -> int:
    return Run.objects.filter(trigger="redrive").count()


def test_of_two_who_redrive_one_run_the_second_learns_of_the_first(job: Job) -> None:
    dead = make_dead(job)
    with held_open() as holder:
        first = dead_letters.redrive(job.tenant, [dead.pk])
        with second_connection() as watcher:
            assert watcher.execute("SELECT count(*) AS n FROM beatkeeper_live_run").fetchone() == {"n": 0}
        done = result_after(holder, lambda: dead_letters.redrive(job.tenant, [dead.pk]))
    assert (done.runs, redriven()) == ({}, 1)
    assert str(first.runs[dead.pk].pk) in done.refused[dead.pk].detail


def test_a_person_dismisses_what_a_redrive_has_in_its_hands(job: Job) -> None:
    """The redrive comes second, and passes it by."""
    dead = make_dead(job, finished_at=now() - timedelta(seconds=1))
    group = redrives.start(job.tenant, "f00d", 60)
    with second_connection() as person:
        person.execute("SELECT FROM beatkeeper_dead_letter WHERE run_id = %s FOR UPDATE", [dead.pk])
        person.execute("UPDATE beatkeeper_dead_letter SET decision = 'dismissed', decided_at = now()")
        with meanwhile(redrives.work_off) as step:
            step.result(timeout=60)
        group.refresh_from_db()
        assert (group.made, group.refused, group.state) == (0, 0, RedriveState.WORKING), "it comes again"
        person.commit()
    assert redrives.work_off() == 0
    assert DeadLetter.objects.get().decision == "dismissed"
    assert redriven() == 0


def test_two_schedulers_at_one_redrive_take_turns(job: Job) -> None:
    for second in range(4):
        make_dead(job, finished_at=now() - timedelta(seconds=1 + second))
    group = redrives.start(job.tenant, "f00d", 6000)
    with transaction.atomic():
        made = redrives.step(group.pk)
        with meanwhile(redrives.work_off) as other:
            assert other.result(timeout=60) == 0, "the row is in the other's hands"
    assert made == redriven() >= 1
    while Redrive.objects.get().state == RedriveState.WORKING:
        Redrive.objects.update(next_at=now())
        redrives.work_off()
    assert redriven() == 4
    assert Run.objects.filter(trigger="redrive").values("retry_of").distinct().count() == 4


def test_a_scheduler_killed_in_the_middle_of_a_step_leaves_nothing_of_it(job: Job) -> None:
    make_dead(job, finished_at=now() - timedelta(seconds=1))
    group = redrives.start(job.tenant, "f00d", 60)

    def killed() -> None:
        with transaction.atomic():
            assert redrives.step(group.pk) == 1
            with second_connection() as killer:
                pid = django_connection.connection.info.backend_pid
                killer.execute("SELECT pg_terminate_backend(%s)", [pid])
            redrives.step(group.pk)

    with meanwhile(killed) as death, pytest.raises(Exception, match="terminat|closed"):
        death.result(timeout=60)
    group.refresh_from_db()
    assert (group.made, redriven(), DeadLetter.objects.get().decision) == (0, 0, "")
    assert redrives.work_off() == 1


def test_a_death_that_is_committed_late_is_redriven_too(job: Job) -> None:
    """It is older than others that were redriven before it could be seen, and than the request."""
    late, seen = make_run(job, LiveState.RUNNING), make_dead(job, finished_at=now())
    with second_connection() as reporter:
        reporter.execute(
            "UPDATE beatkeeper_run SET state = 'dead', ended_from = 'running', attempts = 1, fingerprint = 'f00d',"
            " error_class = 'transient', finished_at = %s WHERE id = %s",
            [now() - timedelta(seconds=5), late.pk],
        )
        reporter.execute("DELETE FROM beatkeeper_live_run WHERE id = %s", [late.pk])
        group = redrives.start(job.tenant, "f00d", 6000)
        assert [pass_of(group) for _ in range(3)] == [1, 0, 0]
        group.refresh_from_db()
        assert group.state == RedriveState.WORKING, "somebody is dying"
        reporter.commit()
        assert [pass_of(group) for _ in range(2)] == [1, 0]
    group.refresh_from_db()
    assert (group.state, group.made) == (RedriveState.DONE, 2)
    assert set(Run.objects.filter(trigger="redrive").values_list("retry_of", flat=True)) == {late.pk, seen.pk}


def test_what_began_after_the_request_holds_no_redrive_up(job: Job) -> None:
    make_dead(job, finished_at=now() - timedelta(seconds=1))
    other = make_run(job, LiveState.RUNNING)
    group = redrives.start(job.tenant, "f00d", 6000)
    with second_connection() as reporter:
        reporter.execute("UPDATE beatkeeper_run SET reason = '' WHERE id = %s", [other.pk])
        assert [pass_of(group) for _ in range(2)] == [1, 0]
    group.refresh_from_db()
    assert group.state == RedriveState.DONE


def test_a_transaction_that_never_ends_holds_a_redrive_up_for_minutes_at_most(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dead(job, finished_at=now() - timedelta(hours=1))
    other = make_run(job, LiveState.RUNNING)
    with second_connection() as reporter:
        reporter.execute("UPDATE beatkeeper_run SET reason = '' WHERE id = %s", [other.pk])
        group = redrives.start(job.tenant, "f00d", 6000)
        assert [pass_of(group) for _ in range(2)] == [1, 0]
        group.refresh_from_db()
        assert group.state == RedriveState.WORKING
        monkeypatch.setattr(redrives, "MAX_LATE", timedelta())
        assert pass_of(group) == 0
    group.refresh_from_db()
    assert group.state == RedriveState.DONE


def pass_of(group: Redrive) -> int:
    """When its time has come."""
    Redrive.objects.filter(pk=group.pk).update(next_at=now())
    return redrives.work_off()
