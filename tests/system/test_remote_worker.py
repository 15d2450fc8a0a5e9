"""Run a worker that sees neither our database nor our folder.

It has TLS with a CA of its own, a worker's key, and a user on RabbitMQ that may read its own broker queues. The API it
speaks to is killed and comes back.
"""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from jobs.access.api_keys import revoke_key
from jobs.models import Role, Tenant
from runs.models import Queue, WorkerNode
from runs.scheduler.broker.users import Rabbitmqctl, make_user
from tests.support.api_client import Caller
from tests.support.certificates import OwnCA
from tests.support.factories import make_key, make_tenant
from tests.support.ports import answers, free_port
from tests.support.processes import Processes, RealProcess
from tests.support.servers.api import serve
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until
from tests.system.platform import (
    LEASE,
    RECOVERY,
    Platform,
    Row,
    Worker,
    is_dead,
    our_connection,
    remote_env,
)


class Api:
    """As it is run in production. It comes back at the address it had."""

    def __init__(self, platform: Platform, processes: Processes, ca: OwnCA) -> None:
        self.port = free_port()
        self._platform, self._processes, self._ca = platform, processes, ca
        self._process: RealProcess | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def start(self) -> None:
        self._process = serve(self._processes, self.port, self._platform.env(), ca=self._ca)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        wait_until(lambda: not answers(self.port), 10, "nobody at the API's address")


@pytest.fixture
def api(platform_with_own_broker: Platform, processes: Processes, own_ca: OwnCA) -> Api:
    api = Api(platform_with_own_broker, processes, own_ca)
    api.start()
    return api


@pytest.fixture
def platform(platform_with_own_broker: Platform, monkeypatch: pytest.MonkeyPatch) -> Platform:
    monkeypatch.setattr(settings, "CELERY_BROKER_URL", platform_with_own_broker.broker_url)
    monkeypatch.setattr(settings, "LOG_STORE_URL", platform_with_own_broker.log_store_url)
    platform_with_own_broker.scheduler()
    return platform_with_own_broker


@pytest.fixture
def key(platform: Platform) -> str:
    return make_key(platform.tenant, Role.WORKER, pool=platform.pool)[1]


def remote(platform: Platform, api: Api, key: str, ca: OwnCA, **env: str) -> Worker:
    found: dict[str, Any] = {**remote_env(api.url, key, ca), **env}
    return platform.worker(**found)


def test_it_does_all_that_a_worker_of_ours_does(
    platform: Platform, api: Api, key: str, own_ca: OwnCA, private_rabbitmq: PrivateRabbitMQ, gate: Path
) -> None:
    address = wakeups_at(platform, private_rabbitmq)
    worker = remote(
        platform, api, key, own_ca, BEATKEEPER_BROKER_URL=address, BEATKEEPER_FEED_AFTER_SECONDS="30"
    )

    # Without the feed, which would come after half a minute: by wake-ups, read by the limited user.
    succeeded = platform.run_of(platform.run_once(task="tests.prints"), "succeeded")
    assert platform.outcomes(succeeded) == ["succeeded"]
    [row] = platform.rows("SELECT broker_queue FROM beatkeeper_queue")
    assert platform.queue(row["broker_queue"])[1] == 1

    failed = platform.run_of(platform.run_once(raising=True), "dead")
    assert platform.outcomes(failed) == ["failed"] * 4
    limited = platform.run_once(task="tests.hangs", timeout=1, retry={"max_attempts": 1})
    assert platform.outcomes(platform.run_of(limited, "dead")) == ["timeout"]
    job = platform.run_once(until=str(gate))
    platform.wait(lambda: "attempt 1" in log_in_api(platform, platform.runs(job)[0]), 20, "lines to follow")
    platform.cancel(job)
    cancelled = platform.run_of(job, "cancelled")

    assert "attempt 4" in log_in_api(platform, failed)
    assert "attempt 1" in log_in_api(platform, cancelled)
    assert_no_trace_of(key, worker)
    assert worker.process.terminate() == 0
    with our_connection():
        platform.wait(lambda: WorkerNode.objects.filter(state="left").exists(), 10, "word that it left")


@pytest.mark.parametrize("kind", ["threads", "feed"])
def test_other_kinds_of_workers_take_runs_over_https_too(
    platform: Platform, api: Api, key: str, own_ca: OwnCA, processes: Processes, tmp_path: Path, kind: str
) -> None:
    """One whose pool cannot stop what runs in it, and one without a broker."""
    name = f"{kind}@{settings.TEST_ID}-{tmp_path.name}"
    command = {
        "threads": [
            "celery",
            "-A",
            "tests.support.sample_tasks",
            "worker",
            "-P",
            "threads",
            "-Q",
            platform.own_queue,
        ],
        "feed": ["scheduler_project.sdk.worker.feed", "-A", "tests.support.sample_tasks"],
    }[kind]
    env = {**platform.env(), **remote_env(api.url, key, own_ca), "BEATKEEPER_SPOOL_DIR": str(tmp_path / kind)}
    worker = processes.python(*command, "-c", "2", "-n", name, env=env, name=kind)
    run = platform.run_of(platform.run_once(task="tests.prints"), "succeeded", timeout=40)
    assert "on stderr" in platform.log_of(run)
    assert platform.outcomes(run) == ["succeeded"]
    assert worker.terminate() == 0


def test_what_ends_while_the_platform_is_away_is_reported_when_it_is_back(
    platform: Platform, api: Api, key: str, own_ca: OwnCA, gate: Path
) -> None:
    worker = remote(platform, api, key, own_ca, BEATKEEPER_LEASE_SECONDS="60")
    once = {"max_attempts": 1}
    jobs = [platform.run_once(until=str(gate), retry=once, raising=raising) for raising in (False, True)]
    platform.wait(lambda: len(platform.witnessed()) == 2, 30, "both to run")
    api.kill()
    gate.touch()
    platform.wait(lambda: len(spooled(worker)) == 2, 20, "both results in the spool")
    assert all(not platform.finished(job) for job in jobs)
    api.start()
    run = platform.run_of(jobs[0], "succeeded")
    platform.run_of(jobs[1], "dead")
    assert "attempt 1" in platform.log_of(run)
    assert platform.outcomes(run) == ["succeeded"]
    assert len(platform.witnessed(run["id"])) == 1
    platform.wait(lambda: not spooled(worker), 10, "an empty spool")
    platform.assert_one_attempt_at_a_time()


def test_a_platform_away_for_longer_than_the_lease_never_sees_two_attempts_at_once(
    platform: Platform, api: Api, key: str, own_ca: OwnCA, gate: Path
) -> None:
    worker = remote(platform, api, key, own_ca)
    job = platform.run_once(until=str(gate))
    platform.wait_for_attempt(1)
    api.kill()
    worker.process.wait_for_output("No heartbeat was answered in time", timeout=LEASE + 20)
    api.start()
    platform.wait_for_attempt(2, RECOVERY + 2 * LEASE)
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert platform.outcomes(run) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()


def test_what_a_worker_runs_ends_with_its_key_and_goes_to_another(
    platform: Platform, api: Api, own_ca: OwnCA, gate: Path
) -> None:
    revoked, text = make_key(platform.tenant, Role.WORKER, pool=platform.pool)
    worker = remote(platform, api, text, own_ca)
    job = platform.run_once(until=str(gate))
    first = platform.wait_for_attempt(1)
    with our_connection():
        revoke_key(revoked, "left the team")
    worker.process.wait_for_output("the key is wrong, expired or revoked", timeout=20)
    platform.wait(lambda: is_dead(first.pid), LEASE + 10, "the end of what it runs")
    with our_connection():
        _, other = make_key(platform.tenant, Role.WORKER, pool=platform.pool)
    remote(platform, api, other, own_ca)
    platform.wait_for_attempt(2, RECOVERY + 2 * LEASE)
    gate.touch()
    run = platform.run_of(job, "succeeded")
    assert platform.outcomes(run) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()


def test_wakeups_that_are_not_its_own_to_read_cost_it_time_and_no_run(
    platform: Platform, api: Api, key: str, own_ca: OwnCA, private_rabbitmq: PrivateRabbitMQ
) -> None:
    """By a user that was made for another tenant."""
    with our_connection():
        other = make_tenant()
        platform.pool.tenants.add(other)
    address = wakeups_at(platform, private_rabbitmq, other)
    worker = remote(platform, api, key, own_ca, BEATKEEPER_BROKER_URL=address)
    for _ in range(2):
        platform.run_of(platform.run_once(), "succeeded")
    with our_connection():
        own = Queue.objects.get(tenant=platform.tenant).broker_queue
    output = worker.process.wait_for_output(f"{own} is not ours to read")
    assert output.count("is not ours to read") == 1
    assert platform.queue(own)[1] == 0


def wakeups_at(platform: Platform, broker: PrivateRabbitMQ, tenant: Tenant | None = None) -> str:
    with our_connection():
        user = make_user(tenant or platform.tenant, platform.pool, Rabbitmqctl([broker.ctl_command()]).make)
    return f"amqp://{user.name}:{user.password}@127.0.0.1:{broker.port}/{broker.vhost}"


def log_in_api(platform: Platform, run: Row) -> str:
    with our_connection():
        return str(Caller(platform.tenant).get(f"runs/{run['id']}/log").content)


def spooled(worker: Worker) -> list[Path]:
    return [file for folder in worker.spool_folders() for file in (folder / "spool").glob("*.json")]


def assert_no_trace_of(key: str, worker: Worker) -> None:
    """Not in what anybody may list; the folder is its owner's alone."""
    # Its last part, which may hold the separator too.
    secret = key.split("_", 2)[2].encode()
    for pid in worker.whole():
        assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert secret.decode() not in worker.process.text()
    [folder] = worker.spool_folders()
    holding = [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert [path.name for path in holding] == ["config.json"]
    assert holding[0].stat().st_mode & 0o077 == 0
