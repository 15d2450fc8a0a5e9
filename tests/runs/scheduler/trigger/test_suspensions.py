from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.models import Effect, Suspension, SuspensionKind, Tenant
from jobs.suspensions.rules import SuspensionSet
from runs.scheduler.trigger.suspensions import end_suspension, read_suspensions
from tests.support.factories import make_job, make_pool, make_suspension, make_tenant, now

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def session() -> Iterator[psycopg.Connection[Any]]:
    connection.ensure_connection()
    yield connection.connection


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant()


def suspensions(session: psycopg.Connection[Any]) -> SuspensionSet:
    return read_suspensions(session, now())


def test_without_suspensions_nothing_is_asked(session: Any) -> None:
    found = suspensions(session)
    assert not found and not found.need_tags and not found.need_jobs
    assert found.suspends(1, 1, None, {}, now()) is None and found.holds(1, 1, None, {}, now()) is None


@pytest.mark.parametrize(
    ("effect", "suspends", "holds"),
    [
        (Effect.CATCH_UP, True, True),
        (Effect.HOLD, False, True),
        (Effect.SKIP, True, False),
        (Effect.RUN_AFTER, True, False),
    ],
)
def test_each_effect_suspensions_what_it_says(
    session: Any, effect: Effect, suspends: bool, holds: bool
) -> None:
    make_suspension(effect=effect, kind=SuspensionKind.BLACKOUT, ends_at=now() + HOUR)
    found = suspensions(session)
    assert (found.suspends(1, 1, None, {}, now()) is not None) is suspends
    assert (found.holds(1, 1, None, {}, now()) is not None) is holds


def test_a_suspension_concerns_what_fits_all_that_it_names(session: Any, tenant: Tenant) -> None:
    pool = make_pool()
    make_suspension(tenant=tenant, pool=pool, tag_name="team", tag_value="payments")
    found = suspensions(session)
    assert found.need_tags and found.need_jobs
    tags = {"team": "payments", "tier": "1"}
    assert found.suspends(tenant.pk, pool.pk, None, tags, now())
    assert not found.suspends(tenant.pk + 1, pool.pk, None, tags, now())
    assert not found.suspends(tenant.pk, pool.pk + 1, None, tags, now())
    assert not found.suspends(tenant.pk, pool.pk, None, {"team": "orders"}, now())
    assert not found.suspends(tenant.pk, pool.pk, None, {}, now())


def test_a_tag_without_a_value_means_every_value(session: Any, tenant: Tenant) -> None:
    make_suspension(tenant=tenant, tag_name="team")
    found = suspensions(session)
    assert found.suspends(tenant.pk, 1, None, {"team": ""}, now()) and found.suspends(
        tenant.pk, 1, None, {"team": "x"}, now()
    )
    assert not found.suspends(tenant.pk, 1, None, {"teams": "x"}, now())


def test_a_suspension_of_one_job_concerns_neither_others_nor_their_whole_queue(session: Any) -> None:
    job = make_job()
    make_suspension(tenant=job.tenant, job=job)
    found = suspensions(session)
    assert found.need_jobs and not found.need_tags
    queue = (job.tenant_id, job.pool_id)
    assert found.suspends(*queue, job.pk, {}, now()) and found.holds(*queue, job.pk, {}, now())
    for other in (make_job(job.tenant, job.pool).pk, None):
        assert not found.suspends(*queue, other, {}, now()) and not found.holds(*queue, other, {}, now())


def test_its_end_is_outside_and_its_beginning_inside(session: Any) -> None:
    suspension = make_suspension(begins_at=now() - HOUR, ends_at=now() - HOUR / 2)
    found = suspensions(session)
    assert suspension.ends_at
    assert found.suspends(1, 1, None, {}, suspension.begins_at)
    assert not found.suspends(1, 1, None, {}, suspension.begins_at - timedelta(milliseconds=1))
    assert found.suspends(1, 1, None, {}, suspension.ends_at - timedelta(milliseconds=1))
    assert not found.suspends(1, 1, None, {}, suspension.ends_at)
    assert [row.id for row in found.over(now())] == [suspension.pk]


def test_lifting_ends_it_before_its_time(session: Any) -> None:
    suspension = make_suspension(begins_at=now() - HOUR, ends_at=now() + HOUR, lifted_at=now() - HOUR / 2)
    found = suspensions(session)
    assert not found.holds(1, 1, None, {}, now())
    assert [row.over_at for row in found.over(now())] == [suspension.lifted_at]


def test_one_that_was_lifted_before_it_began_suspensions_nothing(session: Any) -> None:
    make_suspension(begins_at=now() - HOUR, ends_at=now() + HOUR, lifted_at=now() - 2 * HOUR)
    assert not suspensions(session).suspends(1, 1, None, {}, now())


def test_one_that_has_not_begun_is_read_when_asked_for(session: Any) -> None:
    make_suspension(begins_at=now() + HOUR)
    assert not suspensions(session)
    later = now() + 2 * HOUR
    assert read_suspensions(session, later).suspends(1, 1, None, {}, later)


def test_what_drops_a_time_goes_before_what_makes_up_for_it(session: Any) -> None:
    make_suspension(effect=Effect.CATCH_UP)
    make_suspension(effect=Effect.RUN_AFTER, kind=SuspensionKind.BLACKOUT, ends_at=now() + HOUR)
    skips = make_suspension(effect=Effect.SKIP, kind=SuspensionKind.BLACKOUT, ends_at=now() + HOUR)
    found = suspensions(session).suspends(1, 1, None, {}, now())
    assert found and found.id == skips.pk


def test_the_reason_is_of_the_stop_that_lasts_longest(session: Any) -> None:
    make_suspension(effect=Effect.HOLD, ends_at=now() + HOUR)
    longer = make_suspension(effect=Effect.HOLD, ends_at=now() + 2 * HOUR)
    held = suspensions(session).holds(1, 1, None, {}, now())
    assert held and held.id == longer.pk
    endless = make_suspension(effect=Effect.HOLD, reason="database move " * 9)
    held = suspensions(session).holds(1, 1, None, {}, now())
    assert held and held.id == endless.pk and held.over_at is None
    assert held.stored_reason.startswith("paused: database move") and len(held.stored_reason) <= 40


def test_its_end_is_reported_once(session: Any, tenant: Tenant) -> None:
    suspension = make_suspension(tenant=tenant, begins_at=now() - HOUR, ends_at=now() - HOUR / 2)
    assert end_suspension(session, suspension.pk, now())
    assert not end_suspension(session, suspension.pk, now())
    assert Suspension.objects.get(pk=suspension.pk).settled_at is not None
    entry = AuditEntry.objects.get(object_type="suspension", object_id=str(suspension.pk))
    assert (entry.action, entry.tenant_id, entry.actor_kind) == ("suspension.ended", tenant.pk, "system")
    assert not suspensions(session)


def test_one_that_is_not_over_is_not_ended(session: Any) -> None:
    suspension = make_suspension()
    assert not end_suspension(session, suspension.pk, now())
    later = make_suspension(ends_at=now() + HOUR)
    assert not end_suspension(session, later.pk, now())
