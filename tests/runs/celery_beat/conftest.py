from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.conf import settings

from tests.runs.celery_beat.host import MIGRATE, HostProject, database

NO_BROKER = "memory://"


@pytest.fixture(scope="session")
def host_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Make a database with django-celery-beat's tables by its own migrations."""
    with database() as url:
        HostProject(url, "none", NO_BROKER, tmp_path_factory.mktemp("host")).python(MIGRATE)
        yield urlsplit(url).path[1:]


@pytest.fixture
def host(host_template: str, broker_url: str, tmp_path: Path) -> Iterator[HostProject]:
    with database(host_template) as url:
        queue = f"{settings.QUEUE_PREFIX}.host.{tmp_path.name}"
        yield HostProject(url, queue, broker_url, tmp_path)
