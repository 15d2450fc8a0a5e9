"""An impostor of the broker receives nothing, however TLS was requested."""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import kombu
import pytest
from celery import Celery

from scheduler_project.sdk.app import Beatkeeper
from scheduler_project.sdk.transport.broker_tls import (
    CheckedConnection,
    TrustsAnybody,
    checked_on_redis,
    tls_options,
    tls_trouble,
    trustworthy,
    with_ca,
)
from scheduler_project.sdk.worker.wakeup_connection import carries_wakeups, wakeup_connection
from tests.support.certificates import OwnCA

CA = {"ca_certs": "/ca.pem"}


class Impostor:
    """Speak TLS with its own certificate, and keep what is received."""

    def __init__(self, server: OwnCA) -> None:
        self._bytes = b""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.key)
        self._listening = context.wrap_socket(
            socket.create_server(("127.0.0.1", 0)), server_side=True, do_handshake_on_connect=False
        )
        self.port = self._listening.getsockname()[1]
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(OSError):
            client, _ = self._listening.accept()
            with closing(client):
                client.settimeout(5)
                client.do_handshake()
                self._bytes = client.recv(100)

    def received(self) -> bytes:
        self._thread.join(10)
        self._listening.close()
        return self._bytes


@pytest.fixture
def of_another_ca(tmp_path: Path) -> OwnCA:
    return OwnCA.make(tmp_path)


@pytest.fixture(params=["another authority", "another host"])
def impostor(request: pytest.FixtureRequest, own_ca: OwnCA, of_another_ca: OwnCA) -> Iterator[Impostor]:
    other = (
        of_another_ca if request.param == "another authority" else own_ca.of_another_host("elsewhere.test")
    )
    impostor = Impostor(other)
    yield impostor
    impostor.received()


def an_app(url: str, **options: Any) -> Celery:
    app = Celery("of a team", broker=url, set_as_current=False)
    app.conf.update(options)
    Beatkeeper(app)
    return app


def named_in_url(url: str, ca: str) -> Any:
    return CheckedConnection(with_ca(url, ca), connect_timeout=3)


def by_the_app(url: str, ca: str) -> Any:
    return wakeup_connection(an_app(url, broker_use_ssl={"ca_certs": ca}), connect_timeout=3)


def by_one_protocol(url: str, ca: str) -> Any:
    """With which py-amqp checks nothing at all by itself."""
    given = {"ca_certs": ca, "ssl_version": ssl.PROTOCOL_TLSv1_2}
    return wakeup_connection(an_app(url, broker_use_ssl=given), connect_timeout=3)


def by_a_context(url: str, ca: str) -> Any:
    given = {"context": {"cafile": ca}}
    return wakeup_connection(an_app(url, broker_use_ssl=given), connect_timeout=3)


def by_the_workers_own_broker(url: str, ca: str) -> Any:
    app = Celery("of a team", broker="memory://", set_as_current=False)
    Beatkeeper(app, broker_url=url, ca_file=ca)
    return wakeup_connection(app, connect_timeout=3)


WAYS = [named_in_url, by_the_app, by_one_protocol, by_a_context, by_the_workers_own_broker]


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLSv1_2")
@pytest.mark.parametrize("way", WAYS)
def test_an_impostor_receives_nothing(
    impostor: Impostor, own_ca: OwnCA, way: Callable[[str, str], Any]
) -> None:
    connection = way(f"amqps://payments:zebra@127.0.0.1:{impostor.port}//", str(own_ca.ca))
    with pytest.raises(ssl.SSLCertVerificationError) as refusal:
        connection.transport.establish_connection()
    assert impostor.received() == b""
    message = tls_trouble(refusal.value, "name the CA")
    assert message.startswith("the broker's certificate is not trusted: ") and message.endswith(
        "; name the CA"
    )
    assert "zebra" not in message


def test_kombu_alone_would_talk_to_any_host(own_ca: OwnCA) -> None:
    """What this is about; should it change, so may we."""
    impostor = Impostor(own_ca.of_another_host("elsewhere.test"))
    connection = kombu.Connection(
        f"amqps://payments:zebra@127.0.0.1:{impostor.port}//", ssl={"ca_certs": str(own_ca.ca)}
    )
    with pytest.raises(OSError):
        connection.transport.establish_connection()
    assert impostor.received().startswith(b"AMQP")


@pytest.mark.parametrize("given", [True, {}, {"server_hostname": None}, {"ssl_version": 2}, "true"])
def test_what_is_left_unsaid_is_checked(given: Any) -> None:
    options = tls_options(given, "rabbit.test")
    assert options["cert_reqs"] == ssl.CERT_REQUIRED and options["server_hostname"] == "rabbit.test"


def test_what_is_said_is_kept() -> None:
    said = {"certfile": "/c", "keyfile": "/k", "cert_reqs": ssl.CERT_OPTIONAL, "server_hostname": "mq"} | CA
    assert trustworthy(tls_options(said, "10.0.0.1")) == said
    prefixed = {f"ssl_{name}": value for name, value in said.items()}
    assert trustworthy(tls_options(prefixed, "10.0.0.1")) == said
    unsaid = dict(CA)
    tls_options(unsaid, "h")
    assert unsaid == CA, "the app's own settings"


def test_a_name_that_is_not_to_be_checked_by_a_context_is_not() -> None:
    said = {"context": {"cafile": "/ca.pem", "check_hostname": False}}
    assert tls_options(said, "h") == said


def test_an_app_that_says_outright_that_any_certificate_will_do_is_taken_at_its_word() -> None:
    unchecked = {"cert_reqs": ssl.CERT_NONE}
    assert tls_options(unchecked, "h") == unchecked
    with pytest.raises(TrustsAnybody, match="would let anybody be the broker"):
        trustworthy(tls_options({"ssl_cert_reqs": ssl.CERT_NONE}, "h"))


def test_a_connection_of_our_own_takes_nobody_at_that_word() -> None:
    connection = CheckedConnection("amqps://rabbit.test//", ssl={"cert_reqs": ssl.CERT_NONE})
    with pytest.raises(TrustsAnybody, match="would let anybody be the broker"):
        connection.transport.establish_connection()


def test_every_node_of_a_cluster_is_checked_by_its_own_name() -> None:
    connection: Any = CheckedConnection("amqps://one.test//;amqps://two.test//")
    for host in ("one.test", "two.test"):
        with pytest.raises(OSError):
            connection.transport.establish_connection()
        assert connection.ssl["server_hostname"] == host
        connection.maybe_switch_next()


def test_the_ca_goes_to_the_encrypted_addresses_that_name_none() -> None:
    assert with_ca("amqp://a//", "/ca") == "amqp://a//"
    assert with_ca("amqps://a//;amqps://b//?heartbeat=9", "/our ca") == (
        "amqps://a//?ssl_ca_certs=%2Four%20ca;amqps://b//?heartbeat=9&ssl_ca_certs=%2Four%20ca"
    )
    own = "amqps://a//?ssl_ca_certs=/own"
    assert with_ca(own, "/ca") == own
    assert with_ca("amqps://a//", "") == "amqps://a//" and with_ca("", "/ca") == ""
    assert CheckedConnection(with_ca("amqps://a//", "/our ca")).ssl == {"ssl_ca_certs": "/our ca"}


def test_what_an_address_of_redis_leaves_unsaid_is_checked() -> None:
    """kombu alone checks nothing there, nor where it cannot read what is said."""
    checks = "ssl_cert_reqs=CERT_REQUIRED&ssl_check_hostname=true"
    assert checked_on_redis("rediss://a/0", "") == f"rediss://a/0?{checks}"
    assert checked_on_redis("rediss://a/0?ssl_cert_reqs=nix", "").endswith(f"?ssl_cert_reqs=nix&{checks}")
    assert checked_on_redis("REDISS://a/0#part", "") == f"REDISS://a/0?{checks}"
    cluster = "rediss://a/0;rediss://b/0?ssl_ca_certs=/own"
    connection: Any = kombu.Connection(checked_on_redis(cluster, "/our ca"))
    for ca in ("/our ca", "/own"):
        expected = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True, "ssl_ca_certs": ca}
        assert connection.ssl == expected
        connection.maybe_switch_next()


def test_what_an_address_of_redis_says_outright_is_left() -> None:
    own = "rediss://a/0?ssl_cert_reqs=none&ssl_check_hostname=false"
    assert checked_on_redis(own, "") == own
    for other in ("redis://a/0", "amqps://a//", "memory://", ""):
        assert checked_on_redis(other, "/ca") == other


def test_other_brokers_stay_what_they_are() -> None:
    app = an_app("memory://", broker_use_ssl={"ca_certs": "/ca.pem"})
    assert not carries_wakeups(app)
    assert type(wakeup_connection(app).transport).__name__ == "Transport"


def test_a_missing_file_and_a_broker_without_tls_are_described(own_ca: OwnCA) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"amqps://127.0.0.1:{listening.getsockname()[1]}//"
        answering = Thread(target=answer_without_tls, args=[listening], daemon=True)
        answering.start()
        with pytest.raises(OSError) as refusal:
            named_in_url(url, str(own_ca.ca)).transport.establish_connection()
        assert tls_trouble(refusal.value, "").startswith("no TLS with the broker: ")
        answering.join()
        with pytest.raises(OSError) as refusal:
            named_in_url(url, "/nowhere.pem").transport.establish_connection()
        assert tls_trouble(refusal.value, "look").startswith("a file for TLS with the broker is not there")
    assert tls_trouble(OSError("something else"), "") == ""


def answer_without_tls(listening: socket.socket) -> None:
    with listening.accept()[0] as client, suppress(OSError):
        client.recv(1000)
        client.sendall(b"AMQP\0\0\x09\x01")
        client.recv(1000)
