"""Pauses and blackouts: what may be asked, what it leaves behind, what it refuses."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs import platform, stops
from jobs.database_clock import database_now
from jobs.instants import as_text
from jobs.models import Effect, Pool, Stop, StopKind, Tenant
from jobs.refusals import InvalidInput, Missing
from jobs.stops import StopHasBegun, StopIsOver, TooManyStops, create_stop, delete_stop, edit_stop, lift_stop
from tests.factories import make_pool, make_stop, make_tenant, now, post_job

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
PAUSE, BLACKOUT = StopKind.PAUSE, StopKind.BLACKOUT


def ahead(hours: float) -> str:
    return as_text(now() + hours * HOUR)


def blackout(tenant: Tenant | None = None, **data: Any) -> Stop:
    return create_stop(BLACKOUT, {"everything": True, "ends_at": ahead(1), **data}, tenant=tenant)


def entries(stop: Stop) -> list[str]:
    found = AuditEntry.objects.filter(object_type="stop", object_id=str(stop.pk)).order_by("id")
    return list(found.values_list("action", flat=True))


def test_a_pause_of_a_tag_begins_now_and_has_no_end(tenant: Tenant) -> None:
    stop = create_stop(PAUSE, {"tag": "team:payments", "note": "quarter end"}, tenant=tenant)
    kept = Stop.objects.get(pk=stop.pk)
    assert (kept.tag_name, kept.tag_value, kept.tenant, kept.pool) == ("team", "payments", tenant, None)
    assert (kept.effect, kept.ends_at, kept.note) == (Effect.CATCH_UP, None, "quarter end")
    assert kept.begins_at <= database_now() and stops.state_of(kept, database_now()) == "in_force"
    entry = AuditEntry.objects.get(object_type="stop")
    assert (entry.action, entry.tenant_id, entry.reason) == ("stop.created", tenant.pk, "quarter end")
    assert entry.after and entry.after["tag"] == "team:payments"


def test_a_tag_may_stand_without_its_value(tenant: Tenant) -> None:
    stop = create_stop(PAUSE, {"tag": "team"}, tenant=tenant)
    assert (stop.tag_name, stop.tag_value) == ("team", "") and stops.tag_of(stop) == "team"
    assert stops.in_words(stop) == "all jobs of acme tagged team"


def test_a_blackout_skips_unless_told_otherwise(tenant: Tenant) -> None:
    stop = blackout(tenant, begins_at=ahead(0.5))
    assert stop.effect == Effect.SKIP and stops.state_of(stop, database_now()) == "planned"


@pytest.mark.parametrize("begins", [None, timedelta(seconds=-30)])
def test_one_that_should_have_begun_just_now_begins_now(tenant: Tenant, begins: timedelta | None) -> None:
    before = database_now()
    stop = blackout(tenant, begins_at=begins and as_text(before + begins))
    assert before <= stop.begins_at <= database_now()


def test_a_pause_of_a_pool_holds(pool: Pool) -> None:
    stop = create_stop(PAUSE, {"pool": "default"}, tenant=None)
    assert (stop.effect, stop.pool, stop.tenant) == (Effect.HOLD, pool, None)
    with pytest.raises(InvalidInput, match="are held"):
        create_stop(PAUSE, {"pool": "default", "effect": "catch_up"}, tenant=None)


def test_workers_of_the_version_before_go_on_when_a_pool_does(pool: Pool) -> None:
    """They ask the pool itself, where a pause from before the upgrade still stands."""
    create_stop(PAUSE, {"pool": "default"}, tenant=None)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE beatkeeper_pool SET paused_at = now()")
        platform.resume_pool(pool)
        cursor.execute("SELECT paused_at FROM beatkeeper_pool")
        assert cursor.fetchone() == (None,)


def test_a_tenant_pauses_its_own_jobs_in_a_pool(tenant: Tenant, pool: Pool) -> None:
    stop = create_stop(PAUSE, {"pool": "default"}, tenant=tenant)
    assert (stop.effect, stop.tenant) == (Effect.CATCH_UP, tenant)
    assert stops.in_words(stop) == "all jobs of acme in the pool default"


@pytest.mark.parametrize(
    ("kind", "data", "field", "said"),
    [
        (PAUSE, {}, "tag", "nothing says"),
        (PAUSE, {"tag": None, "pool": None}, "tag", "nothing says"),
        (PAUSE, {"everything": False}, "everything", "says nothing"),
        (PAUSE, {"everything": "yes"}, "everything", "not a boolean"),
        (PAUSE, {"everything": True, "tag": "team"}, "everything", "both given"),
        (PAUSE, {"tag": ":payments"}, "tag", "names no tag"),
        (PAUSE, {"tag": {"team": "payments"}}, "tag", "names no tag"),
        (PAUSE, {"tag": "a\nb"}, "tag", "names no tag"),
        (PAUSE, {"tag": "x" * 61}, "tag", "names no tag"),
        (PAUSE, {"pool": "defalt"}, "pool", "no pool"),
        (PAUSE, {"pool": 5}, "pool", "no pool"),
        (PAUSE, {"tag": "a", "effect": "skip"}, "effect", "not what a pause can do"),
        (PAUSE, {"tag": "a", "effect": None}, "effect", "not what a pause can do"),
        (PAUSE, {"tag": "a", "note": 5}, "note", "not a note"),
        (PAUSE, {"tag": "a", "until": "x"}, "until", "not known"),
        (PAUSE, {"tag": "a", "ends_at": "tomorrow"}, "ends_at", "not an instant"),
        (PAUSE, {"tag": "a", "ends_at": "2020-01-01T00:00:00Z"}, "ends_at", "in the past"),
        (PAUSE, {"tag": "a", "begins_at": "2020-01-01T00:00:00Z"}, "begins_at", "in the past"),
        (BLACKOUT, {"tag": "a"}, "ends_at", "required"),
        (BLACKOUT, {"tag": "a", "ends_at": None}, "ends_at", "required"),
        (
            BLACKOUT,
            {"tag": "a", "effect": "catch_up", "ends_at": "2099-01-01T00:00:00Z"},
            "effect",
            "blackout",
        ),
        (
            BLACKOUT,
            {"tag": "a", "begins_at": "2099-01-02T00:00:00Z", "ends_at": "2099-01-01T00:00:00Z"},
            "ends_at",
            "not after the beginning",
        ),
        (PAUSE, [], "", "not an object"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tenant: Tenant, pool: Pool, kind: StopKind, data: Any, field: str, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        create_stop(kind, data, tenant=tenant)
    assert refused.value.field == field and refused.value.hint
    assert not Stop.objects.exists() and not AuditEntry.objects.filter(object_type="stop").exists()


def test_all_mistakes_are_told_at_once(tenant: Tenant) -> None:
    with pytest.raises(InvalidInput) as refused:
        create_stop(PAUSE, {"tag": "", "pool": "x", "effect": "y", "ends_at": "z"}, tenant=tenant)
    assert [error.field for error in refused.value.errors] == ["tag", "pool", "effect", "ends_at"]


def test_a_pool_of_others_is_no_pool(tenant: Tenant) -> None:
    make_pool(slug="secret", shared=False)
    with pytest.raises(InvalidInput) as refused:
        create_stop(PAUSE, {"pool": "secret"}, tenant=tenant)
    assert "secret" not in refused.value.hint
    assert create_stop(PAUSE, {"pool": "secret"}, tenant=None).pool


def test_stops_may_overlap(tenant: Tenant) -> None:
    assert blackout(tenant).pk != blackout(tenant).pk


def test_a_planned_one_can_be_changed_whole(tenant: Tenant, pool: Pool) -> None:
    stop = blackout(tenant, begins_at=ahead(0.5))
    edit_stop(stop, {"tag": "team", "effect": "hold", "ends_at": ahead(3), "note": "later"})
    kept = Stop.objects.get(pk=stop.pk)
    assert (kept.tag_name, kept.effect, kept.note) == ("team", "hold", "later")
    edit_stop(stop, {"everything": True})
    assert not Stop.objects.get(pk=stop.pk).tag_name
    assert entries(stop) == ["stop.created", "stop.edited", "stop.edited"]
    entry = AuditEntry.objects.latest("id")
    assert (entry.before, entry.after) == ({"tag": "team"}, {"tag": None})


def test_taking_its_name_away_does_not_stop_everything(tenant: Tenant) -> None:
    stop = create_stop(PAUSE, {"tag": "team", "begins_at": ahead(1)}, tenant=tenant)
    with pytest.raises(InvalidInput, match="nothing says"):
        edit_stop(stop, {"tag": None})
    assert Stop.objects.get(pk=stop.pk).tag_name == "team"


def test_one_that_has_begun_can_be_made_longer_and_shorter(tenant: Tenant) -> None:
    stop = blackout(tenant)
    for end in (ahead(5), ahead(0.5)):
        assert as_text(edit_stop(stop, {"ends_at": end, "note": "n"}).ends_at or now()) == end
    with pytest.raises(InvalidInput, match="in the past"):
        edit_stop(stop, {"ends_at": ahead(-0.5)})


@pytest.mark.parametrize(
    "change", [{"tag": "team"}, {"effect": "hold"}, {"pool": "default"}, {"begins_at": None}]
)
def test_the_rest_of_one_that_has_begun_stays(tenant: Tenant, pool: Pool, change: dict[str, Any]) -> None:
    stop = blackout(tenant)
    if "begins_at" in change:
        change["begins_at"] = ahead(0.2)
    with pytest.raises(StopHasBegun) as refused:
        edit_stop(stop, change)
    assert refused.value.field == next(iter(change))
    assert entries(stop) == ["stop.created"]


def test_what_is_sent_back_unchanged_changes_nothing(tenant: Tenant) -> None:
    stop = blackout(tenant)
    same = {"effect": "skip", "begins_at": as_text(stop.begins_at), "ends_at": as_text(stop.ends_at or now())}
    edit_stop(stop, {**same, "tag": None, "pool": None, "everything": True, "note": ""})
    assert entries(stop) == ["stop.created"]


def test_lifting_ends_it_once(tenant: Tenant) -> None:
    stop = blackout(tenant)
    lifted = lift_stop(stop, "all clear")
    assert lifted.lifted_at and stops.state_of(lifted, database_now()) == "over"
    assert lift_stop(stop, "again").lifted_at == lifted.lifted_at
    assert entries(stop) == ["stop.created", "stop.lifted"]
    assert AuditEntry.objects.latest("id").reason == "all clear"


def test_one_that_ended_by_itself_is_neither_lifted_nor_changed() -> None:
    stop = make_stop(ends_at=now() - HOUR / 2)
    assert lift_stop(stop).lifted_at is None
    with pytest.raises(StopIsOver):
        edit_stop(stop, {"ends_at": ahead(1)})
    with pytest.raises(StopHasBegun):
        delete_stop(stop)
    assert entries(stop) == []


def test_only_one_that_has_not_begun_is_deleted(tenant: Tenant) -> None:
    stop = blackout(tenant, begins_at=ahead(0.5))
    key = stop.pk
    delete_stop(stop)
    assert not Stop.objects.filter(pk=key).exists()
    assert AuditEntry.objects.latest("id").action == "stop.deleted"
    with pytest.raises(Missing):
        lift_stop(Stop(pk=key))
    begun = blackout(tenant)
    with pytest.raises(StopHasBegun) as refused:
        delete_stop(begun)
    assert "lift" in refused.value.hint


def test_what_a_tenant_sees() -> None:
    one, other = make_tenant(), make_tenant()
    own_pool, others_pool = make_pool(shared=False), make_pool(shared=False)
    own_pool.tenants.add(one)
    mine = make_stop(tenant=one)
    everything, in_my_pool = make_stop(), make_stop(pool=own_pool)
    make_stop(tenant=other)
    make_stop(pool=others_pool)
    assert set(stops.seen_by(one)) == {mine, everything, in_my_pool}


def test_lists_by_state_agree_with_the_state_of_each() -> None:
    at = database_now()
    spans: list[tuple[datetime, datetime | None, datetime | None]] = [
        (at - HOUR, None, None),
        (at - HOUR, at + HOUR, None),
        (at - HOUR, at, None),
        (at - HOUR, at + HOUR, at),
        (at, at + HOUR, None),
        (at + HOUR, None, None),
        (at + HOUR, at + 2 * HOUR, at),
    ]
    made = [make_stop(begins_at=begins, ends_at=ends, lifted_at=lifted) for begins, ends, lifted in spans]
    for state in stops.STATES:
        found = set(Stop.objects.filter(stops.in_state(state, at)))
        assert found == {stop for stop in made if stops.state_of(stop, at) == state}, state
        assert found


def test_the_stops_of_a_job(tenant: Tenant, pool: Pool) -> None:
    job = post_job(tenant, tags={"team": "payments"})
    fits = make_stop(tag_name="team")
    make_stop(tag_name="team", tag_value="orders")
    make_stop(begins_at=now() + HOUR)
    make_stop(ends_at=now() - HOUR / 2)
    assert [stop.id for stop in stops.of_job(job, database_now())] == [fits.pk]


def test_a_pool_is_paused_once_and_resumed(pool: Pool) -> None:
    other = make_stop(effect=Effect.HOLD)
    platform.pause_pool(pool, "upgrade")
    platform.pause_pool(pool, "upgrade")
    stop = platform.pauses(pool).get()
    assert (stop.kind, stop.effect, stop.note) == ("pause", "hold", "upgrade")
    platform.resume_pool(pool, "done")
    platform.resume_pool(pool, "done")
    assert not platform.pauses(pool).exists()
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions == ["stop.created", "pool.paused", "stop.lifted", "pool.resumed"]
    other.refresh_from_db()
    assert other.lifted_at is None


def test_a_tenant_has_only_so_many_stops_at_once(monkeypatch: pytest.MonkeyPatch, tenant: Tenant) -> None:
    """Every pass of every scheduler reads them all."""
    monkeypatch.setattr(stops, "MOST_STOPS", 2)
    blackout(tenant, begins_at=ahead(0.5))
    lifted = create_stop(PAUSE, {"tag": "team"}, tenant=tenant)
    lift_stop(lifted)
    with pytest.raises(TooManyStops, match="2"):
        create_stop(PAUSE, {"tag": "team"}, tenant=tenant)
    create_stop(PAUSE, {"tag": "team"}, tenant=make_tenant())
    create_stop(PAUSE, {"tag": "team"}, tenant=None)
    Stop.objects.filter(pk=lifted.pk).update(settled_at=database_now())
    create_stop(PAUSE, {"tag": "team"}, tenant=tenant)
