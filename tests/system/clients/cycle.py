"""What a team's program does with the generated client: cycle.py URL KEY RUN PRINTED."""

import sys
from typing import Any
from uuid import UUID

from beatkeeper_client import AuthenticatedClient
from beatkeeper_client.api.jobs import create_job, delete_job, edit_job, list_jobs, read_job, run_job
from beatkeeper_client.api.runs import cancel_run, read_log, read_run
from beatkeeper_client.models import (
    CronSchedule,
    HttpTarget,
    HttpTargetKind,
    Job,
    JobChanges,
    JobSpec,
    Problem,
    Reason,
    Run,
    RunBody,
    ScheduleChanges,
)


def cycle(client: Any, running: UUID, printed: str) -> None:
    target = HttpTarget(kind=HttpTargetKind.HTTP, url="https://example.com/report")
    spec = JobSpec(name="report", target=target, schedule=CronSchedule(cron="0 3 * * *"), priority=700)
    job = expect(Job, create_job.sync(client=client, body=spec))
    assert job.schedule.cron == "0 3 * * *" and job.schedule.timezone == "UTC", job.schedule
    assert job.id in [listed.id for listed in list_jobs.sync(client=client).results]

    refused = expect(Problem, create_job.sync(client=client, body=spec))
    assert (refused.code, refused.field) == ("duplicate_name", "name"), refused

    run = expect(Run, run_job.sync(job.id, client=client, body=RunBody(reason="by hand")))
    assert expect(Run, read_run.sync(run.id, client=client)).trigger == "manual"
    assert read_log.sync(running, client=client) == f"{printed}\n"
    assert expect(Run, cancel_run.sync(run.id, client=client, body=Reason())).state == "cancelled"

    changes = JobChanges(schedule=ScheduleChanges(cron="0 4 * * *"))
    changed = expect(Job, edit_job.sync(job.id, client=client, body=changes))
    assert changed.schedule.cron == "0 4 * * *"
    # A client that sends the defaults of what it was not given would have reset it.
    assert changed.priority == 700

    assert delete_job.sync_detailed(job.id, client=client).status_code == 204
    assert expect(Problem, read_job.sync(job.id, client=client)).code == "not_found"


def expect(kind: Any, found: Any) -> Any:
    assert isinstance(found, kind), found
    return found


if __name__ == "__main__":
    url, key, running, printed = sys.argv[1:]
    with AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True) as client:
        cycle(client, UUID(running), printed)
