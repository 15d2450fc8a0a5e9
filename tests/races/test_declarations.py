"""Declarations are applied on the thread that recovers: whoever holds one of their jobs must not hold recovery."""

from collections.abc import Iterator
from typing import Any

import pytest

from jobs.declarations import apply_declarations
from jobs.models import Declaration, Job
from runs.models import LiveRun
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.recovery.recover import RecoveryMemory
from runs.scheduler.recovery_loop import RecoveryLoop
from tests.races.staging import dsn, second_connection
from tests.support.factories import TASK, make_pool, make_run, make_tenant, now, post_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def recovery() -> Iterator[RecoveryLoop]:
    with LockSession(dsn(), "recovery") as session:
        yield RecoveryLoop(session, RecoveryMemory(), lambda: None)


def declare(job: Job, **spec: Any) -> Declaration:
    """Once more, with another priority."""
    whole = {"target": {"kind": "celery", "task": TASK}, "schedule": None, "priority": 7, **spec}
    return Declaration.objects.create(tenant=job.tenant, pool=job.pool, name=job.name, spec=whole)


def is_applied(declaration: Declaration) -> bool:
    declaration.refresh_from_db()
    return declaration.applied_at is not None and declaration.error == ""


def test_a_clock_that_somebody_holds_stops_neither_recovery_nor_others(recovery: RecoveryLoop) -> None:
    tenant, pool = make_tenant(), make_pool()
    held, free = (post_job(tenant, pool=pool.slug, name=name) for name in ("held", "free"))
    late, other = declare(held), declare(free)
    with second_connection() as holder:
        # Whoever waits for it longer than that finds it gone, and the test fails.
        holder.execute("SET idle_in_transaction_session_timeout = '12s'")
        holder.execute("SELECT FROM beatkeeper_job_clock WHERE job_id = %s FOR UPDATE", [held.pk])
        wait_until(lambda: recovery.step() and is_applied(other), 10, "the other declaration")
        delayed = make_run(free, "delayed", wake_at=now())
        wait_until(
            lambda: recovery.step() and LiveRun.objects.get(pk=delayed.pk).state == "ready",
            10,
            "the delayed run",
        )
        assert not is_applied(late)
        holder.rollback()
    wait_until(lambda: recovery.step() and is_applied(late), 10, "the declaration that was put off")
    assert Job.objects.get(name="held").priority == 7


def test_what_was_put_off_is_tried_again_after_the_others() -> None:
    tenant, pool = make_tenant(), make_pool()
    held, free = (post_job(tenant, pool=pool.slug, name=name) for name in ("held", "free"))
    late, other = declare(held), declare(free)
    put_off: set[int] = set()
    with second_connection() as holder:
        holder.execute("SET idle_in_transaction_session_timeout = '12s'")
        holder.execute("SELECT FROM beatkeeper_job_clock WHERE job_id = %s FOR UPDATE", [held.pk])
        assert apply_declarations(10, put_off) == 1 and put_off == {late.pk}
        assert apply_declarations(10, put_off) == 1 and is_applied(other) and put_off == set()
        holder.rollback()
    assert apply_declarations(10, put_off) == 1 and is_applied(late)
