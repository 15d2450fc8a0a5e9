"""Two people, or two schedulers, at the same dead runs: each runs again once."""

from datetime import timedelta

import pytest
from django.db import connection as django_connection
from django.db import transaction

from jobs.models import Job
from runs import dead_letters, redrives
from runs.dead_letters import Redriven
from runs.models import DeadLetter, Redrive, RedriveState, Run
from tests.concurrency.staging import meanwhile, second_connection, wait_until_somebody_waits_for
from tests.factories import make_dead, now, post_job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job() -> Job:
    return post_job()


def redriven() -> int:
    return Run.objects.filter(trigger="redrive").count()


def redrive(job: Job, dead: Run) -> Redriven:
    try:
        return dead_letters.redrive(job.tenant, [dead.pk])
    finally:
        django_connection.close()


def work_off() -> int:
    try:
        return redrives.work_off()
    finally:
        django_connection.close()


def test_of_two_who_redrive_one_run_the_second_is_told_of_the_first(job: Job) -> None:
    dead = make_dead(job)
    with transaction.atomic():
        first = dead_letters.redrive(job.tenant, [dead.pk])
        with second_connection() as watcher:
            assert watcher.execute("SELECT count(*) AS n FROM beatkeeper_live_run").fetchone() == {"n": 0}
        holder = django_connection.connection
        with meanwhile(lambda: redrive(job, dead)) as second:
            wait_until_somebody_waits_for(holder)
            django_connection.connection.commit()
            done = second.result(timeout=10)
    assert (done.runs, redriven()) == ({}, 1)
    assert str(first.runs[dead.pk].pk) in done.refused[dead.pk].detail


def test_a_person_dismisses_what_a_redrive_has_in_its_hands(job: Job) -> None:
    """The redrive comes second, and passes it by."""
    dead = make_dead(job, finished_at=now() - timedelta(seconds=1))
    group = redrives.start(job.tenant, "f00d", 60)
    with second_connection() as person:
        person.execute("SELECT FROM beatkeeper_dead_letter WHERE run_id = %s FOR UPDATE", [dead.pk])
        person.execute("UPDATE beatkeeper_dead_letter SET decision = 'dismissed', decided_at = now()")
        with meanwhile(lambda: work_off()) as step:
            step.result(timeout=10)
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
        with meanwhile(work_off) as other:
            assert other.result(timeout=10) == 0, "the row is in the other's hands"
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
        try:
            with transaction.atomic():
                assert redrives.step(group.pk) == 1
                with second_connection() as killer:
                    pid = django_connection.connection.info.backend_pid
                    killer.execute("SELECT pg_terminate_backend(%s)", [pid])
                redrives.step(group.pk)
        finally:
            django_connection.close()

    with meanwhile(killed) as death, pytest.raises(Exception, match="terminat|closed"):
        death.result(timeout=10)
    group.refresh_from_db()
    assert (group.made, redriven(), DeadLetter.objects.get().decision) == (0, 0, "")
    assert redrives.work_off() == 1
