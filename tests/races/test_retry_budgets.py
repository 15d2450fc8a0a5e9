"""Two schedulers recover at once, each sure of being alone: a tenant's budget is spent once."""

import pytest

from runs.models import LiveRun
from runs.scheduler.recovery.retry_budget import let_retries_go
from runs.states import LiveState
from tests.races.staging import Session
from tests.support.factories import make_job, make_run, make_tenant, now

pytestmark = pytest.mark.django_db(transaction=True)


def test_two_deciders_let_no_more_go_than_one(first: Session, second: Session) -> None:
    job, at = make_job(make_tenant(retry_budget=60)), now()
    for _ in range(30):
        make_run(job, LiveState.BLOCKED, reason="retry_budget", budget_tenant=job.tenant_id)
    let_retries_go(first, at, 1)  # the bucket is made
    with first.transaction():
        assert let_retries_go(first, at, 500) == 4
        assert let_retries_go(second, at, 500) == 0, "the other has the bucket"
    assert let_retries_go(second, at, 500) == 0, "and has emptied it"
    assert LiveRun.objects.filter(state="ready").count() == 5
