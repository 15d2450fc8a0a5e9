"""Ready runs in bulk, as rows that the platform might have made, and a stream of them that does not end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from jobs.models import Job

POUR = """
WITH new_runs AS (
    INSERT INTO beatkeeper_run (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority)
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
            || '8' || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid,
           job.tenant_id, job.id, job.version, job.pool_id, 'manual', at, job.priority
    FROM beatkeeper_job job
    CROSS JOIN (SELECT date_trunc('milliseconds', clock_timestamp()) AS at, md5(random()::text || i) AS hash
                FROM generate_series(1, %(count)s) i) new
    WHERE job.id = %(job)s
    RETURNING *
)
INSERT INTO beatkeeper_live_run
    (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at, rank, target_key, state)
SELECT new_runs.id, new_runs.tenant_id, new_runs.pool_id, new_runs.job_id, new_runs.version, new_runs.trigger,
       planned_at, priority, planned_at,
       (extract(epoch FROM planned_at) * 1000)::bigint - priority::bigint * %(bound)s, target_key, 'ready'
FROM new_runs
JOIN beatkeeper_job_version version ON version.job_id = new_runs.job_id AND version.version = new_runs.version
"""
WAITING = "SELECT count(*) FROM beatkeeper_live_run WHERE job_id = %s AND state = 'ready'"


def pour(session: psycopg.Connection[Any], job: Job, count: int, bound: int = 300) -> None:
    """`bound`: seconds that priority 1000 is worth."""
    session.execute(POUR, {"job": job.pk, "count": count, "bound": bound})


class Stream(threading.Thread):
    def __init__(self, url: str, job: Job, bound: int, level: int) -> None:
        super().__init__(daemon=True)
        self.url, self.job, self.bound, self.level = url, job, bound, level
        self.over = threading.Event()
        # How often it was found dry: then it was no flood.
        self.dry = -1

    def run(self) -> None:
        with psycopg.connect(self.url, autocommit=True, prepare_threshold=None) as session:
            while not self.over.wait(0.02):
                (waiting,) = session.execute(WAITING, [self.job.pk]).fetchall()[0]
                self.dry += waiting == 0
                if waiting < self.level:
                    pour(session, self.job, self.level - waiting, self.bound)


@contextmanager
def endless(url: str, job: Job, bound: int, level: int) -> Iterator[Stream]:
    """So many runs of the job are ready at any time, each due at the instant it was made."""
    stream = Stream(url, job, bound, level)
    stream.start()
    try:
        yield stream
    finally:
        stream.over.set()
        stream.join(10)
