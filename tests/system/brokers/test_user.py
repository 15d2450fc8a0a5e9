"""The RabbitMQ user of a tenant's workers, on a real broker: what it may do, and all that it may not."""

import io
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import httpx
import kombu
import pytest
from django.core.management import CommandError, call_command

from auditlog.models import AuditEntry
from jobs.models import Tenant
from runs.scheduler.broker.config import CLASSIC
from runs.scheduler.broker.users import tls
from tests.support.certificates import OwnCA
from tests.support.factories import make_pool, make_tenant
from tests.support.servers.rabbitmq import PrivateRabbitMQ

pytestmark = pytest.mark.django_db
VERSION, ARGUMENTS = CLASSIC


@pytest.fixture(scope="module")
def broker(own_ca: OwnCA) -> Iterator[PrivateRabbitMQ]:
    with PrivateRabbitMQ(management=True, ca=own_ca) as server:
        yield server


@pytest.fixture
def tenant(broker: PrivateRabbitMQ, settings: Any) -> Tenant:
    broker.use_fresh_vhost()
    settings.CELERY_BROKER_URL = broker.url
    settings.QUEUE_PREFIX = "bk"
    return make_tenant(slug="acme")


@pytest.fixture(params=["api", "rabbitmqctl"])
def how(request: pytest.FixtureRequest, broker: PrivateRabbitMQ, own_ca: OwnCA, settings: Any) -> list[str]:
    """Either leads to the same user."""
    if request.param == "rabbitmqctl":
        return ["--rabbitmqctl", broker.ctl_command()]
    settings.BROKER_API_URL = f"https://guest:guest@127.0.0.1:{broker.management_port}"
    settings.BROKER_CA_FILE = str(own_ca.ca)
    return []


def command(*arguments: str) -> str:
    said = io.StringIO()
    call_command("broker_user", *arguments, stdout=said)
    return said.getvalue()


def made(*arguments: str) -> dict[str, str]:
    """Return what was shown, by its first word."""
    lines = [line.split() for line in command(*arguments).splitlines()]
    return {words[0]: words[-1] for words in lines}


def connect(broker: PrivateRabbitMQ, user: dict[str, str]) -> Any:
    address = f"amqp://{user['user']}:{user['password']}@127.0.0.1:{broker.port}/{broker.vhost}"
    return kombu.Connection(address, connect_timeout=10)


def declare(broker: PrivateRabbitMQ, *names: str) -> None:
    with kombu.Connection(broker.url) as connection:
        channel: Any = connection.channel()
        for name in names:
            channel.queue_declare(name, durable=True, auto_delete=False, arguments=ARGUMENTS)
            channel.basic_publish(amqp.Message("wakeup"), routing_key=name)


OWN = f"bk.shop.acme.{VERSION}"
OTHERS = [f"bk.shop.other.{VERSION}", f"bk.shop.all.tenants.{VERSION}", f"bk.shop.acmex.{VERSION}", "celery"]
DEEDS: dict[str, Callable[[Any, str], Any]] = {
    "read": lambda channel, queue: channel.basic_get(queue),
    "consume": lambda channel, queue: channel.basic_consume(queue),
    "purge": lambda channel, queue: channel.queue_purge(queue),
}
NEVER: dict[str, Callable[[Any, str], Any]] = {
    "declare": lambda channel, queue: channel.queue_declare(f"{queue}2"),
    "delete": lambda channel, queue: channel.queue_delete(queue),
    "publish": lambda channel, queue: _publish(channel, queue),
    "bind": lambda channel, queue: channel.queue_bind(queue, "amq.fanout", ""),
}


def _publish(channel: Any, queue: str) -> None:
    channel.basic_publish(amqp.Message("forged"), routing_key=queue)
    # A publish has no answer of its own: what the broker thinks of it comes before that of the next.
    channel.queue_declare(queue, passive=True)


def test_it_reads_its_own_queues_and_does_nothing_else(
    broker: PrivateRabbitMQ, tenant: Tenant, how: list[str]
) -> None:
    user = made("acme", *how)
    declare(broker, OWN, *OTHERS)
    with connect(broker, user) as connection:
        assert connection.channel().queue_declare(OWN, passive=True).message_count == 1
        assert connection.channel().basic_get(OWN).body == "wakeup"
        for name, deed in (DEEDS | NEVER).items():
            for queue in OTHERS if name in DEEDS else [OWN, *OTHERS]:
                with pytest.raises(amqp.AccessRefused):
                    deed(connection.channel(), queue)


def test_it_is_audited_without_its_password_and_a_new_password_ends_the_old(
    broker: PrivateRabbitMQ, tenant: Tenant, how: list[str]
) -> None:
    first, second = made("acme", *how), made("acme", *how)
    connect(broker, second).connect()
    with pytest.raises(amqp.AccessRefused):
        connect(broker, first).connect()
    entries = AuditEntry.objects.filter(action="broker_user.created")
    assert [entry.after["user"] for entry in entries if entry.after] == ["bk.acme", "bk.acme"]
    kept = str(list(entries.values()))
    assert first["password"] not in kept and second["password"] not in kept
    command("acme", "--remove", *how)
    with pytest.raises(amqp.AccessRefused):
        connect(broker, second).connect()
    assert AuditEntry.objects.filter(action="broker_user.removed").exists()


def test_it_can_be_for_one_pool(broker: PrivateRabbitMQ, tenant: Tenant) -> None:
    make_pool(slug="shop")
    user = made("acme", "--pool", "shop", "--rabbitmqctl", broker.ctl_command())
    elsewhere = f"bk.kitchen.acme.{VERSION}"
    declare(broker, OWN, elsewhere)
    with connect(broker, user) as connection:
        assert connection.channel().basic_get(OWN).body == "wakeup"
        with pytest.raises(amqp.AccessRefused):
            connection.channel().basic_get(elsewhere)


def test_without_a_way_to_the_broker_it_says_what_to_type(tenant: Tenant) -> None:
    said = command("acme")
    assert "rabbitmqctl add_user bk.acme\n" in said
    assert "bk.acme '^$' '^$' '^bk[.][a-z0-9-]+[.]acme[.][a-z]+[0-9]+$'" in said


def test_what_cannot_be_is_refused_in_a_sentence(tenant: Tenant, settings: Any) -> None:
    make_pool(slug="closed", shared=False)
    for arguments, words in (
        (["nobody"], "no tenant 'nobody'"),
        (["acme", "--pool", "none"], "no pool 'none'"),
        (["acme", "--pool", "closed"], "not open to acme"),
        (["acme", "--rabbitmqctl", "/no/such/program"], "cannot be run"),
    ):
        with pytest.raises(CommandError, match=words):
            call_command("broker_user", *arguments)
    settings.BROKER_API_URL = "http://guest:zebra@127.0.0.1:1"
    with pytest.raises(CommandError, match="does not answer") as refusal:
        call_command("broker_user", "acme")
    assert "zebra" not in str(refusal.value)
    assert not AuditEntry.objects.filter(action="broker_user.created").exists()


def test_an_api_that_refuses_leaves_no_entry_and_no_user(
    broker: PrivateRabbitMQ, tenant: Tenant, own_ca: OwnCA, settings: Any
) -> None:
    settings.BROKER_CA_FILE = str(own_ca.ca)

    def users() -> list[str]:
        """Those that other tests made are still there."""
        url = f"https://127.0.0.1:{broker.management_port}/api/users"
        return sorted(user["name"] for user in httpx.get(url, auth=("guest", "guest"), verify=tls()).json())

    make_tenant(slug="other")
    before = users()
    settings.BROKER_API_URL = f"https://guest:wrong@127.0.0.1:{broker.management_port}"
    with pytest.raises(CommandError, match="refuses: 401"):
        call_command("broker_user", "other")
    assert not AuditEntry.objects.filter(action="broker_user.created").exists()
    assert users() == before


def test_an_api_with_an_unknown_certificate_hears_no_login(
    broker: PrivateRabbitMQ, tenant: Tenant, settings: Any
) -> None:
    settings.BROKER_API_URL = f"https://guest:zebra@127.0.0.1:{broker.management_port}"
    with pytest.raises(
        CommandError, match="certificate is not trusted.*BEATKEEPER_BROKER_CA_FILE"
    ) as refusal:
        call_command("broker_user", "acme")
    assert "zebra" not in str(refusal.value)
