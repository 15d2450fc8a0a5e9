"""Pauses and blackouts: what may be asked, what it leaves behind, what it refuses."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError

from auditlog.models import AuditEntry
from jobs.access import pools
from jobs.clock import database_now
from jobs.errors import InvalidInput, Missing, TooMany
from jobs.models import Effect, Pool, Suspension, SuspensionKind, SuspensionState, Tenant
from jobs.services.definition import delete_job
from jobs.suspensions import service as suspensions
from jobs.suspensions.lookup import jobs_concerned, suspensions_of
from jobs.suspensions.service import (
    SuspensionHasBegun,
    SuspensionIsOver,
    create_suspension,
    delete_suspension,
    edit_suspension,
    lift_suspension,
)
from jobs.validation.instants import as_text
from tests.support.factories import make_pool, make_suspension, make_tenant, now, post_job

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
PAUSE, BLACKOUT = SuspensionKind.PAUSE, SuspensionKind.BLACKOUT


def ahead(hours: float) -> str:
    return as_text(now() + hours * HOUR)


def blackout(tenant: Tenant | None = None, **data: Any) -> Suspension:
    return create_suspension(BLACKOUT, {"everything": True, "ends_at": ahead(1), **data}, tenant=tenant)


def entries(suspension: Suspension) -> list[str]:
    found = AuditEntry.objects.filter(object_type="suspension", object_id=str(suspension.pk)).order_by("id")
    return list(found.values_list("action", flat=True))


def test_a_pause_of_a_tag_begins_now_and_has_no_end(tenant: Tenant) -> None:
    suspension = create_suspension(PAUSE, {"tag": "team:payments", "reason": "quarter end"}, tenant=tenant)
    kept = Suspension.objects.get(pk=suspension.pk)
    assert (kept.tag_name, kept.tag_value, kept.tenant, kept.pool) == ("team", "payments", tenant, None)
    assert (kept.effect, kept.ends_at, kept.reason) == (Effect.CATCH_UP, None, "quarter end")
    assert kept.begins_at <= database_now() and kept.state(database_now()) == "in_force"
    entry = AuditEntry.objects.get(object_type="suspension")
    assert (entry.action, entry.tenant_id, entry.reason) == ("suspension.created", tenant.pk, "quarter end")
    assert entry.after and entry.after["tag"] == "team:payments"


@pytest.mark.parametrize("kind", SuspensionKind)
def test_a_suspension_of_one_job_names_it(tenant: Tenant, kind: SuspensionKind) -> None:
    job, _other = (post_job(tenant, name=name) for name in ("settle", "report"))
    suspension = create_suspension(kind, {"job": str(job.pk), "ends_at": ahead(1)}, tenant=tenant)
    kept = Suspension.objects.get(pk=suspension.pk)
    assert (kept.job, kept.tag, kept.pool) == (job, None, None)
    assert kept.describe() == "the job settle of acme" and jobs_concerned(kept, tenant) == 1
    entry = AuditEntry.objects.get(action="suspension.created")
    assert entry.after and entry.after["job"] == str(job.pk)
    assert [row.id for row in suspensions_of(job, now())] == [kept.pk] and not suspensions_of(_other, now())


def test_before_it_begins_a_suspension_is_changed_to_another_job(tenant: Tenant) -> None:
    first, second = post_job(tenant), post_job(tenant)
    suspension = blackout(tenant, begins_at=ahead(0.5))
    edit_suspension(suspension, {"job": str(first.pk)})
    edit_suspension(suspension, {"job": str(second.pk)})
    assert Suspension.objects.get().job == second
    with pytest.raises(InvalidInput, match="nothing says what the blackout concerns"):
        edit_suspension(suspension, {"job": None})
    assert edit_suspension(suspension, {"everything": True}).job is None


def test_a_job_of_others_is_as_unknown_as_one_that_is_none(tenant: Tenant) -> None:
    own, of_others, deleted = post_job(tenant), post_job(), post_job(tenant)
    delete_job(deleted)
    wrongs: list[object] = [str(of_others.pk), str(deleted.pk), "settle", 5, [], True]
    for wrong in wrongs:
        with pytest.raises(InvalidInput, match="there is no job") as refused:
            create_suspension(PAUSE, {"job": wrong}, tenant=tenant)
        assert refused.value.errors[-1].field == "job"
    # One of the platform would show the job to every tenant.
    with pytest.raises(InvalidInput, match="a job is of one tenant"):
        create_suspension(PAUSE, {"job": str(own.pk)}, tenant=None)
    with pytest.raises(InvalidInput, match="everything and job are both given"):
        blackout(tenant, job=str(own.pk))
    with pytest.raises(IntegrityError, match="suspension_of_job_has_tenant"):
        make_suspension(job=own)


def test_a_tag_may_stand_without_its_value(tenant: Tenant) -> None:
    suspension = create_suspension(PAUSE, {"tag": "team"}, tenant=tenant)
    assert (suspension.tag_name, suspension.tag_value) == ("team", "") and suspension.tag == "team"
    assert suspension.describe() == "all jobs of acme tagged team"


def test_a_blackout_skips_unless_told_otherwise(tenant: Tenant) -> None:
    suspension = blackout(tenant, begins_at=ahead(0.5))
    assert suspension.effect == Effect.SKIP and suspension.state(database_now()) == "planned"


@pytest.mark.parametrize("begins", [None, timedelta(seconds=-30)])
def test_one_that_should_have_begun_just_now_begins_now(tenant: Tenant, begins: timedelta | None) -> None:
    before = database_now()
    suspension = blackout(tenant, begins_at=begins and as_text(before + begins))
    assert before <= suspension.begins_at <= database_now()


def test_a_pause_of_a_pool_holds(pool: Pool) -> None:
    suspension = create_suspension(PAUSE, {"pool": "default"}, tenant=None)
    assert (suspension.effect, suspension.pool, suspension.tenant) == (Effect.HOLD, pool, None)
    with pytest.raises(InvalidInput, match="are held"):
        create_suspension(PAUSE, {"pool": "default", "effect": "catch_up"}, tenant=None)


def test_a_tenant_pauses_its_own_jobs_in_a_pool(tenant: Tenant, pool: Pool) -> None:
    suspension = create_suspension(PAUSE, {"pool": "default"}, tenant=tenant)
    assert (suspension.effect, suspension.tenant) == (Effect.CATCH_UP, tenant)
    assert suspension.describe() == "all jobs of acme in the pool default"


@pytest.mark.parametrize(
    ("kind", "data", "field", "said"),
    [
        (PAUSE, {}, "tag", "nothing says"),
        (PAUSE, {"tag": None, "pool": None}, "tag", "nothing says"),
        (PAUSE, {"everything": False}, "everything", "says nothing"),
        (PAUSE, {"everything": "yes"}, "everything", "not a boolean"),
        (PAUSE, {"everything": True, "tag": "team"}, "everything", "both given"),
        (PAUSE, {"tag": ":payments"}, "tag", "is not a tag"),
        (PAUSE, {"tag": {"team": "payments"}}, "tag", "is not a tag"),
        (PAUSE, {"tag": "a\nb"}, "tag", "cannot be printed"),
        (PAUSE, {"tag": "team=payments"}, "tag", "is not a tag"),
        (PAUSE, {"tag": "x" * 61}, "tag", "is not a tag"),
        (PAUSE, {"pool": "defalt"}, "pool", "no pool"),
        (PAUSE, {"pool": 5}, "pool", "no pool"),
        (PAUSE, {"tag": "a", "effect": "skip"}, "effect", "not what a pause can do"),
        (PAUSE, {"tag": "a", "effect": None}, "effect", "not what a pause can do"),
        (PAUSE, {"tag": "a", "reason": 5}, "reason", "not a reason"),
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
    tenant: Tenant, pool: Pool, kind: SuspensionKind, data: Any, field: str, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        create_suspension(kind, data, tenant=tenant)
    assert refused.value.field == field and refused.value.hint
    assert (
        not Suspension.objects.exists() and not AuditEntry.objects.filter(object_type="suspension").exists()
    )


def test_all_mistakes_are_reported_at_once(tenant: Tenant) -> None:
    with pytest.raises(InvalidInput) as refused:
        create_suspension(PAUSE, {"tag": "", "pool": "x", "effect": "y", "ends_at": "z"}, tenant=tenant)
    assert [error.field for error in refused.value.errors] == ["tag", "pool", "effect", "ends_at"]


def test_a_pool_of_others_is_no_pool(tenant: Tenant) -> None:
    make_pool(slug="secret", shared=False)
    with pytest.raises(InvalidInput) as refused:
        create_suspension(PAUSE, {"pool": "secret"}, tenant=tenant)
    assert "secret" not in refused.value.hint
    assert create_suspension(PAUSE, {"pool": "secret"}, tenant=None).pool


def test_suspensions_may_overlap(tenant: Tenant) -> None:
    assert blackout(tenant).pk != blackout(tenant).pk


def test_a_planned_one_can_be_changed_whole(tenant: Tenant, pool: Pool) -> None:
    suspension = blackout(tenant, begins_at=ahead(0.5))
    edit_suspension(suspension, {"tag": "team", "effect": "hold", "ends_at": ahead(3), "reason": "later"})
    kept = Suspension.objects.get(pk=suspension.pk)
    assert (kept.tag_name, kept.effect, kept.reason) == ("team", "hold", "later")
    edit_suspension(suspension, {"everything": True})
    assert not Suspension.objects.get(pk=suspension.pk).tag_name
    assert entries(suspension) == ["suspension.created", "suspension.edited", "suspension.edited"]
    entry = AuditEntry.objects.latest("id")
    assert (entry.before, entry.after) == ({"tag": "team"}, {"tag": None})


def test_taking_its_name_away_does_not_stop_everything(tenant: Tenant) -> None:
    suspension = create_suspension(PAUSE, {"tag": "team", "begins_at": ahead(1)}, tenant=tenant)
    with pytest.raises(InvalidInput, match="nothing says"):
        edit_suspension(suspension, {"tag": None})
    assert Suspension.objects.get(pk=suspension.pk).tag_name == "team"


def test_one_that_has_begun_can_be_made_longer_and_shorter(tenant: Tenant) -> None:
    suspension = blackout(tenant)
    for end in (ahead(5), ahead(0.5)):
        assert as_text(edit_suspension(suspension, {"ends_at": end, "reason": "n"}).ends_at or now()) == end
    with pytest.raises(InvalidInput, match="in the past"):
        edit_suspension(suspension, {"ends_at": ahead(-0.5)})


@pytest.mark.parametrize(
    "change", [{"tag": "team"}, {"effect": "hold"}, {"pool": "default"}, {"begins_at": None}]
)
def test_the_rest_of_one_that_has_begun_stays(tenant: Tenant, pool: Pool, change: dict[str, Any]) -> None:
    suspension = blackout(tenant)
    if "begins_at" in change:
        change["begins_at"] = ahead(0.2)
    with pytest.raises(SuspensionHasBegun) as refused:
        edit_suspension(suspension, change)
    assert refused.value.field == next(iter(change))
    assert entries(suspension) == ["suspension.created"]


def test_what_is_sent_back_unchanged_changes_nothing(tenant: Tenant) -> None:
    suspension = blackout(tenant)
    same = {
        "effect": "skip",
        "begins_at": as_text(suspension.begins_at),
        "ends_at": as_text(suspension.ends_at or now()),
    }
    edit_suspension(suspension, {**same, "tag": None, "pool": None, "everything": True, "reason": ""})
    assert entries(suspension) == ["suspension.created"]


def test_lifting_ends_it_once(tenant: Tenant) -> None:
    suspension = blackout(tenant)
    lifted = lift_suspension(suspension, "all clear")
    assert lifted.lifted_at and lifted.state(database_now()) == "over"
    assert lift_suspension(suspension, "again").lifted_at == lifted.lifted_at
    assert entries(suspension) == ["suspension.created", "suspension.lifted"]
    assert AuditEntry.objects.latest("id").reason == "all clear"


def test_one_that_ended_by_itself_is_neither_lifted_nor_changed() -> None:
    suspension = make_suspension(ends_at=now() - HOUR / 2)
    assert lift_suspension(suspension).lifted_at is None
    with pytest.raises(SuspensionIsOver):
        edit_suspension(suspension, {"ends_at": ahead(1)})
    with pytest.raises(SuspensionHasBegun):
        delete_suspension(suspension)
    assert entries(suspension) == []


def test_only_one_that_has_not_begun_is_deleted(tenant: Tenant) -> None:
    suspension = blackout(tenant, begins_at=ahead(0.5))
    key = suspension.pk
    delete_suspension(suspension)
    assert not Suspension.objects.filter(pk=key).exists()
    assert AuditEntry.objects.latest("id").action == "suspension.deleted"
    with pytest.raises(Missing):
        lift_suspension(Suspension(pk=key))
    begun = blackout(tenant)
    with pytest.raises(SuspensionHasBegun) as refused:
        delete_suspension(begun)
    assert "lift" in refused.value.hint


def test_what_a_tenant_sees() -> None:
    one, other = make_tenant(), make_tenant()
    own_pool, others_pool = make_pool(shared=False), make_pool(shared=False)
    own_pool.tenants.add(one)
    mine = make_suspension(tenant=one)
    everything, in_my_pool = make_suspension(), make_suspension(pool=own_pool)
    make_suspension(tenant=other)
    make_suspension(pool=others_pool)
    assert set(Suspension.objects.seen_by(one)) == {mine, everything, in_my_pool}


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
    made = [
        make_suspension(begins_at=begins, ends_at=ends, lifted_at=lifted) for begins, ends, lifted in spans
    ]
    for state in SuspensionState.values:
        found = set(Suspension.objects.in_state(state, at))
        assert found == {suspension for suspension in made if suspension.state(at) == state}, state
        assert found


def test_the_suspensions_of_a_job(tenant: Tenant, pool: Pool) -> None:
    job = post_job(tenant, tags={"team": "payments"})
    fits = make_suspension(tag_name="team")
    make_suspension(tag_name="team", tag_value="orders")
    make_suspension(begins_at=now() + HOUR)
    make_suspension(ends_at=now() - HOUR / 2)
    assert [suspension.id for suspension in suspensions_of(job, database_now())] == [fits.pk]


def test_a_pool_is_paused_once_and_resumed(pool: Pool) -> None:
    other = make_suspension(effect=Effect.HOLD)
    pools.pause_pool(pool, "upgrade")
    pools.pause_pool(pool, "upgrade")
    suspension = pools.pauses(pool).get()
    assert (suspension.kind, suspension.effect, suspension.reason) == ("pause", "hold", "upgrade")
    pools.resume_pool(pool, "done")
    pools.resume_pool(pool, "done")
    assert not pools.pauses(pool).exists()
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions == ["suspension.created", "pool.paused", "suspension.lifted", "pool.resumed"]
    other.refresh_from_db()
    assert other.lifted_at is None


def test_a_tenant_has_only_so_many_suspensions_at_once(
    monkeypatch: pytest.MonkeyPatch, tenant: Tenant
) -> None:
    """Every pass of every scheduler reads them all."""
    monkeypatch.setattr(suspensions, "MAX_SUSPENSIONS", 2)
    blackout(tenant, begins_at=ahead(0.5))
    lifted = create_suspension(PAUSE, {"tag": "team"}, tenant=tenant)
    lift_suspension(lifted)
    with pytest.raises(TooMany, match="2") as refused:
        create_suspension(PAUSE, {"tag": "team"}, tenant=tenant)
    assert refused.value.code == "too_many_suspensions"
    create_suspension(PAUSE, {"tag": "team"}, tenant=make_tenant())
    create_suspension(PAUSE, {"tag": "team"}, tenant=None)
    Suspension.objects.filter(pk=lifted.pk).update(settled_at=database_now())
    create_suspension(PAUSE, {"tag": "team"}, tenant=tenant)
