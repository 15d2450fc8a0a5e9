"""A code base whose broker is Redis: it confirms by its answer, and may answer that it takes nothing."""

import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from runs.celery_beat.publisher import REMEDY, Away, CeleryPublisher, Undelivered, Unsendable
from runs.celery_beat.source import of_platform
from runs.scheduler.partitions.lock_session import SESSION_SECONDS, SILENCE
from tests.runs.celery_beat.test_publisher import message
from tests.support.certificates import OwnCA
from tests.support.servers.redis import PrivateRedis


@pytest.fixture
def app(private_redis: PrivateRedis) -> Celery:
    return Celery("host", broker=private_redis.url, set_as_current=False)


@pytest.fixture
def publisher(app: Celery) -> CeleryPublisher:
    publisher = CeleryPublisher(app)
    assert publisher.is_ready()
    return publisher


def test_a_message_lies_where_a_worker_looks_for_its_priority(
    private_redis: PrivateRedis, publisher: CeleryPublisher
) -> None:
    publisher.send(message(queue="letters", priority=6))
    queues = [key for key in private_redis.client().keys() if key.startswith(b"letters")]
    assert len(queues) == 1 and queues[0].endswith(b"6")


WITHOUT_REDIS = """
import logging, sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "redis" else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding if one is PathFinder else one for one in sys.meta_path]
from celery import Celery
from runs.celery_beat.publisher import CeleryPublisher
logging.basicConfig()
print(CeleryPublisher(Celery(broker=sys.argv[1])).is_ready())
"""


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1/0", "sentinel://:xyzzy@127.0.0.1:1/0"])
def test_a_redis_without_its_package_is_reported(address: str) -> None:
    command = [sys.executable, "-c", WITHOUT_REDIS, address]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "pip install redis" in done.stderr and "xyzzy" not in done.stderr


def test_a_redis_that_falls_silent_is_not_waited_for_long(
    private_redis: PrivateRedis, publisher: CeleryPublisher
) -> None:
    private_redis.suspend()
    asked = time.monotonic()
    with pytest.raises(Undelivered):
        publisher.send(message())
    assert not publisher.is_ready()
    assert time.monotonic() - asked < 2 * SILENCE * SESSION_SECONDS
    private_redis.resume()
    assert publisher.is_ready()
    publisher.send(message())


def test_what_a_redis_hears_late_is_not_sent_again_whatever_the_application_says(
    private_redis: PrivateRedis, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.conf.broker_transport_options = {"retry_on_timeout": True}
    publisher = CeleryPublisher(app)
    publisher.send(message(queue="letters"))
    give_up: Any = redis.Connection.disconnect

    def wakes_just_then(connection: redis.Connection, *arguments: Any, **options: Any) -> None:
        private_redis.resume()
        give_up(connection, *arguments, **options)

    monkeypatch.setattr(redis.Connection, "disconnect", wakes_just_then)
    private_redis.suspend()
    with pytest.raises(Undelivered):
        publisher.send(message(queue="letters"))
    client = private_redis.client()
    # By the time this is answered it has read all that had come before.
    client.ping()
    assert client.llen("letters") == 2


def test_a_redis_that_died_in_between_is_known_before_anything_is_on_its_way(
    private_redis: PrivateRedis, publisher: CeleryPublisher
) -> None:
    private_redis.kill()
    assert not publisher.is_ready()
    with pytest.raises(Away):
        publisher.send(message())
    private_redis.start()
    assert publisher.is_ready()
    publisher.send(message())


@pytest.mark.parametrize(
    ("unfit", "fit_again"),
    [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ],
    ids=["full", "a copy"],
)
def test_no_row_is_to_blame_for_a_redis_that_takes_nothing(
    private_redis: PrivateRedis,
    publisher: CeleryPublisher,
    caplog: pytest.LogCaptureFixture,
    unfit: str,
    fit_again: str,
) -> None:
    private_redis.client().execute_command(*unfit.split())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert publisher.is_ready()
            with pytest.raises(Away):
                publisher.send(message())
    assert caplog.text.count("takes nothing") == 1
    private_redis.client().execute_command(*fit_again.split())
    assert publisher.is_ready()
    publisher.send(message())


def test_what_stands_in_the_way_of_one_queue_is_the_rows_own_trouble(
    private_redis: PrivateRedis, publisher: CeleryPublisher
) -> None:
    private_redis.client().set("letters", "no list")
    with pytest.raises(Unsendable):
        publisher.send(message(queue="letters"))
    publisher.send(message())


def of_the_platform(settings: Any, url: str, ca: Path | str) -> CeleryPublisher:
    settings.CELERY_BEAT_URL = "postgresql://host"
    settings.CELERY_BEAT_BROKER_URL, settings.BROKER_CA_FILE = url, str(ca)
    served = of_platform()
    assert served is not None
    return CeleryPublisher(served.app)


def test_over_tls_the_platform_talks_to_the_redis_that_its_ca_has_signed(
    tmp_path: Path, own_ca: OwnCA, settings: Any
) -> None:
    with PrivateRedis(tmp_path, own_ca) as server:
        publisher = of_the_platform(settings, server.url, own_ca.ca)
        assert publisher.is_ready()
        publisher.send(message(queue="letters"))


@pytest.mark.parametrize("who", ["of another authority", "of another host"])
def test_over_tls_it_talks_to_nobody_else_and_says_what_helps(
    tmp_path: Path, own_ca: OwnCA, settings: Any, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    other = (
        OwnCA.make(tmp_path) if who == "of another authority" else own_ca.of_another_host("elsewhere.test")
    )
    with PrivateRedis(tmp_path, other) as server:
        assert not of_the_platform(settings, server.url, own_ca.ca).is_ready()
        assert "the broker's certificate is not trusted: " in caplog.text and REMEDY in caplog.text


def test_over_tls_what_is_said_outright_is_respected_and_reported(
    tmp_path: Path, own_ca: OwnCA, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with PrivateRedis(tmp_path, own_ca) as server:
        assert of_the_platform(settings, f"{server.url}?ssl_cert_reqs=none", "").is_ready()
    assert "anybody may be the broker of the periodic tasks" in caplog.text
