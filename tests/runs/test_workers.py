"""A living worker: the queryset of the pages and the fragment of the statements mean the same one."""

from datetime import timedelta
from itertools import product
from uuid import UUID

import pytest
from django.db import connection

from runs.models import NodeState, WorkerNode
from runs.sql import django_session, rows
from tests.support.factories import make_pool, make_worker, now

pytestmark = pytest.mark.django_db


def test_whoever_the_pages_show_as_living_is_given_runs() -> None:
    pool = make_pool()
    for state, silent, lease in product(NodeState, (0, 20, 40), (10.0, 30.0, 3600.0)):
        beat = now() - timedelta(seconds=silent)
        make_worker(pool, state=state, last_beat_at=beat, lease_seconds=lease)
    assert connection.in_atomic_block
    found = rows(django_session(), "living_workers", {"pool": pool.pk, "now": now()})
    living: set[UUID] = {incarnation for incarnation, *_ in found}
    assert living == set(WorkerNode.objects.living().values_list("pk", flat=True))
    assert 0 < len(living) < WorkerNode.objects.count()
