import pytest

from jobs.models import Pool, Tenant
from tests.support.api_client import Caller
from tests.support.factories import make_pool, make_tenant


@pytest.fixture
def pool(db: None) -> Pool:
    return make_pool(slug="default")


@pytest.fixture
def tenant(db: None) -> Tenant:
    return make_tenant(slug="acme")


@pytest.fixture
def own_pool(tenant: Tenant) -> Pool:
    """Make a pool of a team, which exports nothing yet."""
    pool = make_pool(slug="payments", shared=False, exported_tasks=[])
    pool.tenants.add(tenant)
    return pool


@pytest.fixture
def caller(tenant: Tenant, pool: Pool) -> Caller:
    return Caller(tenant)
