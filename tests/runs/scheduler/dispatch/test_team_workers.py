"""Pools where workers of a team serve beside those of the platform: nobody waits for slots that are not for them."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Max
from django.test import Client
from django.urls import reverse

from jobs.models import Job, Pool, Role, Tenant
from runs.models import LiveRun, WorkerNode
from runs.scheduler.dispatch import dispatch as dispatch_module
from runs.scheduler.dispatch import load
from runs.scheduler.dispatch import worker_targets as pool_workers
from runs.scheduler.dispatch.fair_share import MIN_OWN_SLOTS, MIN_SLACK
from runs.scheduler.dispatch.load import PoolMemory
from runs.scheduler.dispatch.queue_memory import OWN_SECONDS
from runs.sql import rows
from runs.states import LiveState
from tests.runs.scheduler.dispatch.test_dispatch import Session, claim, dispatch, make_ready, reason, states
from tests.support.factories import (
    TASK,
    make_job,
    make_pool,
    make_run,
    make_tenant,
    make_user,
    make_worker,
    now,
)


@pytest.fixture
def pool(db: None) -> Pool:
    return make_pool()


def test_slots_of_one_team_are_for_no_other(session: Session, pool: Pool) -> None:
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(), pool)
    make_ready(ours, 9), make_ready(theirs, 9)
    make_worker(pool, slots=4, tenant=ours.tenant)
    dispatch(session, pool)
    assert states(ours).count("queued") == 4, "none is kept: others may not have it"
    assert states(theirs) == ["ready"] * 9
    assert (reason(pool, ours.tenant), reason(pool, theirs.tenant)) == ("", "no_live_worker")


def test_a_team_beside_the_platforms_workers_has_its_own_as_well(session: Session, pool: Pool) -> None:
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(), pool)
    make_ready(ours, 40), make_ready(theirs, 40)
    make_worker(pool, slots=4)
    make_worker(pool, slots=20, tenant=ours.tenant)
    dispatch(session, pool)
    assert states(theirs).count("queued") <= 4
    assert 4 < states(ours).count("queued") <= 24


def test_slots_of_one_team_change_no_others_windows(session: Session, pool: Pool) -> None:
    """Whatever a team says of its own workers, the slots that are for everybody are shared out as if it had none."""
    jobs = [make_job(make_tenant(weight=weight), pool) for weight in (1, 1, 3)]
    for job in jobs:
        make_ready(job, 40)
    make_worker(pool, slots=10)
    liar = make_worker(pool, slots=10_000, tenant=jobs[0].tenant)
    memory = PoolMemory()
    dispatch(session, pool, memory)
    with_liar = [states(job).count("queued") for job in jobs]
    WorkerNode.objects.filter(pk=liar.pk).delete()
    LiveRun.objects.filter(state="queued").update(state="ready")
    dispatch(session, pool)
    alone = [states(job).count("queued") for job in jobs]
    assert sum(alone) <= 10 + 10 // 4 and alone[2] > alone[1], "by weight"
    assert with_liar[1:] == alone[1:]
    assert with_liar[0] <= alone[0] + MIN_OWN_SLOTS


def test_claims_that_a_team_only_holds_bring_it_no_more_runs(session: Session, pool: Pool) -> None:
    """Its workers show as much at work as it likes; what is queued for them before they take it, others' slots take."""
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(weight=9), pool)
    shared, own = make_worker(pool, slots=10), make_worker(pool, slots=3000, tenant=ours.tenant)
    for _ in range(100):
        make_run(ours, LiveState.RUNNING, worker=own)
    for _ in range(5):
        make_run(ours, LiveState.RUNNING, worker=shared)
    make_ready(ours, 150), make_ready(theirs, 40)
    memory = PoolMemory()
    for passes in range(15):
        dispatch(session, pool, memory, at=now() + passes * timedelta(milliseconds=100))
    assert states(ours).count("queued") <= MIN_OWN_SLOTS
    assert states(theirs).count("queued") >= 5


@pytest.mark.parametrize("has_shared_slots", [True, False])
def test_what_a_team_began_lately_counts_for_some_seconds_only(
    session: Session, pool: Pool, has_shared_slots: bool
) -> None:
    """What is queued then for slots that take nothing more goes back, whoever has the slots that are for everybody."""
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(weight=9), pool)
    third = make_job(make_tenant(), pool)
    shared, own = make_worker(pool, slots=10), make_worker(pool, slots=3000, tenant=ours.tenant)
    for _ in range(10):
        make_run(ours if has_shared_slots else third, LiveState.RUNNING, worker=shared)
    make_ready(ours, 250), make_ready(theirs, 40)
    memory = PoolMemory()
    for passes in range(3):
        dispatch(session, pool, memory, at=now() + passes * timedelta(milliseconds=100))
        for run in LiveRun.objects.filter(state="queued", job=ours):
            claim(run, own)
    dispatch(session, pool, memory, at=now() + timedelta(milliseconds=300))
    assert states(ours).count("queued") > 4 * MIN_OWN_SLOTS, "as fast as they take them"
    for passes in range(5):
        later = timedelta(seconds=OWN_SECONDS, milliseconds=400 + passes * 100)
        dispatch(session, pool, memory, at=now() + later)
    share = 0 if has_shared_slots else 10 // 2
    assert states(ours).count("queued") <= MIN_OWN_SLOTS + share + MIN_SLACK
    assert states(theirs).count("queued") >= 1, "the next slot is theirs"


def test_the_slot_kept_for_others_is_one_that_they_could_have(session: Session, pool: Pool) -> None:
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(), pool)
    worker = make_worker(pool, slots=8)
    make_worker(pool, slots=100, tenant=ours.tenant)
    for _ in range(7):
        make_run(theirs, LiveState.RUNNING, worker=worker)
    make_ready(theirs, 9)
    dispatch(session, pool)
    assert states(theirs).count("queued") == 0, "the last of the eight is for whoever comes"


def test_a_teams_own_slots_are_filled_as_soon_as_they_work(session: Session, pool: Pool) -> None:
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(), pool)
    make_ready(ours, 120), make_ready(theirs, 20)
    shared, own = make_worker(pool, slots=4), make_worker(pool, slots=60, tenant=ours.tenant)
    memory, passes = PoolMemory(), 0
    while LiveRun.objects.filter(worker=own.pk).count() < 60:
        passes += 1
        assert passes < 10, "twice as many with each pass"
        dispatch(session, pool, memory, at=now() + passes * timedelta(milliseconds=100))
        for run in LiveRun.objects.filter(state="queued", job=theirs)[:2]:
            if LiveRun.objects.filter(worker=shared.pk).count() < 4:
                claim(run, shared)
        for run in LiveRun.objects.filter(state="queued", job=ours):
            claim(run, own)
    dispatch(session, pool, memory, at=now() + (passes + 1) * timedelta(milliseconds=100))
    assert states(theirs).count("running") >= 2
    assert states(ours).count("queued") <= 4, "all are at work"


def test_alone_in_its_pool_a_teams_worker_is_filled_at_once(session: Session, pool: Pool) -> None:
    ours = make_job(make_tenant(), pool)
    make_ready(ours, 70)
    make_worker(pool, slots=60, tenant=ours.tenant)
    dispatch(session, pool)
    assert states(ours).count("queued") == 60


def test_what_only_a_teams_worker_knows_waits_aside_for_others(session: Session, pool: Pool) -> None:
    ours, theirs = make_job(make_tenant(), pool), make_job(make_tenant(), pool)
    [mine], [other] = make_ready(ours, 1), make_ready(theirs, 1)
    make_worker(pool, tenant=ours.tenant)
    make_worker(pool, known_targets=["another.task"])
    dispatch(session, pool)
    assert LiveRun.objects.get(pk=mine.pk).state == LiveState.QUEUED
    blocked = LiveRun.objects.get(pk=other.pk)
    assert (blocked.state, blocked.reason) == (LiveState.BLOCKED, "unknown_target")


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


def test_what_teams_workers_say_they_know_is_read_once_and_never_sent(
    session: Session, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody in the pool waits for the pass, and what a worker says it knows may be anything."""
    job = make_job(make_tenant(), pool)
    first = make_worker(pool, tenant=job.tenant, known_targets=[TASK, *(f"theirs.{n}" for n in range(500))])
    make_run(job, LiveState.QUEUED)
    asked: list[tuple[str, Any]] = []

    def noted(session: Session, name: str, values: Any = None) -> Any:
        asked.append((name, values))
        return rows(session, name, values)

    for module in (dispatch_module, load, pool_workers):
        monkeypatch.setattr(module, "rows", noted)
    memory = PoolMemory()
    dispatch(session, pool, memory)
    dispatch(session, pool, memory)
    second = make_worker(pool, tenant=job.tenant)
    dispatch(session, pool, memory)
    read = [values["nodes"] for name, values in asked if name == "targets_of_workers"]
    assert read == [[first.pk], [second.pk]]
    lists = [value for _name, values in asked for value in values.values() if isinstance(value, list)]
    exported = 3
    assert lists and max(map(len, lists)) <= exported


class TestWhatOnlyATeamsWorkersKnow:
    """Its runs are nobody else's to take, so they keep no places before the slots that are for everybody."""

    KNOWN = "tests.theirs_alone"

    @pytest.fixture
    def pool(self, db: None) -> Pool:
        return make_pool(exported_tasks=[TASK, self.KNOWN])

    def team(self, pool: Pool, tenant: Tenant | None = None) -> Job:
        """With a worker of one slot and a backlog."""
        job = make_job(tenant or make_tenant(), pool, spec={"target_key": self.KNOWN})
        make_worker(pool, slots=1, tenant=job.tenant, known_targets=[self.KNOWN])
        make_ready(job, 30)
        return job

    def test_others_have_all_slots_that_are_for_everybody(self, session: Session, pool: Pool) -> None:
        teams = [self.team(pool) for _ in range(3)]
        other = make_job(make_tenant(), pool)
        make_ready(other, 30)
        worker = make_worker(pool, slots=10)
        memory = PoolMemory()
        for passes in range(5):
            dispatch(session, pool, memory, at=now() + passes * timedelta(milliseconds=100))
            at_work = LiveRun.objects.filter(worker=worker.pk).count()
            for run in LiveRun.objects.filter(state="queued", job=other)[: 10 - at_work]:
                claim(run, worker)
        reserve = 1
        assert states(other).count("running") == 10 - reserve
        assert [states(job).count("queued") for job in teams] == [1, 1, 1]

    def test_what_anybody_knows_is_found_behind_them(self, session: Session, pool: Pool) -> None:
        team = self.team(pool)
        behind = make_job(team.tenant, pool)
        make_ready(behind, 3)
        make_worker(pool, slots=10)
        memory = PoolMemory()
        for passes in range(5):
            dispatch(session, pool, memory, at=now() + passes * timedelta(milliseconds=100))
        assert states(behind) == ["queued"] * 3
        assert states(team).count("queued") == 1

    def test_nobody_gives_back_what_they_cannot_use(self, session: Session, pool: Pool) -> None:
        """Whose runs became long has more queued than its share; calling that back serves nobody here."""
        other = make_job(make_tenant(), pool)
        worker = make_worker(pool, slots=10)
        for _ in range(8):
            make_run(other, LiveState.RUNNING, worker=worker)
        for _ in range(4):
            make_run(other, LiveState.QUEUED)
        self.team(pool)
        memory = PoolMemory()
        dispatch(session, pool, memory)
        marked_at = list(
            LiveRun.objects.filter(job=other, state="queued").values_list("queued_at", flat=True)
        )
        assert marked_at
        for passes in range(1, 4):
            dispatch(session, pool, memory, at=now() + passes * timedelta(milliseconds=100))
        left = LiveRun.objects.filter(job=other, state="queued", queued_at__in=marked_at)
        assert left.count() == len(marked_at), "or a worker's heartbeat never finds one that waits"

    def test_a_worker_for_everybody_that_learns_them_takes_them(self, session: Session, pool: Pool) -> None:
        team = self.team(pool)
        memory = PoolMemory()
        make_worker(pool, slots=10)
        dispatch(session, pool, memory)
        assert states(team).count("queued") == 1
        make_worker(pool, slots=10, known_targets=[TASK, self.KNOWN])
        dispatch(session, pool, memory, at=now() + timedelta(milliseconds=100))
        assert states(team).count("queued") > 10

    def test_what_a_worker_knew_goes_with_it(self, session: Session, pool: Pool) -> None:
        team, memory = self.team(pool), PoolMemory()
        make_worker(pool, tenant=team.tenant)
        dispatch(session, pool, memory)
        WorkerNode.objects.filter(known_targets=[self.KNOWN]).update(state="left")
        LiveRun.objects.filter(state="queued").update(state="ready")
        dispatch(session, pool, memory)
        found = LiveRun.objects.filter(job=team, state="blocked")
        assert {run.reason for run in found} == {"unknown_target"}

    def test_what_is_queued_of_them_takes_nobody_elses_place(self, session: Session, pool: Pool) -> None:
        """Their worker had more slots when it was marked."""
        team, other = self.team(pool), make_job(make_tenant(), pool)
        for _ in range(8):
            make_run(team, LiveState.QUEUED)
        make_ready(other, 20)
        make_worker(pool, slots=10)
        dispatch(session, pool)
        assert states(other).count("queued") >= 9


@pytest.mark.parametrize("at_one_instant", [False, True], ids=["one after the other", "all at one instant"])
def test_a_backlog_for_a_teams_own_workers_hides_nothing_from_the_slots_of_all(
    session: Session, pool: Pool, monkeypatch: pytest.MonkeyPatch, at_one_instant: bool
) -> None:
    """However long it is: its workers are busy, ten other slots are idle."""
    monkeypatch.setattr(dispatch_module, "MIN_DEPTH", 4)
    monkeypatch.setattr(dispatch_module, "MAX_DEPTH", 16)
    pool.exported_tasks = [TASK, "theirs.alone"]
    pool.save()
    team = make_job(make_tenant(), pool, spec={"target_key": "theirs.alone"})
    anybodys = make_job(team.tenant, pool)
    make_worker(pool, slots=1, tenant=team.tenant, known_targets=["theirs.alone"])
    make_worker(pool, slots=10)
    make_ready(team, 100), make_ready(anybodys, 3)
    highest = LiveRun.objects.filter(job=team).aggregate(Max("rank"))["rank__max"]
    if at_one_instant:
        LiveRun.objects.update(rank=highest)
    else:
        LiveRun.objects.filter(job=anybodys).update(rank=highest + 1)
    memory = PoolMemory()
    for passes in range(15):
        dispatch(session, pool, memory, at=now() + passes * timedelta(milliseconds=100))
    assert states(anybodys) == ["queued"] * 3
    assert states(team).count("queued") <= 1 + MIN_SLACK
    make_ready(anybodys, 1)
    for passes in range(15, 30):
        dispatch(session, pool, memory, at=now() + passes * timedelta(milliseconds=100))
    assert states(anybodys) == ["queued"] * 4, "from the end of the backlog it is looked at anew"
