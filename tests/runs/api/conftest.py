import pytest

from jobs.models import Job
from tests.support.api_client import Caller
from tests.support.factories import make_tenant, post_job


@pytest.fixture
def caller(db: None) -> Caller:
    return Caller(make_tenant(slug="acme"))


@pytest.fixture
def job(caller: Caller) -> Job:
    return post_job(caller.tenant, name="settle", schedule={"every": 3600})
