from collections.abc import Iterator

import pytest

from jobs.models import Job
from runs.models import WorkerNode
from runs.scheduler.partitions.lock_session import connect
from tests.races.staging import Session, dsn, second_connection
from tests.support.factories import make_job, make_worker


@pytest.fixture
def first() -> Iterator[Session]:
    with connect(dsn(), "first", 30) as connection:
        yield connection


@pytest.fixture
def second() -> Iterator[Session]:
    with connect(dsn(), "second", 30) as connection:
        yield connection


@pytest.fixture
def other(django_db_blocker: object) -> Iterator[Session]:
    with second_connection() as session:
        yield session


@pytest.fixture
def job() -> Job:
    return make_job()


@pytest.fixture
def worker(job: Job) -> WorkerNode:
    return make_worker(job.pool, slots=1)
