"""A broker per pool: what may be said of brokers, who publishes where, and what becomes of queues that move."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings, settings
from django.core.exceptions import ImproperlyConfigured, ValidationError

from jobs.models import Pool
from runs.models import LiveRun, Queue
from runs.reasons import Reason
from runs.scheduler.broker.config import CLASSIC, QUORUM, known_brokers, queue_version
from runs.scheduler.broker.message import Wakeup
from runs.scheduler.broker.publisher import Publishers
from runs.scheduler.dispatch_loop import DispatchLoop
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.partitions.share import BALANCE_SECONDS
from runs.states import LiveState
from scheduler_project import env
from tests.races.staging import dsn
from tests.support.factories import make_job, make_pool, make_queue, make_run, make_worker

SECRET = "geheim"
PAYMENTS = f"amqp://user:{SECRET}@payments/vhost"
MAIL = "amqps://mail:5671//"

# What may be said of them.


@pytest.mark.parametrize(
    "value", [f"payments={PAYMENTS} mail={MAIL}", f'{{"payments": "{PAYMENTS}", "mail": "{MAIL}"}}']
)
def test_brokers_are_named_in_pairs_or_in_json(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BROKERS", value)
    assert env.brokers("BROKERS") == {"payments": PAYMENTS, "mail": MAIL}


def test_no_brokers_are_named_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", " ")
    assert env.brokers("BROKERS") == {}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (PAYMENTS, "NAME=amqp"),
        (f"payments:{PAYMENTS}", "NAME=amqp"),
        (f"payments:{PAYMENTS}?heartbeat=5", "small letters"),
        ("payments=", "NAME=amqp"),
        (f"Payments={PAYMENTS}", "small letters"),
        (f"payments=redis://u:{SECRET}@h payments", "NAME=amqp"),
        (f"payments=redis://u:{SECRET}@h", "amqp, amqps, pyamqp"),
        (f"payments=amqp://u:{SECRET}@h:{SECRET}/", "a port that is not a number"),
        (f"payments={PAYMENTS},mail={MAIL}", "two addresses"),
        (f"payments={PAYMENTS} payments={MAIL}", "payments twice"),
        (f"payments=amqps://u:{SECRET}@h/?ssl_cert_reqs=CERT_NONE", "would let anybody be the broker"),
        (f"payments=amqps://u:p@h/?cacertfile=/{SECRET}", "none of heartbeat, login_method, ssl_ca_certs"),
        (f'{{"payments": "{PAYMENTS}"', "like JSON and is none"),
        (f'{{"payments": ["{PAYMENTS}"]}}', "all of them texts"),
    ],
)
def test_nonsense_is_refused_in_words_and_without_the_url(
    monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.setenv("BROKERS", value)
    with pytest.raises(ImproperlyConfigured) as refused:
        env.brokers("BROKERS")
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_cluster_has_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "payments=amqp://a//;amqp://b//")
    assert env.brokers("BROKERS") == {"payments": "amqp://a//;amqp://b//"}


def test_a_broker_may_say_whom_to_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "amqps://h//?ssl_ca_certs=/ca.pem&ssl_cert_reqs=CERT_REQUIRED&ssl_server_hostname=rabbit&heartbeat=9"
    )
    monkeypatch.setenv("BROKERS", f"payments={said}")
    assert env.brokers("BROKERS") == {"payments": said}


def test_a_file_of_authorities_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CA", str(tmp_path / "ca.pem"))
    with pytest.raises(ImproperlyConfigured, match="CA='.*ca.pem' is no file that can be read"):
        env.readable_file("CA")
    (tmp_path / "ca.pem").touch()
    assert env.readable_file("CA") == str(tmp_path / "ca.pem")
    monkeypatch.delenv("CA")
    assert env.readable_file("CA") == ""


@pytest.mark.parametrize(
    ("value", "types"),
    [
        ("", {"": "classic"}),
        ("quorum", {"": "quorum"}),
        ("quorum payments=classic", {"": "quorum", "payments": "classic"}),
        ("payments=quorum", {"": "classic", "payments": "quorum"}),
    ],
)
def test_a_queue_type_is_for_all_brokers_or_for_one(
    monkeypatch: pytest.MonkeyPatch, value: str, types: dict[str, str]
) -> None:
    monkeypatch.setenv("TYPE", value)
    assert env.queue_types("TYPE", {"payments"}) == types


@pytest.mark.parametrize("value", ["stream", "payments=", "mail=quorum", "classic quorum payments=mirrored"])
def test_other_queue_types_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TYPE", value)
    with pytest.raises(ImproperlyConfigured, match="TYPE"):
        env.queue_types("TYPE", {"payments"})


def test_each_broker_has_its_queues(settings: LazySettings) -> None:
    settings.CELERY_BROKER_URL = "amqp://own"
    settings.BROKERS = {"payments": PAYMENTS}
    settings.QUEUE_TYPES = {"": "classic", "payments": "quorum"}
    brokers = known_brokers()
    assert brokers[""].arguments == CLASSIC[1]
    assert brokers["payments"].arguments == QUORUM[1]
    assert "x-max-priority" not in QUORUM[1]
    assert (queue_version(""), queue_version("payments"), queue_version("unheard-of")) == ("v2", "q2", "v2")


def test_without_a_broker_of_its_own_the_platform_still_serves_the_others(settings: LazySettings) -> None:
    settings.CELERY_BROKER_URL = ""
    settings.BROKERS = {"payments": PAYMENTS}
    assert list(known_brokers()) == ["payments"]


@pytest.mark.django_db
def test_a_pool_may_name_known_brokers_only(settings: LazySettings) -> None:
    settings.BROKERS = {"payments": PAYMENTS, "mail": MAIL}
    make_pool(broker="payments").full_clean()
    make_pool(broker="").full_clean()
    with pytest.raises(ValidationError) as refused:
        make_pool(broker="paymnts").full_clean()
    assert "mail, payments" in str(refused.value.message_dict["broker"])
    assert SECRET not in str(refused.value)


# Who publishes where.


class Recorder(Publishers):
    """Publishers that write down what they were told."""

    def __init__(self) -> None:
        super().__init__({})
        self.notices: dict[str, str] = {}
        self.offered: dict[str, list[Wakeup]] = {}
        self.declared: dict[str, set[str]] = {}

    def notice(self, broker: str) -> str:
        return self.notices.get(broker, "")

    def declare(self, broker: str, queues: Any) -> None:
        self.declared.setdefault(broker, set()).update(queues)

    def declare_only(self, queues: Any) -> None:
        self.declared = {broker: set(names) for broker, names in queues.items()}

    def offer(self, broker: str, wakeups: Any) -> None:
        self.offered.setdefault(broker, []).extend(wakeups)


@pytest.fixture
def publishers() -> Recorder:
    return Recorder()


@pytest.fixture
def dispatching(transactional_db: None, publishers: Any) -> Iterator[DispatchLoop]:
    with LockSession(dsn(), "test") as session:
        yield DispatchLoop(session, publishers)


def balance_anew(dispatching: DispatchLoop) -> None:
    """As a quarter of a second later."""
    dispatching._balanced_at -= BALANCE_SECONDS
    dispatching.step()


def test_each_pools_wakeups_go_to_its_broker(dispatching: DispatchLoop, publishers: Recorder) -> None:
    publishers.notices = {"payments": Reason.BROKER_AWAY}
    queues = {}
    for broker in ("", "payments"):
        pool = make_pool(broker=broker)
        make_worker(pool, slots=1)
        job = make_job(pool=pool)
        for _ in range(8):
            make_run(job)
        queues[broker] = job
    balance_anew(dispatching)
    for broker, job in queues.items():
        pool = Pool.objects.get(pk=job.pool_id)
        assert publishers.declared[broker] == {pool.broker_queue}
        assert {wakeup.broker_queue for wakeup in publishers.offered[broker]} == {pool.broker_queue}
        assert Queue.objects.get(pool=pool).reason == publishers.notices.get(broker, "")
        # A notice, not a stop.
        assert LiveRun.objects.filter(job=job, state=LiveState.QUEUED).exists()


def test_a_queue_shows_that_nobody_knows_its_broker(dispatching: DispatchLoop, publishers: Recorder) -> None:
    publishers.notices = {"unheard-of": Reason.UNKNOWN_BROKER}
    pool = make_pool(broker="unheard-of")
    make_worker(pool, slots=1)
    job = make_job(pool=pool)
    for _ in range(8):
        make_run(job)
    balance_anew(dispatching)
    assert Queue.objects.get().reason == "unknown_broker"


def test_a_pool_may_move_to_another_broker_at_any_time(
    dispatching: DispatchLoop, publishers: Recorder, settings: LazySettings
) -> None:
    settings.QUEUE_TYPES = {"": "classic", "payments": "quorum"}
    pool = make_pool()
    make_worker(pool)
    job = make_job(pool=pool)
    own = make_worker(pool, tenant=job.tenant)
    queue = make_queue(job)
    balance_anew(dispatching)
    before, own_before = names(pool, queue)
    assert before.endswith(".all.tenants.v2") and own_before.endswith(f".{job.tenant.slug}.v2")

    Pool.objects.update(broker="payments")
    for _ in range(6):
        make_run(job)
    balance_anew(dispatching)
    after = names(pool, queue)
    assert after == (before.removesuffix(".v2") + ".q2", own_before.removesuffix(".v2") + ".q2")
    assert publishers.declared == {"payments": set(after)}
    assert {wakeup.broker_queue for wakeup in publishers.offered["payments"]} == set(after)

    own.delete()
    Pool.objects.update(broker="")
    balance_anew(dispatching)
    assert names(pool, queue) == (before, own_before)
    assert publishers.declared == {"": {before}}


def names(pool: Pool, queue: Queue) -> tuple[str, str]:
    of_tenant = Queue.objects.get(pool=pool, tenant=queue.tenant).broker_queue
    return Pool.objects.get(pk=pool.pk).broker_queue, of_tenant


def test_nothing_is_renamed_while_nothing_changed(dispatching: DispatchLoop, publishers: Recorder) -> None:
    make_queue(make_job())
    balance_anew(dispatching)
    queue = Queue.objects.get()
    for _ in range(3):
        dispatching._declared = {}
        balance_anew(dispatching)
    assert Queue.objects.get() == queue


def test_class_queues_of_earlier_versions_become_the_tenants_own(dispatching: DispatchLoop) -> None:
    queue = make_queue(make_job(pool=make_pool(slug="default")))
    Queue.objects.update(broker_queue="bk.default.class.3.v2")
    balance_anew(dispatching)
    renamed = Queue.objects.get()
    assert renamed.broker_queue == f"{settings.QUEUE_PREFIX}.default.{queue.tenant.slug}.v2"
    assert renamed.pk > queue.pk


def test_workers_hear_of_a_renamed_queue(dispatching: DispatchLoop, settings: LazySettings) -> None:
    """They ask for queues after the last one they know, so a renamed queue has to come after it."""
    job = make_job(pool=make_pool(slug="default"))
    queue = make_queue(job)
    last = make_queue(make_job(pool=job.pool))
    settings.QUEUE_TYPES = {"": "quorum"}
    balance_anew(dispatching)
    renamed = Queue.objects.filter(pk__gt=last.pk).order_by("pk")
    assert [row.broker_queue for row in renamed] == [
        f"{settings.QUEUE_PREFIX}.default.{row.tenant.slug}.q2" for row in (queue, last)
    ]
    assert Queue.objects.count() == 2
