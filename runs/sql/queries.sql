-- The scheduler's statements. Whoever ends a run names its id and a range, or every partition is planned (R31).
-- One lock order everywhere: JobClock, JobGate by job, LiveRun by id, Lane, WorkerNode.

-- name: session_and_time
-- Which session this is, and what time it is: the database's clock is the only clock.
SELECT pg_backend_pid(), clock_timestamp();

-- name: next_due
-- The idle probe of the trigger: one index look-up for each slice held.
SELECT pg_backend_pid(), clock_timestamp(), min(first.next_run_at)
FROM unnest(%(slices)s::smallint[]) AS held (slice)
CROSS JOIN LATERAL (
    SELECT clock.next_run_at FROM beatkeeper_job_clock clock
    WHERE clock.slice = held.slice AND clock.next_run_at IS NOT NULL
    ORDER BY clock.next_run_at LIMIT 1
) first;

-- name: lock_due_clocks
-- Due clocks, a fair share of each slice; one that somebody is editing waits for the next pass (R29).
SELECT due.job_id, due.next_run_at, due.slice
FROM unnest(%(slices)s::smallint[]) AS held (slice)
CROSS JOIN LATERAL (
    SELECT clock.job_id, clock.next_run_at, clock.slice FROM beatkeeper_job_clock clock
    WHERE clock.slice = held.slice AND clock.next_run_at <= %(now)s
    ORDER BY clock.next_run_at LIMIT %(share)s
    FOR UPDATE SKIP LOCKED
) due;

-- name: lock_due_clock
-- The clock of one job, if it is due; waits for whoever has it.
SELECT clock.job_id, clock.next_run_at, clock.slice FROM beatkeeper_job_clock clock
WHERE clock.job_id = %(job)s AND clock.next_run_at <= %(now)s
FOR UPDATE;

-- name: jobs_of_clocks
-- What is due, read after its clock was locked: edits and earlier triggers of these jobs are seen whole.
SELECT job.id, job.tenant_id, job.pool_id, job.version, job.priority,
       job.status = 'active' AND job.deleted_at IS NULL,
       version.schedule::text, version.anchor_at, version.overlap = 'skip', version.catch_up ->> 'policy',
       (version.catch_up ->> 'window')::float8, version.target_key,
       EXISTS (SELECT FROM beatkeeper_job_gate gate WHERE gate.job_id = job.id),
       version.overlap = 'skip' AND EXISTS (
           SELECT FROM beatkeeper_live_run live
           WHERE live.job_id = job.id AND live.trigger IN ('schedule', 'catch_up'))
FROM unnest(%(jobs)s::uuid[]) AS clock (job_id)
JOIN beatkeeper_job job ON job.id = clock.job_id
JOIN beatkeeper_job_version version ON version.job_id = job.id AND version.version = job.version;

-- name: runs_that_exist
-- Which of these ids are taken, and by which job.
SELECT run.id, run.job_id FROM beatkeeper_run run
WHERE run.id = ANY (%(ids)s::uuid[]) AND run.id >= %(first)s AND run.id <= %(last)s;

-- name: insert_runs
-- Run rows, and a live row for each that was really inserted and has something to do. Input is sorted by id.
WITH inserted AS (
    INSERT INTO beatkeeper_run
        (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state, reason, finished_at)
    SELECT id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state,
           CASE WHEN state IS NULL THEN '' ELSE 'overlap' END,
           CASE WHEN state IS NULL THEN NULL ELSE clock_timestamp() END
    FROM unnest(%(id)s::uuid[], %(tenant_id)s::int[], %(job_id)s::uuid[], %(version)s::int[], %(pool_id)s::int[],
                %(trigger)s::text[], %(planned_at)s::timestamptz[], %(priority)s::smallint[], %(state)s::text[])
        AS new (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state)
    ON CONFLICT (id) DO NOTHING
    RETURNING id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state
), live AS (
    INSERT INTO beatkeeper_live_run
        (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state,
         available_at, rank, target_key, gated)
    SELECT id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, 'ready',
           new.available_at, new.rank, new.target_key, new.gated
    FROM inserted
    JOIN unnest(%(id)s::uuid[], %(available_at)s::timestamptz[], %(rank)s::bigint[], %(target_key)s::text[],
                %(gated)s::bool[]) AS new (id, available_at, rank, target_key, gated) USING (id)
    WHERE state IS NULL
    ORDER BY id
)
SELECT id FROM inserted;

-- name: move_clocks
-- The next planned time of each job, or none.
UPDATE beatkeeper_job_clock clock SET next_run_at = new.next_run_at
FROM unnest(%(job_id)s::uuid[], %(next_run_at)s::timestamptz[]) AS new (job_id, next_run_at)
WHERE clock.job_id = new.job_id;

-- name: insert_missed_spans
-- Planned times that got no run of their own, and why (promise 3).
INSERT INTO beatkeeper_missed_span (tenant_id, job_id, version, from_at, to_at, reason, policy)
SELECT * FROM unnest(%(tenant_id)s::int[], %(job_id)s::uuid[], %(version)s::int[], %(from_at)s::timestamptz[],
                     %(to_at)s::timestamptz[], %(reason)s::text[], %(policy)s::text[]);

-- name: finish_jobs
-- Jobs whose schedule has no further time.
UPDATE beatkeeper_job SET status = 'finished', status_note = 'The schedule has no further time.',
    status_by = 'scheduler', status_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE id = ANY (%(jobs)s::uuid[]) AND status = 'active';

-- name: park_job
-- A job that cannot be planned stops here, with the reason and its audit entry; the others go on (R9).
WITH parked AS (
    UPDATE beatkeeper_job SET status = 'unrunnable', status_note = %(note)s, status_by = 'scheduler',
        status_at = clock_timestamp(), updated_at = clock_timestamp()
    WHERE id = %(job)s
    RETURNING id, tenant_id, version
), stopped AS (
    UPDATE beatkeeper_job_clock SET next_run_at = NULL WHERE job_id = %(job)s
), span AS (
    INSERT INTO beatkeeper_missed_span (tenant_id, job_id, version, from_at, to_at, reason, policy)
    SELECT tenant_id, id, version, %(from_at)s, %(to_at)s, 'unrunnable', 'skip' FROM parked
)
INSERT INTO beatkeeper_audit_entry
    (tenant_id, actor_kind, actor, action, object_type, object_id, before, after, reason, request_id)
SELECT tenant_id, 'system', 'scheduler', 'job.unrunnable', 'job', id::text, '{"status": "active"}',
       jsonb_build_object('status', 'unrunnable', 'status_note', %(note)s::text), %(note)s, ''
FROM parked;
