"""The words of the code and the guards of the database are the same; each illegal move is really refused."""

import itertools
import re

import pytest
from django.db import IntegrityError, connection, transaction

from auditlog.actions import Action
from auditlog.models import ActorKind, AuditEntry
from jobs.models import JobStatus, Overlap
from runs.models import ErrorClass, LiveRun, Run
from runs.states import FINAL_MOVES, LIVE_MOVES, NEW, FinalState, LiveState, Trigger
from scheduler_project.sdk.outcomes import ERROR_CLASSES
from tests.support.factories import make_finished_run, make_run, make_worker, post_job

pytestmark = pytest.mark.django_db


def constraint(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s AND coninhcount = 0",
            [name],
        )
        rows = cursor.fetchall()
    assert len(rows) == 1, name
    return str(rows[0][0])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("job_status_known", JobStatus.values),
        ("job_version_overlap_known", Overlap.values),
        ("live_run_state_known", LiveState.values),
        ("run_final_moves", [*FinalState.values, *set().union(*FINAL_MOVES.values())]),
    ],
)
def test_the_database_knows_the_same_words(name: str, words: list[str]) -> None:
    assert set(re.findall(r"'(\w*)'", constraint(name))) == set(words)


def test_the_worker_and_the_platform_know_the_same_error_classes() -> None:
    assert set(ERROR_CLASSES) == set(ErrorClass.values)


@pytest.mark.parametrize("old", LiveState)
def test_only_legal_moves_are_possible(old: LiveState) -> None:
    job = post_job()
    node = make_worker(job.pool)
    for new in LiveState:
        live = make_run(job, old, worker=node)
        claim = {"worker": node.incarnation, "claim_token": live.pk, "claimed_at": live.planned_at}
        waits = {"wake_at": live.planned_at, "callback_digest": "0" * 64}
        extra = claim if new == LiveState.RUNNING else waits
        legal = new == old or new in LIVE_MOVES[old]
        try:
            with transaction.atomic():
                LiveRun.objects.filter(pk=live.pk).update(state=new, **extra)
        except IntegrityError as refused:
            assert not legal and "legal moves" in str(refused), (old, new)
        else:
            assert legal, (old, new)


def test_only_legal_endings_are_possible() -> None:
    job = post_job()
    for final, origin in itertools.product(FinalState, [NEW, *LiveState.values]):
        run = Run.objects.get(pk=make_run(job).pk)
        LiveRun.objects.filter(pk=run.pk).delete()
        changes = {"state": final, "ended_from": origin, "finished_at": run.planned_at}
        changes["error_class"] = "user"
        try:
            with transaction.atomic():
                Run.objects.filter(pk=run.pk).update(**changes)
        except IntegrityError as refused:
            assert origin not in FINAL_MOVES[final] and "run_final_moves" in str(refused), (final, origin)
        else:
            assert origin in FINAL_MOVES[final], (final, origin)


@pytest.mark.parametrize("state", FinalState)
def test_only_a_success_says_no_reason(state: FinalState) -> None:
    """The index of what went wrong would not have the run, and lists of it would not show it."""
    job = post_job()
    if state == FinalState.SUCCEEDED:
        make_finished_run(job, state)
        return
    with pytest.raises(IntegrityError, match="run_failure_says_why"), transaction.atomic():
        make_finished_run(job, state, error_class="", reason="")


@pytest.mark.parametrize("state", FinalState)
def test_final_is_final(state: FinalState) -> None:
    run = make_finished_run(post_job(), state)
    with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
        Run.objects.filter(pk=run.pk).update(reason="rewritten")


def test_a_run_does_not_begin_in_the_middle() -> None:
    live = make_run(post_job(), LiveState.READY)
    LiveRun.objects.filter(pk=live.pk).delete()
    live.state = LiveState.QUEUED
    with pytest.raises(IntegrityError, match="begins as"), transaction.atomic():
        live.save(force_insert=True)


def test_the_fencing_token_is_never_lowered() -> None:
    live = make_run(post_job(), LiveState.RUNNING)
    with pytest.raises(IntegrityError, match="never lowered"), transaction.atomic():
        LiveRun.objects.filter(pk=live.pk).update(claim_seq=0)


def test_a_retry_waits_for_the_budget_of_its_own_tenant_and_nothing_else_does() -> None:
    job = post_job()
    held, paused = (make_run(job, LiveState.BLOCKED, reason=reason) for reason in ("retry_budget", "paused"))
    for live, wrong in (
        (held, {"budget_tenant": None}),
        (held, {"budget_tenant": job.tenant_id + 1}),
        (held, {"reason": "paused"}),
        (held, {"state": "ready"}),
        (paused, {"reason": "retry_budget"}),
        (paused, {"budget_tenant": job.tenant_id}),
    ):
        with pytest.raises(IntegrityError, match="live_run_budget_has_tenant"), transaction.atomic():
            LiveRun.objects.filter(pk=live.pk).update(**wrong)


def test_words_fit_their_columns() -> None:
    for words, model, field in (
        (LiveState.values, LiveRun, "state"),
        (Trigger.values, Run, "trigger"),
        (FinalState.values, Run, "state"),
        (Action.values, AuditEntry, "action"),
        (ActorKind.values, AuditEntry, "actor_kind"),
    ):
        longest = getattr(model._meta.get_field(field), "max_length", 0)
        assert all(len(word) <= longest for word in words)
