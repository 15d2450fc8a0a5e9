"""Cause each problem for real, and read the doctor's sentence."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import kombu
import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from kombu import Connection as Broker

from jobs.models import JOB_SLICES, Declaration, Job, JobClock, JobStatus, Pool
from runs.models import LiveRun, Queue, Run, SchedulerNode, WorkerNode
from runs.reasons import Reason
from runs.scheduler import day_partitions
from runs.scheduler.partitions import lock_session as slices
from runs.states import LiveState
from scheduler_project import doctor
from scheduler_project.doctor import broker, database, partitions, schedulers
from scheduler_project.doctor import runs as run_checks
from scheduler_project.doctor.findings import Finding, Findings, Level
from scheduler_project.sdk.transport.broker_tls import with_ca
from tests.conftest import with_database
from tests.support.certificates import OwnCA
from tests.support.factories import make_job, make_pool, make_queue, make_run, make_tenant, make_worker, now
from tests.support.ports import free_port
from tests.support.processes import CHECKOUT
from tests.support.servers.rabbitmq import PrivateRabbitMQ

needs_database = pytest.mark.django_db


def problems(check: Callable[[], Findings]) -> str:
    found = [finding for finding in check() if finding.level == Level.PROBLEM]
    assert all(finding.do for finding in found), "a problem says what to do"
    return "\n".join(f"{finding.what} -> {finding.do}" for finding in found)


def said(check: Callable[[], Findings], level: Level) -> str:
    return "\n".join(finding.what for finding in check() if finding.level == level)


def run_doctor(*arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "manage.py", "doctor", "--no-color", *arguments]
    return subprocess.run(
        command, cwd=CHECKOUT, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )


def own_database() -> str:
    return with_database(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))


# The command


def test_an_unreachable_database_is_reported_without_its_password() -> None:
    port = free_port()
    answer = run_doctor(DATABASE_URL=f"postgresql://root:xyzzy@127.0.0.1:{port}/beatkeeper")
    assert answer.returncode == 1
    assert f"the database at 127.0.0.1:{port}/beatkeeper does not answer" in answer.stdout
    assert "start PostgreSQL, or correct DATABASE_URL" in answer.stdout
    assert "xyzzy" not in answer.stdout + answer.stderr and "Traceback" not in answer.stderr


@pytest.mark.servers
def test_an_empty_database_wants_migrations_and_nothing_else_is_looked_at() -> None:
    answer = run_doctor(DATABASE_URL=with_database(os.environ["DATABASE_URL"], "postgres"))
    assert answer.returncode == 1
    assert "are not applied" in answer.stdout and "run `manage.py migrate`" in answer.stdout
    assert "failed itself" not in answer.stdout and "partitions" not in answer.stdout


@needs_database
def test_the_exit_code_and_the_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("doctor", "--json")
    assert ended.value.code == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["healthy"] is False
    reported = {finding["check"]: finding for finding in answer["findings"] if finding["level"] == "problem"}
    assert reported["schedulers"]["what"].startswith("no scheduler is alive")
    assert "celery -A scheduler_project beat" in reported["schedulers"]["do"]


@needs_database
def test_a_healthy_installation_has_exit_code_zero(
    settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.LOG_STORE_URL, settings.DATABASE_DIRECT_URL = tmp_path.as_uri(), own_database()
    make_worker(make_pool())
    with hold(range(JOB_SLICES)):
        call_command("doctor", "--no-color")
    assert "all is well" in capsys.readouterr().out


@needs_database
def test_a_check_that_fails_itself_does_not_hide_the_others() -> None:
    def faints() -> Findings:
        raise RuntimeError("oh")
        yield

    def answers() -> Findings:
        yield Finding(Level.FINE, "still here")

    lines = list(doctor.examine([doctor.NamedCheck("one", faints), doctor.NamedCheck("two", answers)]))
    assert "this check failed itself: RuntimeError: oh" in lines[0].finding.what
    assert lines[1].finding.what == "still here"


# The database


@needs_database
def test_a_migration_that_is_not_applied_is_named() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE id = (SELECT id FROM django_migrations"
            " WHERE app = 'beatkeeper_runs' ORDER BY name DESC LIMIT 1) RETURNING name"
        )
        ((name,),) = cursor.fetchall()
    assert f"1 migration is not applied: beatkeeper_runs.{name}" in problems(database.migrations)


@needs_database
def test_a_database_newer_than_the_code_is_noticed() -> None:
    number = len(list((CHECKOUT / "runs" / "migrations").glob("0*.py"))) + 1
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('beatkeeper_runs', %s, now())",
            [f"{number:04}_x"],
        )
    assert f"newer than this code: beatkeeper_runs.{number:04}_x" in said(database.migrations, Level.NOTE)


@needs_database
def test_commits_that_do_not_wait_for_the_disk_are_a_problem() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
    assert "synchronous_commit is off" in problems(database.durability)


def test_a_transaction_pooler_before_the_schedulers_is_recognised(
    pooled_database_url: str, settings: Any
) -> None:
    settings.DATABASE_DIRECT_URL = own_database()
    assert problems(database.pooler) == ""
    settings.DATABASE_DIRECT_URL = pooled_database_url
    assert "a transaction pooler stands between" in problems(database.pooler)
    settings.DATABASE_DIRECT_URL = f"postgresql://root@127.0.0.1:{free_port()}/x"
    assert "DATABASE_DIRECT_URL" in problems(database.pooler)


@needs_database
def test_clocks_that_differ_are_reported_with_their_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(database.clock) == ""
    for hours, words in ((3, "3.0 h behind"), (-3, "3.0 h ahead of")):
        theirs = datetime.now(timezone.utc) + timedelta(hours=hours)
        monkeypatch.setattr(database, "rows", lambda _, theirs=theirs: [(theirs,)])
        assert words in problems(database.clock)


@needs_database
def test_a_long_transaction_is_reported_with_how_to_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LONG_TRANSACTION_SECONDS", 0)
    with psycopg.connect(own_database(), application_name="forgotten") as other:
        other.execute("SELECT 1")
        reported = problems(database.long_transactions)
        assert "forgotten, idle in transaction" in reported
        assert f"pg_terminate_backend({other.info.backend_pid})" in reported


# Partitions and the invariant


@needs_database
@pytest.mark.parametrize("table", day_partitions.TABLES)
def test_a_missing_partition_is_an_alarm(table: str) -> None:
    assert problems(partitions.partitions) == ""
    missing = datetime.now(timezone.utc).date() + timedelta(days=3)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {day_partitions.partition_name(table, missing)}")
    assert f"{table} has partitions for 2 days ahead" in problems(partitions.partitions)


@needs_database
def test_no_partition_for_today_is_an_alarm() -> None:
    today = datetime.now(timezone.utc).date()
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {day_partitions.partition_name('beatkeeper_run', today)}")
    assert "beatkeeper_run has partitions for 0 days ahead" in problems(partitions.partitions)


@needs_database
def test_a_default_partition_is_a_problem() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE beatkeeper_run_rest PARTITION OF beatkeeper_run DEFAULT")
    assert "beatkeeper_run_rest is a default partition" in problems(partitions.partitions)


@needs_database
def test_a_run_without_its_live_row_is_found() -> None:
    live = make_run(make_job(), planned_at=now() - timedelta(days=2))
    assert problems(partitions.one_state_each) == ""
    LiveRun.objects.all().delete()
    assert str(live.pk) in problems(partitions.one_state_each)


@needs_database
def test_a_live_row_of_an_ended_run_is_found() -> None:
    live = make_run(make_job(), LiveState.RUNNING)
    Run.objects.filter(pk=live.pk).update(state="succeeded", ended_from="running", finished_at=now())
    reported = problems(partitions.one_state_each)
    assert "1 ended already and 0 have no run" in reported and str(live.pk) in reported


# Schedulers


def hold(jobs: Iterable[int], *, recovery: bool = True) -> ExitStack:
    """Open a session that holds slices and all pools, as a scheduler does."""
    stack = ExitStack()
    session = stack.enter_context(slices.LockSession(own_database(), "test", seconds=60))
    session.join(slices.JOBS)
    wanted, pools = set(jobs), set(Pool.objects.values_list("pk", flat=True))
    assert session.take(slices.JOBS, list(wanted), len(wanted)) == wanted
    assert session.take(slices.POOLS, list(pools), len(pools)) == pools
    if recovery:
        session.take(slices.RECOVERY, [0], 1)
    return stack


@needs_database
def test_no_scheduler_is_a_problem_and_a_living_one_is_counted() -> None:
    assert "no scheduler is alive" in problems(schedulers.alive)
    assert problems(schedulers.coverage) == ""
    with hold(range(JOB_SLICES)), hold([]):
        assert said(schedulers.alive, Level.FINE) == "2 schedulers are alive"
        assert problems(schedulers.coverage) == ""


@needs_database
def test_recovery_that_no_scheduler_runs_is_reported() -> None:
    with hold(range(JOB_SLICES), recovery=False):
        assert "no scheduler runs recovery" in problems(schedulers.coverage)


@needs_database
def test_slices_and_pools_that_nobody_holds_are_reported() -> None:
    with hold(range(5, JOB_SLICES)):
        make_pool(slug="gpu")
        reported = problems(schedulers.coverage)
    assert f"5 of {JOB_SLICES} slices of the jobs" in reported
    assert "1 pool held by no scheduler" in reported and "gpu" in reported


# Work


@needs_database
def test_a_slice_that_is_behind_is_reported_with_its_holder() -> None:
    job = make_job(next_run_at=now() + timedelta(minutes=1))
    assert "no slice is behind" in said(schedulers.behind, Level.FINE)
    number = job.clock.slice
    JobClock.objects.update(next_run_at=now() - timedelta(seconds=5))
    assert "was 5 s ago" in said(schedulers.behind, Level.FINE)
    JobClock.objects.update(next_run_at=now() - timedelta(minutes=5))
    behind = f"1 of {JOB_SLICES} slices of the jobs are behind, slice {number} by 5 min"
    assert f"{behind}; it is held by no scheduler" in problems(schedulers.behind)
    with hold(range(JOB_SLICES)):
        assert f"{behind}; it is held by test -> look in that" in problems(schedulers.behind)


@needs_database
def test_the_oldest_run_that_may_go_is_reported_by_pool() -> None:
    acme, gpu = make_tenant(slug="acme"), make_pool(slug="gpu")
    job = make_job(acme, gpu)
    make_run(job, planned_at=now() - timedelta(seconds=2))
    assert "no dispatchable run waits" in said(schedulers.waiting_queues, Level.FINE)
    make_run(job, planned_at=now() - timedelta(minutes=3))
    make_run(make_job(make_tenant(slug="emca"), gpu), planned_at=now() - timedelta(minutes=10))
    assert "in the pool gpu 2 queues wait for free slots, the longest for 10 min" in said(
        schedulers.waiting_queues, Level.NOTE
    )
    for queue_of in Job.objects.all():
        make_queue(queue_of)
    Queue.objects.update(reason="rate_limit")
    Queue.objects.filter(tenant=acme).update(reason="broker_away")
    assert "1 queue waits for free slots, the longest for 3 min" in said(
        schedulers.waiting_queues, Level.NOTE
    )


@needs_database
def test_a_loop_that_fails_and_a_scheduler_that_fell_silent_are_reported() -> None:
    well = {"success_seconds_ago": 0.1, "longest_seconds": 0.2, "failures": 0}
    node = SchedulerNode.objects.create(host="h", pid=7, loops={"trigger": well, "dispatch": well})
    assert "the loops of all schedulers succeed" in said(schedulers.loops, Level.FINE)
    for ill, words in (
        ({"success_seconds_ago": 40.0, "failures": 3}, "last succeeded 40 s ago"),
        ({"success_seconds_ago": None, "failures": 0}, "never succeeded"),
    ):
        SchedulerNode.objects.update(loops={"trigger": well, "dispatch": ill})
        assert f"the dispatch loop of the scheduler h 7 {words}" in problems(schedulers.loops)
    SchedulerNode.objects.update(last_seen_at=now() - timedelta(minutes=5))
    assert problems(schedulers.loops) == ""
    assert "h 7 fell silent 5 min ago" in said(schedulers.loops, Level.NOTE)
    node.left_at = now()
    node.save()
    assert said(schedulers.loops, Level.NOTE) == ""


@needs_database
def test_clocks_of_schedulers_and_workers_that_differ_are_reported() -> None:
    SchedulerNode.objects.create(host="h", pid=7, skew_ms=30.0)
    make_worker(make_pool(), name="w1", skew_ms=-40.0)
    assert "by 40 ms at most" in said(schedulers.clocks, Level.FINE)
    SchedulerNode.objects.update(skew_ms=3_000.0)
    WorkerNode.objects.update(skew_ms=-3_600_000.0)
    reported = problems(schedulers.clocks)
    assert "the clock of the scheduler h 7 is 3.0 s ahead of the database's" in reported
    assert "the clock of the worker w1 is 60 min behind the database's -> let both" in reported
    SchedulerNode.objects.update(left_at=now())
    WorkerNode.objects.update(state="left")
    assert problems(schedulers.clocks) == ""


@needs_database
def test_due_jobs_that_are_not_fired_are_reported_with_the_oldest() -> None:
    make_job(next_run_at=now() - timedelta(seconds=3))
    assert problems(run_checks.due_jobs) == ""
    make_job(name="hourly", next_run_at=now() - timedelta(minutes=5))
    make_job(name="nightly", next_run_at=now() - timedelta(hours=3))
    assert "2 jobs are due and not triggered, nightly since 3.0 h" in problems(run_checks.due_jobs)


@needs_database
def test_queued_runs_that_nobody_claims_are_reported_by_queue() -> None:
    job = make_job(make_tenant(slug="acme"), make_pool(slug="gpu"))
    make_run(job, LiveState.QUEUED, queued_at=now() - timedelta(minutes=4))
    assert "1 run of acme in the pool gpu are queued and unclaimed, since 4 min" in problems(
        run_checks.queued_runs
    )


@needs_database
def test_runs_that_are_not_handed_over_say_what_their_queue_says() -> None:
    job = make_job(make_tenant(slug="acme"), make_pool(slug="gpu"))
    make_run(job, planned_at=now() - timedelta(minutes=10))
    assert "see whether a scheduler is alive" in problems(run_checks.waiting_runs)
    queue = make_queue(job)
    queue.reason = "rate_limit"
    queue.save()
    assert "since 10 min; the queue says: rate limit" in problems(run_checks.waiting_runs)


@needs_database
def test_a_pool_whose_worker_fell_silent_is_reported(settings: Any) -> None:
    job = make_job(pool=make_pool(slug="gpu"))
    make_run(job)
    worker = make_worker(job.pool)
    assert problems(run_checks.workers) == ""
    WorkerNode.objects.filter(pk=worker.pk).update(
        last_beat_at=now() - timedelta(seconds=settings.LEASE_SECONDS + 1)
    )
    reported = problems(run_checks.workers)
    assert (
        "1 run waits in the pool gpu, which has no living worker" in reported
        and "BEATKEEPER_POOL=gpu" in reported
    )
    WorkerNode.objects.update(lease_seconds=settings.LEASE_SECONDS + 30)
    assert problems(run_checks.workers) == ""


@needs_database
def test_a_target_that_no_worker_knows_is_reported() -> None:
    job = make_job(pool=make_pool(slug="gpu"))
    make_run(job, LiveState.BLOCKED, reason=Reason.UNKNOWN_TARGET)
    make_run(job, LiveState.BLOCKED, reason=Reason.CONCURRENCY)
    make_worker(job.pool, known_targets=["kind:http"])
    assert "1 run waits for tests.succeeds, which no living worker for them in gpu knows" in problems(
        run_checks.workers
    )


@needs_database
def test_a_worker_with_the_key_of_another_tenant_serves_nobody_else() -> None:
    job = make_job(make_tenant(slug="acme"), make_pool(slug="gpu"))
    make_run(job)
    make_worker(job.pool, tenant=make_tenant(slug="other"))
    assert "1 run waits in the pool gpu, which has no living worker for them" in problems(run_checks.workers)
    make_worker(job.pool, tenant=job.tenant, known_targets=["kind:http"])
    assert "1 run waits for tests.succeeds" in problems(run_checks.workers)
    make_worker(job.pool, tenant=job.tenant)
    make_worker(job.pool)
    assert problems(run_checks.workers) == ""


@needs_database
def test_unrunnable_jobs_are_reported_with_their_note() -> None:
    make_job(
        make_tenant(slug="acme"),
        name="nightly",
        status=JobStatus.UNRUNNABLE,
        status_reason="its zone is gone",
    )
    assert "acme/nightly: its zone is gone" in problems(run_checks.unrunnable_jobs)


@needs_database
def test_commands_of_several_tenants_beside_one_worker_are_reported(settings: Any) -> None:
    pools = {
        "open": make_pool(slug="open", shared=True, exported_kinds=["command"]),
        "of-two": make_pool(slug="of-two", shared=False, exported_kinds=["http", "command"]),
        "calls-alone": make_pool(slug="calls-alone", shared=True, exported_kinds=["http"]),
    }
    of_one = make_pool(slug="of-one", shared=False, exported_kinds=["command"])
    first = make_tenant()
    for pool in (pools["of-two"], of_one):
        pool.tenants.add(first)
    settings.COMMANDS_AS_WORKER = True
    assert problems(run_checks.commands) == "" and "no pool" in said(run_checks.commands, Level.NOTE), (
        "there is one tenant"
    )
    pools["of-two"].tenants.add(make_tenant())
    reported = problems(run_checks.commands)
    assert "several tenants may have commands in of-two, open:" in reported
    assert "unset it where those workers run" in reported
    settings.COMMANDS_AS_WORKER = False
    assert problems(run_checks.commands) == "" and "a namespace of its own" in said(
        run_checks.commands, Level.FINE
    )


@needs_database
def test_declarations_refused_or_left_waiting_are_reported() -> None:
    tenant, pool = make_tenant(slug="acme"), make_pool()
    shared = {"tenant": tenant, "pool": pool, "spec": {}}
    Declaration.objects.create(name="bad", error="cron: 99 is no minute", applied_at=now(), **shared)
    Declaration.objects.create(name="late", declared_at=now() - timedelta(minutes=5), **shared)
    reported = problems(run_checks.declarations)
    assert "acme/bad, declared in code, was refused: cron: 99 is no minute" in reported
    assert "1 job declared in code wait to be applied" in reported


def test_a_log_store_that_cannot_be_written_is_reported(settings: Any, tmp_path: Path) -> None:
    settings.LOG_STORE_URL = (tmp_path / "logs").as_uri()
    assert problems(run_checks.log_store) == ""
    (tmp_path / "file").write_text("in the way")
    settings.LOG_STORE_URL = (tmp_path / "file" / "logs").as_uri()
    assert "cannot be written" in problems(run_checks.log_store)
    settings.LOG_STORE_URL = ""
    assert "names no log store" in problems(run_checks.log_store)


# The broker


def test_no_broker_is_a_note_and_an_unreachable_one_a_problem(settings: Any) -> None:
    settings.CELERY_BROKER_URL = ""
    assert "no broker is set" in said(broker.reachable, Level.NOTE)
    port = free_port()
    settings.CELERY_BROKER_URL = f"amqp://guest:xyzzy@127.0.0.1:{port}//"
    reported = problems(broker.reachable)
    assert (
        f"the platform's broker at 127.0.0.1:{port}" in reported
        and "does not answer" in reported
        and "xyzzy" not in reported
    )
    assert not broker.is_reachable()


def test_the_broker_tells_its_version(settings: Any, broker_url: str) -> None:
    settings.CELERY_BROKER_URL = broker_url
    assert said(broker.reachable, Level.FINE).startswith("RabbitMQ 3.")


def test_a_broker_whose_certificate_is_not_trusted_is_reported(
    settings: Any, private_rabbitmq: PrivateRabbitMQ, own_ca: OwnCA
) -> None:
    settings.CELERY_BROKER_URL = private_rabbitmq.tls_url
    reported = problems(broker.reachable)
    assert "certificate is not trusted" in reported and "BEATKEEPER_BROKER_CA_FILE" in reported
    settings.CELERY_BROKER_URL = with_ca(private_rabbitmq.tls_url, str(own_ca.ca))
    assert said(broker.reachable, Level.FINE).startswith("RabbitMQ 3.")


def test_each_broker_is_looked_at_and_no_password_of_a_cluster_is_reported(
    settings: Any, broker_url: str
) -> None:
    port = free_port()
    settings.CELERY_BROKER_URL = ""
    settings.BROKERS = {"payments": f"amqp://u:xyzzy@127.0.0.1:{port}//;amqp://u:xyzzy@localhost:{port}//"}
    settings.BROKERS["mail"] = broker_url
    reported = problems(broker.reachable)
    assert f"broker payments at 127.0.0.1:{port}//, localhost:{port}// does not answer" in reported
    assert "correct BEATKEEPER_BROKERS" in reported and "xyzzy" not in reported
    assert "broker mail" in said(broker.reachable, Level.FINE)
    assert "pools that name none are fed" in said(broker.reachable, Level.NOTE)
    assert broker.is_reachable()


def test_a_broker_without_bounds_for_quorum_queues_is_too_old(
    settings: Any, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CELERY_BROKER_URL = broker_url
    monkeypatch.setattr(broker, "MIN_VERSION", (99, 0))
    assert "too old" in problems(broker.reachable)


@needs_database
def test_pools_whose_broker_is_gone_are_reported(settings: Any) -> None:
    make_pool(slug="orphaned", broker="payments")
    assert "orphaned (payments)" in problems(broker.names_of_pools)
    settings.BROKERS = {"payments": "amqp://payments"}
    assert not problems(broker.names_of_pools)
    assert "every pool" in said(broker.names_of_pools, Level.FINE)


@needs_database
def test_queues_without_queue_or_consumer_are_reported(settings: Any, broker_url: str) -> None:
    settings.CELERY_BROKER_URL = "amqp://guest:guest@127.0.0.1:1//"
    settings.BROKERS = {"payments": broker_url}
    there, missing = (f"{settings.QUEUE_PREFIX}.{uuid4().hex}" for _ in range(2))
    for name in (there, missing):
        job = make_job(pool=make_pool(broker="payments", broker_queue=name))
        make_run(job, LiveState.QUEUED)
    # A tenant's own workers have a broker queue of theirs.
    own = make_queue(job).broker_queue
    make_worker(job.pool, tenant=job.tenant)
    make_worker(job.pool)
    with Broker(broker_url) as link:
        held = kombu.Queue(there, channel=link.default_channel)
        held.declare()
        reported = problems(broker.broker_queues)
        deaf = said(broker.broker_queues, Level.NOTE)
        held.delete()
    assert missing in reported and own in reported and there not in reported
    assert there in deaf and "fed from the database" in deaf


@needs_database
def test_more_queues_than_the_broker_has_files_for_are_reported(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CELERY_BROKER_URL = "amqp://nowhere"
    for _ in range(3):
        make_queue(make_job())
    make_queue(make_job(pool=make_pool(broker="another")))
    monkeypatch.setattr(broker, "broker_file_limit", lambda _: 10)
    assert "3 broker queues may need more than the 10 open files of the broker" in problems(broker.open_files)


def test_the_limit_of_open_files_is_read_from_the_process() -> None:
    limits = "Limit            Soft Limit   Hard Limit\nMax open files   1024         65536      files"
    assert broker.soft_limit(limits) == 1024
    assert broker.soft_limit("Max open files            unlimited       unlimited     files") is None
