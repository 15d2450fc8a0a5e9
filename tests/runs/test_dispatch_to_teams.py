"""Pools where workers of a team serve beside those of the platform: nobody waits for slots that are not for them."""

import pytest
from django.test import Client
from django.urls import reverse

from jobs.models import Pool, Role
from runs.lanes import NO_LIVE_WORKER
from runs.models import LiveRun
from runs.states import LiveState
from tests.factories import make_job, make_pool, make_tenant, make_user, make_worker
from tests.runs.test_dispatch import Session, dispatch, make_ready, reason, states


@pytest.fixture
def pool(db: None) -> Pool:
    return make_pool()


def test_slots_of_one_team_are_for_no_other(session: Session, pool: Pool) -> None:
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(), pool)
    make_ready(ours, 9), make_ready(theirs, 9)
    make_worker(pool, slots=4, tenant=ours.tenant)
    dispatch(session, pool)
    # One is kept for others, who may come with workers of their own.
    assert states(ours).count("queued") >= 3
    assert states(theirs) == ["ready"] * 9
    assert (reason(pool, ours.tenant), reason(pool, theirs.tenant)) == ("", NO_LIVE_WORKER)


def test_a_team_beside_the_platforms_workers_has_its_own_as_well(session: Session, pool: Pool) -> None:
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(), pool)
    make_ready(ours, 40), make_ready(theirs, 40)
    make_worker(pool, slots=4)
    make_worker(pool, slots=20, tenant=ours.tenant)
    dispatch(session, pool)
    assert states(theirs).count("queued") <= 4
    assert 4 < states(ours).count("queued") <= 24


def test_what_only_a_teams_worker_knows_waits_aside_for_others(session: Session, pool: Pool) -> None:
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(), pool)
    [mine], [other] = make_ready(ours, 1), make_ready(theirs, 1)
    make_worker(pool, tenant=ours.tenant)
    make_worker(pool, known_targets=["another.task"])
    dispatch(session, pool)
    assert LiveRun.objects.get(pk=mine.pk).state == LiveState.QUEUED
    blocked = LiveRun.objects.get(pk=other.pk)
    assert (blocked.state, blocked.reason) == (LiveState.BLOCKED, "no worker knows the target")


def test_members_see_workers_of_their_own_and_none_of_others(client: Client, pool: Pool) -> None:
    tenant, other = make_tenant(), make_tenant()
    closed = make_pool(shared=False)
    closed.tenants.add(tenant, other)
    make_worker(pool, name="ours-in-a-shared-pool", tenant=tenant)
    make_worker(closed, name="ours-in-a-pool-of-two", tenant=tenant)
    make_worker(closed, name="the-platforms", tenant=None)
    make_worker(closed, name="theirs", tenant=other)
    client.force_login(make_user(tenant, Role.VIEWER, is_staff=True))
    page = client.get(reverse("admin:beatkeeper_runs_workernode_changelist")).content.decode()
    assert "ours-in-a-shared-pool" in page and "ours-in-a-pool-of-two" in page and "the-platforms" in page
    assert "theirs" not in page and other.slug not in page
