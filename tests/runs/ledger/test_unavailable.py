"""A database that is away without being gone: a caller learns it in time."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from uuid import uuid4

import pytest
from django.db import connection

from scheduler_project.sdk.errors import LedgerUnavailable
from scheduler_project.sdk.ledger.interface import CompletedClaim
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from tests.races.staging import dsn
from tests.runs.ledger.claims import SUCCESS, succeeded
from tests.sdk.targets.test_celery_task import make_claim

pytestmark = pytest.mark.django_db(transaction=True)


class Balancer:
    """Before the database; when that is gone it holds its clients, and says nothing."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server, self._sockets = server, list[socket.socket]()
        self.silent = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._sockets += (client, server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self.silent.is_set():
                    to.sendall(data)

    def close(self) -> None:
        for one in [self._listening, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    parameters = connection.get_connection_params()
    with closing(
        Balancer((parameters.get("host") or "127.0.0.1", int(parameters.get("port") or 5432)))
    ) as one:
        yield one


def test_who_says_nothing_is_away(balancer: Balancer) -> None:
    parts = [part for part in dsn().split() if not part.startswith(("host=", "port="))]
    through_it = " ".join([*parts, "host=127.0.0.1", f"port={balancer.port}"])
    with closing(PostgresLedger(through_it, answer_seconds=0.5)) as ledger:
        assert ledger.declaration_errors("acme", []) == {}
        balancer.silent.set()
        for request in (
            lambda: ledger.declaration_errors("acme", []),
            lambda: ledger.report([CompletedClaim(make_claim({}, token=uuid4()), succeeded(), SUCCESS)]),
        ):
            with pytest.raises(LedgerUnavailable):
                request()
        balancer.silent.clear()
        assert ledger.declaration_errors("acme", []) == {}


def test_a_database_that_is_read_only_for_now_is_away() -> None:
    """A primary that became a standby, and a standby that is about to be promoted."""
    read_only = f"{dsn()} options='-c default_transaction_read_only=on'"
    with closing(PostgresLedger(read_only)) as ledger, pytest.raises(LedgerUnavailable):
        ledger.report([CompletedClaim(make_claim({}, token=uuid4()), succeeded(), SUCCESS)])
