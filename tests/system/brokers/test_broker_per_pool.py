"""A pool has a broker of its own: what befalls it is its own business, and it may move to another one."""

import pytest

from jobs.models import Job, Pool
from tests.support.factories import make_pool
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.system.platform import WITNESS, Platform, Worker, our_connection

RUNS = 20


def test_a_dead_broker_of_one_pool_leaves_the_others_alone(
    platform: Platform, private_rabbitmq: PrivateRabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform's broker is another one, shared with other tests, and goes on."""
    monkeypatch.setenv("BEATKEEPER_BROKERS", f"payments={private_rabbitmq.url}")
    payments = make_pool(slug="payments", broker="payments", exported_tasks=[WITNESS])
    scheduler = platform.scheduler()
    worker = platform.worker(slots=2)
    theirs = platform.worker(slots=2, SAMPLE_POOL="payments", CELERY_BROKER_URL=private_rabbitmq.url)
    for pool, ours in ((platform.pool, worker), (payments, theirs)):
        # The queue and its consumer come with the first run.
        all_run(platform, pool)
        platform.wait(lambda pool=pool: platform_queue(platform, private_rabbitmq, pool), 30, pool.slug)  # type: ignore[misc]
        assert by_wakeup(platform, all_run(platform, pool), ours) > RUNS / 2
    assert queue_of(platform, payments) in private_rabbitmq.queues()

    private_rabbitmq.kill()
    scheduler.wait_for_output("broker payments is away")
    assert by_wakeup(platform, all_run(platform, platform.pool), worker) > RUNS / 2
    # More slowly, but all of them.
    all_run(platform, payments)
    assert "the platform's broker is away" not in scheduler.text()

    with our_connection():
        Pool.objects.filter(pk=payments.pk).update(broker="")
    moved = platform.worker(slots=2, SAMPLE_POOL="payments")
    platform.wait(lambda: platform.queue(queue_of(platform, payments))[1] == 1, 40, "a consumer there")
    theirs.process.terminate()
    assert by_wakeup(platform, all_run(platform, payments), moved) > RUNS / 2
    assert private_rabbitmq.url not in scheduler.text()
    assert scheduler.is_alive()


def all_run(platform: Platform, pool: Pool) -> Job:
    job = platform.run_often(RUNS, pool=pool.slug)
    platform.wait(lambda: len(platform.finished(job)) == RUNS, 60, f"all runs in {pool.slug} to end")
    platform.assert_each_ran_once(platform.runs(job))
    return job


def by_wakeup(platform: Platform, job: Job, worker: Worker) -> int:
    """Return whether runs came by wake-ups; those of a feed ran in children of its own."""
    ours, children = {str(run["id"]) for run in platform.runs(job)}, worker.children()
    return sum(seen.run in ours and seen.pid in children for seen in platform.witnessed())


def queue_of(platform: Platform, pool: Pool) -> str:
    query = "SELECT broker_queue FROM beatkeeper_pool WHERE id = %s"
    return str(platform.rows(query, pool.pk)[0]["broker_queue"])


def platform_queue(platform: Platform, private_rabbitmq: PrivateRabbitMQ, pool: Pool) -> bool:
    """Whether a worker consumes from the pool's queue, at its broker."""
    if not pool.broker:
        return platform.queue(queue_of(platform, pool))[1] == 1
    listed = private_rabbitmq.ctl(
        "list_queues", "--vhost", private_rabbitmq.vhost, "--no-table-headers", "name", "consumers"
    )
    return dict(line.split() for line in listed.splitlines()).get(queue_of(platform, pool)) == "1"
