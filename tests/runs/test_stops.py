from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.models import Effect, Stop, StopKind, Tenant
from runs.stops import Stops, end_stop, read_stops
from tests.factories import make_pool, make_stop, make_tenant, now

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def session() -> Iterator[psycopg.Connection[Any]]:
    connection.ensure_connection()
    yield connection.connection


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant()


def stops(session: psycopg.Connection[Any]) -> Stops:
    return read_stops(session, now())


def test_without_stops_nothing_is_asked(session: Any) -> None:
    found = stops(session)
    assert not found and not found.need_tags
    assert found.suspends(1, 1, {}, now()) is None and found.holds(1, 1, {}, now()) is None


@pytest.mark.parametrize(
    ("effect", "suspends", "holds"),
    [
        (Effect.CATCH_UP, True, True),
        (Effect.HOLD, False, True),
        (Effect.SKIP, True, False),
        (Effect.RUN_AFTER, True, False),
    ],
)
def test_each_effect_stops_what_it_says(session: Any, effect: Effect, suspends: bool, holds: bool) -> None:
    make_stop(effect=effect, kind=StopKind.BLACKOUT, ends_at=now() + HOUR)
    found = stops(session)
    assert (found.suspends(1, 1, {}, now()) is not None) is suspends
    assert (found.holds(1, 1, {}, now()) is not None) is holds


def test_a_stop_concerns_what_fits_all_that_it_names(session: Any, tenant: Tenant) -> None:
    pool = make_pool()
    make_stop(tenant=tenant, pool=pool, tag_name="team", tag_value="payments")
    found = stops(session)
    assert found.need_tags
    tags = {"team": "payments", "tier": "1"}
    assert found.suspends(tenant.pk, pool.pk, tags, now())
    assert not found.suspends(tenant.pk + 1, pool.pk, tags, now())
    assert not found.suspends(tenant.pk, pool.pk + 1, tags, now())
    assert not found.suspends(tenant.pk, pool.pk, {"team": "orders"}, now())
    assert not found.suspends(tenant.pk, pool.pk, {}, now())


def test_a_tag_without_a_value_means_every_value(session: Any, tenant: Tenant) -> None:
    make_stop(tenant=tenant, tag_name="team")
    found = stops(session)
    assert found.suspends(tenant.pk, 1, {"team": ""}, now()) and found.suspends(
        tenant.pk, 1, {"team": "x"}, now()
    )
    assert not found.suspends(tenant.pk, 1, {"teams": "x"}, now())


def test_its_end_is_outside_and_its_beginning_inside(session: Any) -> None:
    stop = make_stop(begins_at=now() - HOUR, ends_at=now() - HOUR / 2)
    found = stops(session)
    assert stop.ends_at
    assert found.suspends(1, 1, {}, stop.begins_at)
    assert not found.suspends(1, 1, {}, stop.begins_at - timedelta(milliseconds=1))
    assert found.suspends(1, 1, {}, stop.ends_at - timedelta(milliseconds=1))
    assert not found.suspends(1, 1, {}, stop.ends_at)
    assert [row.id for row in found.over(now())] == [stop.pk]


def test_lifting_ends_it_before_its_time(session: Any) -> None:
    stop = make_stop(begins_at=now() - HOUR, ends_at=now() + HOUR, lifted_at=now() - HOUR / 2)
    found = stops(session)
    assert not found.holds(1, 1, {}, now())
    assert [row.over_at for row in found.over(now())] == [stop.lifted_at]


def test_one_that_was_lifted_before_it_began_stops_nothing(session: Any) -> None:
    make_stop(begins_at=now() - HOUR, ends_at=now() + HOUR, lifted_at=now() - 2 * HOUR)
    assert not stops(session).suspends(1, 1, {}, now())


def test_one_that_has_not_begun_is_read_when_asked_for(session: Any) -> None:
    make_stop(begins_at=now() + HOUR)
    assert not stops(session)
    later = now() + 2 * HOUR
    assert read_stops(session, later).suspends(1, 1, {}, later)


def test_what_drops_a_time_goes_before_what_makes_up_for_it(session: Any) -> None:
    make_stop(effect=Effect.CATCH_UP)
    make_stop(effect=Effect.RUN_AFTER, kind=StopKind.BLACKOUT, ends_at=now() + HOUR)
    skips = make_stop(effect=Effect.SKIP, kind=StopKind.BLACKOUT, ends_at=now() + HOUR)
    found = stops(session).suspends(1, 1, {}, now())
    assert found and found.id == skips.pk


def test_the_reason_is_of_the_stop_that_lasts_longest(session: Any) -> None:
    make_stop(effect=Effect.HOLD, ends_at=now() + HOUR)
    longer = make_stop(effect=Effect.HOLD, ends_at=now() + 2 * HOUR)
    held = stops(session).holds(1, 1, {}, now())
    assert held and held.id == longer.pk
    endless = make_stop(effect=Effect.HOLD, note="database move " * 9)
    held = stops(session).holds(1, 1, {}, now())
    assert held and held.id == endless.pk and held.over_at is None
    assert held.reason.startswith("paused: database move") and len(held.reason) <= 40


def test_its_end_is_told_once(session: Any, tenant: Tenant) -> None:
    stop = make_stop(tenant=tenant, begins_at=now() - HOUR, ends_at=now() - HOUR / 2)
    assert end_stop(session, stop.pk, now())
    assert not end_stop(session, stop.pk, now())
    assert Stop.objects.get(pk=stop.pk).settled_at is not None
    entry = AuditEntry.objects.get(object_type="stop", object_id=str(stop.pk))
    assert (entry.action, entry.tenant_id, entry.actor_kind) == ("stop.ended", tenant.pk, "system")
    assert not stops(session)


def test_one_that_is_not_over_is_not_ended(session: Any) -> None:
    stop = make_stop()
    assert not end_stop(session, stop.pk, now())
    later = make_stop(ends_at=now() + HOUR)
    assert not end_stop(session, later.pk, now())
