"""Let a Flask shop and a Django clinic adopt the wheel.

They use TLS with a CA of their own, a worker's key, and a user on the platform's broker, over TLS too, that may read
their broker queues alone. Their own tasks stay on their own broker.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from jobs.access.api_keys import create_key
from jobs.models import Job, Role
from jobs.services.definition import edit_job
from jobs.services.status import pause_job
from runs.models import Queue
from tests.support.certificates import OwnCA
from tests.support.factories import make_pool, make_tenant
from tests.support.ports import free_port
from tests.support.processes import Processes, RealProcess
from tests.support.servers.api import serve
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until
from tests.system.adoption.adopter import DJANGO, FLASK, CodeBase, Sample
from tests.system.platform import Platform, our_connection

MOST_LINES = 9


class Team:
    """A code base, its tenant and its pool on the platform, and its key."""

    def __init__(self, code: CodeBase, slug: str) -> None:
        self.code, self.slug = code, slug
        self.tenant = make_tenant(slug=slug)
        self.pool = make_pool(slug=f"{slug}-workers", shared=False, exported_tasks=[], exported_kinds=[])
        self.pool.tenants.add(self.tenant)
        _key, self.key = create_key(self.tenant, "its workers", Role.WORKER, pool=self.pool)

    def user_on(self, broker: PrivateRabbitMQ) -> str:
        """Return what an operator's `manage.py broker_user` shows, as an address."""
        said = io.StringIO()
        arguments = [self.slug, "--pool", self.pool.slug, "--rabbitmqctl", broker.ctl_command()]
        call_command("broker_user", *arguments, stdout=said)
        shown = {line.split()[0]: line.split()[-1] for line in said.getvalue().splitlines()}
        return f"amqps://{shown['user']}:{shown['password']}@localhost:{broker.tls_port}/{broker.vhost}"

    def consumers(self, platform: Platform) -> int:
        """Of its queue on the platform's broker."""
        with our_connection():
            queue = Queue.objects.get(pool=self.pool, tenant=self.tenant).broker_queue
        return platform.queue(queue)[1]

    def job(self, name: str) -> Job | None:
        with our_connection():
            return Job.objects.filter(tenant=self.tenant, name=name).first()


@pytest.fixture
def platform(
    platform_with_own_broker: Platform, private_rabbitmq: PrivateRabbitMQ, own_ca: OwnCA
) -> Platform:
    """Its schedulers reach the broker over TLS too."""
    platform = platform_with_own_broker
    over_tls = {
        "CELERY_BROKER_URL": private_rabbitmq.tls_url,
        "BEATKEEPER_BROKER_CA_FILE": str(own_ca.ca),
    }
    platform.env = lambda: {**Platform.env(platform), **over_tls}  # type: ignore[method-assign]
    return platform


@pytest.fixture
def url(platform: Platform, own_ca: OwnCA, processes: Processes) -> str:
    """Of the platform's API, as it is run in production, over TLS."""
    port = free_port()
    serve(processes, port, platform.env(), ca=own_ca)
    return f"https://localhost:{port}"


@pytest.fixture(params=[FLASK, DJANGO], ids=["flask", "django"])
def team(
    request: pytest.FixtureRequest,
    platform: Platform,
    url: str,
    own_ca: OwnCA,
    processes: Processes,
    adopter: Path,
    tmp_path: Path,
    broker_url: str,
    private_rabbitmq: PrivateRabbitMQ,
    settings: Any,
) -> Iterator[Team]:
    sample: Sample = request.param
    code = CodeBase(sample, tmp_path, adopter, processes, broker_url, platform.own_queue)
    team = Team(code, sample.prefix.lower())
    settings.CELERY_BROKER_URL = platform.broker_url
    code.platform_is_at = {
        "BEATKEEPER_URL": url,
        "BEATKEEPER_BROKER_URL": team.user_on(private_rabbitmq),
        "BEATKEEPER_API_KEY": team.key,
        "BEATKEEPER_CA_FILE": str(own_ca.ca),
        "BEATKEEPER_SPOOL_DIR": str(tmp_path / "spool" / team.slug),
    }
    yield team


def test_its_tasks_fire_by_cron_retry_log_and_are_cancelled(platform: Platform, team: Team) -> None:
    code = team.code
    assert 0 < code.adopt() <= MOST_LINES
    prepare(code)
    scheduler = platform.scheduler()
    worker = code.worker()

    job = platform.wait(lambda: team.job(code.sample.planned.replace(":", ".")), 40, "the declared job")
    platform.wait(lambda: len(succeeded(platform, job)) >= 2, 40, "two runs by cron")
    platform.wait(lambda: team.consumers(platform) == 1, 30, "wake-ups to be read")
    asked_for_by_code(team)
    assert "connection lost" not in worker.text() and "broker is away" not in scheduler.text()
    assert "3 to add, 0 to change, 0 no longer declared" in worker.text()
    its_own_task(team)
    its_own_request(team, worker)
    drift_is_reported(team, job)

    with our_connection():
        pause_job(job)
    # One that was due just then is held by the pause.
    platform.wait(lambda: not in_hand(platform, job), 20, "runs in hand to end")
    runs = succeeded(platform, job)
    # Each run by cron is one execution of the code base's own task, with the run's own id.
    assert sorted(note.run for note in code.notes() if note.text in ("billed", "reminded")) == sorted(
        str(run["id"]) for run in runs
    )
    assert any(word in platform.log_of(runs[0]) for word in ("billed 0 sales", "reminded 0 patients"))
    assert worker.terminate() == 0


def test_its_tasks_fire_in_threads_and_while_its_broker_is_away(platform: Platform, team: Team) -> None:
    """In a process that loads the app anew, as the code base's own worker would have it."""
    code = team.code
    code.adopt()
    prepare(code)
    platform.scheduler()
    threads = code.worker("-P", "threads")
    job = platform.wait(lambda: team.job(code.sample.planned.replace(":", ".")), 40, "the declared job")
    platform.wait(lambda: succeeded(platform, job), 40, "a run by cron")
    assert threads.terminate() == 0

    before = len(succeeded(platform, job))
    nobody = f"amqp://guest:guest@127.0.0.1:{free_port()}//"
    code.worker(**{f"{code.sample.prefix}_BROKER_URL": nobody})
    platform.wait(lambda: len(succeeded(platform, job)) > before, 40, "a run without a broker")


def prepare(code: CodeBase) -> None:
    if code.sample is DJANGO:
        migrated = code.start("manage.py", "migrate", "--verbosity", "0")
        assert migrated.wait() == 0, migrated.text()


def succeeded(platform: Platform, job: Job) -> list[dict[str, object]]:
    return [run for run in platform.finished(job) if run["state"] == "succeeded"]


def in_hand(platform: Platform, job: Job) -> bool:
    return any(live["state"] != "blocked" for live in platform.live(job))


def asked_for_by_code(team: Team) -> None:
    """From a process of the code base that is no worker, as a web request would."""
    code = team.code
    script = code.script(
        "import json\n"
        "hard = retried.run_now(['north'], key='once')\n"
        "again = retried.run_now(['north'], key='once')\n"
        "endless = long.run_now()\n"
        "hard.wait(60)\n"
        "while endless.refresh().state != 'running': pass\n"
        "endless.cancel(); endless.wait(60)\n"
        "print(json.dumps([hard.state, hard.result, str(hard.id) == str(again.id), endless.state]))"
    )
    assert script.wait(90) == 0, script.text()
    assert json.loads(script.text().splitlines()[-1]) == ["succeeded", "north", True, "cancelled"]
    tries = [note for note in code.notes() if "north" in note.text]
    assert [note.attempt for note in tries] == [1, 2] and len({note.run for note in tries}) == 1
    assert len(code.noted("count") + code.noted("calculat")) == 1, "it was stopped before its end"


def its_own_task(team: Team) -> None:
    """Over its own broker and queue, as ever."""
    code = team.code
    assert code.script("own.delay('olga')").wait() == 0
    wait_until(lambda: [note for note in code.notes() if "olga" in note.text], 30, "the code base's own task")


def its_own_request(team: Team, worker: RealProcess) -> None:
    """Of a class of the clinic's own: it sees the clinic's own tasks as it ever did."""
    if team.code.sample is DJANGO:
        assert team.code.script("own.delay('')").wait() == 0
        worker.wait_for_output("the clinic's own request saw a failure")


def drift_is_reported(team: Team, job: Job) -> None:
    quiet = team.code.beatkeeper("drift")
    assert quiet.wait() == 0, quiet.text()
    with our_connection():
        edit_job(job, {"priority": 7})
    drift = team.code.beatkeeper("drift", "--json")
    assert drift.wait() == 1, drift.text()
    [drifted] = json.loads(drift.text())
    assert drifted["drift"] == [{"field": "priority", "before": 500, "after": 7}]
    applied = team.code.beatkeeper("apply")
    assert applied.wait() == 0, applied.text()
    assert "Applied: 1 of 1." in applied.text()
    back = team.job(job.name)
    assert back is not None and back.priority == 500
