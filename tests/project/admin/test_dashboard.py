"""The dashboard shows problems, late jobs and what blocks queues."""

import socket
from datetime import timedelta
from typing import Any

import kombu
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from kombu import Connection

from jobs.models import JOB_SLICES, JobClock, JobStatus, Membership
from runs.models import LiveRun, Queue, Run, SchedulerNode, WorkerNode
from runs.scheduler.broker.config import DEAD_MESSAGES
from runs.states import FinalState, LiveState
from scheduler_project.admin import broker_status, dashboard
from scheduler_project.admin.broker_status import BrokerStatus
from tests.project.test_doctor import hold
from tests.support.factories import make_job, make_pool, make_queue, make_run, make_tenant, make_worker, now
from tests.support.ports import free_port
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db


def look(staff: Client) -> dict[str, Any]:
    answer = staff.get("/admin/")
    assert answer.status_code == 200
    context: Any = answer.context
    return {
        **{figure.name: (figure.value, figure.more) for figure in context["figures"]},
        "problems": " ".join(problem["what"] for problem in context["problems"]),
        "text": answer.content.decode(),
    }


def dead(job: Any, **values: Any) -> Run:
    live = make_run(job, LiveState.RUNNING)
    values = {"error_class": "transient", "finished_at": now(), **values}
    Run.objects.filter(pk=live.pk).update(state=FinalState.DEAD, ended_from="running", **values)
    LiveRun.objects.filter(pk=live.pk).delete()
    return Run.objects.get(pk=live.pk)


def test_figures_count_what_is_unfinished_by_what_it_waits_for(staff: Client) -> None:
    job = make_job()
    worker = make_worker(job.pool, busy=3)
    make_run(job, LiveState.RUNNING, worker=worker)
    for number, state in enumerate(("ready", "queued", "delayed", "blocked")):
        make_run(job, state, planned_at=now() - timedelta(seconds=30 + number))
    seen = look(staff)
    assert seen["Running now"][0] == "1"
    assert seen["Waiting for a worker"] == ("2", "the oldest for 31 s")
    assert seen["Waiting for a retry"] == ("1", "1 blocked")
    assert seen["Workers alive"] == ("1", "3 of 4 slots busy")


def test_no_scheduler_and_no_worker_are_reported_first(staff: Client) -> None:
    make_run(make_job(pool=make_pool(slug="gpu")))
    problems = look(staff)["problems"]
    assert "no scheduler is alive" in problems
    assert "the pool gpu, which has no living worker" in problems


def test_a_silent_worker_is_not_alive(staff: Client, settings: Any) -> None:
    worker = make_worker(make_pool())
    long_ago = now() - timedelta(seconds=settings.LEASE_SECONDS + 1)
    WorkerNode.objects.filter(pk=worker.pk).update(last_beat_at=long_ago)
    assert look(staff)["Workers alive"][0] == "0"


def test_late_jobs_are_listed_oldest_first(staff: Client) -> None:
    make_job(name="hardly-late", next_run_at=now() - timedelta(seconds=2))
    make_job(name="very-late", next_run_at=now() - timedelta(minutes=10))
    seen = look(staff)
    assert seen["Late jobs"][0] == "1"
    assert "very-late" in seen["text"] and "10 min ago" in seen["text"] and "hardly-late" not in seen["text"]


def test_dead_runs_are_listed_with_their_error(staff: Client) -> None:
    dead(make_job(name="settle"), error_line="no such account")
    seen = look(staff)
    assert seen["Dead in 24 hours"][0] == "1"
    assert "settle" in seen["text"] and "no such account" in seen["text"]


def test_unrunnable_jobs_and_held_queues_say_why(staff: Client) -> None:
    make_job(name="broken", status=JobStatus.UNRUNNABLE, status_reason="its zone is gone")
    queue = make_queue(make_job())
    Queue.objects.filter(pk=queue.pk).update(reason="rate_limit")
    seen = look(staff)
    assert "its zone is gone" in seen["problems"] and "rate limit" in seen["text"]


def test_a_queue_with_a_notice_is_not_blocked(staff: Client) -> None:
    queue = make_queue(make_job())
    Queue.objects.filter(pk=queue.pk).update(reason="broker_away")
    assert "broker is away" not in look(staff)["text"]


def test_who_schedules_what_is_reported_to_operators(staff: Client) -> None:
    loops = {"trigger": {"success_seconds_ago": 0.1, "longest_seconds": 0.35, "failures": 0}}
    SchedulerNode.objects.create(
        host="one", pid=7, job_slices=64, pools=1, runs_recovery=True, loops=loops, skew_ms=-80
    )
    ill = {"trigger": {"success_seconds_ago": 60.0, "longest_seconds": 0.1, "failures": 4}}
    SchedulerNode.objects.create(host="two", pid=8, loops=ill, skew_ms=3_000)
    SchedulerNode.objects.create(host="three", pid=9, left_at=now())
    make_job(next_run_at=now() - timedelta(seconds=3))
    with hold(range(JOB_SLICES)):
        seen = look(staff)
    assert seen["Schedulers alive"][0] == "1"
    assert seen["Schedulers alive"][1].startswith(f"{JOB_SLICES} of {JOB_SLICES} slices, 3.")
    assert "one 7" in seen["text"] and "64 slices" in seen["text"] and "passes up to 350 ms" in seen["text"]
    assert "clock −80 ms" in seen["text"] and "three 9" not in seen["text"]
    assert "the trigger loop of the scheduler two 8 last succeeded 60 s ago" in seen["problems"]
    assert "the clock of the scheduler two 8 is 3.0 s ahead" in seen["problems"]


def test_members_see_figures_of_their_tenants_only(client: Client) -> None:
    ours, theirs = make_tenant(slug="ours"), make_tenant(slug="theirs")
    dead(make_job(ours, name="our-job"))
    dead(make_job(theirs, name="their-job"))
    make_job(theirs, name="their-late", next_run_at=now() - timedelta(minutes=10))
    make_job(theirs, name="their-broken", status=JobStatus.UNRUNNABLE)
    SchedulerNode.objects.create(host="machine", pid=7)
    user = User.objects.create_user("mona", is_staff=True)
    Membership.objects.create(user=user, tenant=ours)
    client.force_login(user)
    seen = look(client)
    assert seen["Dead in 24 hours"][0] == "1" and seen["Late jobs"][0] == "0"
    assert "our-job" in seen["text"] and "their" not in seen["text"].replace("their job", "")
    assert "Workers alive" not in seen and "Schedulers alive" not in seen and "machine" not in seen["text"]


def test_a_figure_the_database_cannot_give_in_time_is_left_out(staff: Client, monkeypatch: Any) -> None:
    def slow(_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")

    monkeypatch.setattr(dashboard, "MAX_QUERY_TIME", "50ms")
    monkeypatch.setattr(dashboard.VisiblePlatform, "dead", slow)
    seen = look(staff)
    assert "Dead in 24 hours" not in seen and "Running now" in seen


@pytest.fixture
def status(monkeypatch: Any) -> BrokerStatus:
    """Replace the cached status by one that checks the brokers at each look."""
    fresh = BrokerStatus()
    monkeypatch.setattr(broker_status, "status", fresh)
    monkeypatch.setattr(broker_status, "CACHED_SECONDS", 0.0)
    return fresh


def test_messages_no_worker_could_read_are_reported(
    staff: Client, settings: Any, private_rabbitmq: PrivateRabbitMQ, status: BrokerStatus
) -> None:
    settings.CELERY_BROKER_URL = private_rabbitmq.url
    assert "could read" not in look(staff)["problems"]
    with Connection(private_rabbitmq.url) as link:
        kombu.Queue(DEAD_MESSAGES, channel=link.default_channel).declare()
        link.SimpleQueue(DEAD_MESSAGES).put("nonsense")
    problem = f"{DEAD_MESSAGES} of the platform's broker holds 1 message that no worker could read"
    wait_until(lambda: problem in look(staff)["problems"], 20, "the dead message to be told")


def test_a_broker_that_is_away_is_reported(staff: Client, settings: Any, status: BrokerStatus) -> None:
    settings.CELERY_BROKER_URL = f"amqp://guest:xyzzy@127.0.0.1:{free_port()}//"
    make_pool(slug="orphaned", broker="payments")
    seen = look(staff)
    assert "does not answer" in seen["problems"] and "orphaned (payments)" in seen["problems"]
    assert "xyzzy" not in seen["text"]


def test_a_mute_broker_is_reported_and_keeps_nobody_waiting(
    staff: Client, settings: Any, status: BrokerStatus, monkeypatch: Any
) -> None:
    monkeypatch.setattr(broker_status, "MAX_WAIT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings.CELERY_BROKER_URL = f"amqp://guest:guest@127.0.0.1:{mute.getsockname()[1]}//"
        assert "the brokers have not answered for" in look(staff)["problems"]
        first = status.thread
        look(staff)
        assert status.thread is first and first and first.is_alive(), "it is asked once at a time"
    first.join()
    assert "does not answer" in look(staff)["problems"]


def test_brokers_are_asked_once_in_a_while(staff: Client, status: BrokerStatus, monkeypatch: Any) -> None:
    monkeypatch.setattr(broker_status, "CACHED_SECONDS", 60.0)
    look(staff)
    first = status.thread
    look(staff)
    assert first and status.thread is first


def test_all_is_well_when_a_scheduler_and_a_worker_are_there(staff: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(dashboard, "CHECKS", ())
    JobClock.objects.all().delete()
    assert "All is well" in look(staff)["text"]
