"""Two server processes with many clients let through exactly as many requests as the limit says."""

import http.client
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.models import Allowance, Tenant
from tests.support.factories import make_key, make_tenant
from tests.support.ports import free_port
from tests.support.processes import Processes
from tests.support.servers.api import serve

pytestmark = pytest.mark.django_db(transaction=True)
LIMIT, CLIENTS, AFTER_REFUSAL = 300, 6, 20


@pytest.fixture
def ports(database_url: str, processes: Processes) -> Iterator[list[int]]:
    """Where two processes listen that know nothing of each other."""
    ports = [free_port(), free_port()]
    servers = [serve(processes, port, {"DATABASE_URL": database_url}) for port in ports]
    yield ports
    for server in servers:
        server.terminate()


def send_until_refused(port: int, key: str) -> Counter[int]:
    """Count answers by status; a while longer than up to the first refusal."""
    connection, statuses = http.client.HTTPConnection("127.0.0.1", port, timeout=60), Counter[int]()
    while statuses[429] < AFTER_REFUSAL:
        connection.request("GET", "/api/v1/me", headers={"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        response.read()
        statuses[response.status] += 1
    connection.close()
    return statuses


def hammer(ports: list[int], tenant: Tenant) -> Counter[int]:
    """Send with three keys of the tenant, each of which may send half of its requests, to both processes."""
    keys = [make_key(tenant)[1] for _ in range(3)]
    clients = [(port, key) for port in ports for key in keys for _ in range(CLIENTS)]
    with ThreadPoolExecutor(len(clients)) as threads:
        return sum(threads.map(lambda client: send_until_refused(*client), clients), Counter())


def test_two_processes_let_through_exactly_the_limit(ports: list[int]) -> None:
    minutes = 0
    while minutes != 1:
        # Unless a minute ended meanwhile.
        tenant = make_tenant(requests_per_minute=LIMIT)
        statuses = hammer(ports, tenant)
        minutes = Allowance.objects.filter(subject=f"tenant:{tenant.pk}").count()
    assert set(statuses) == {200, 429} and statuses[200] == LIMIT
