-- From due job to run row. A statement that ends a run names its id and a range, or every partition is planned.
-- One lock order everywhere: JobClock, Suspension, MissedSpan, JobGate by job, LiveRun by id, Queue, WorkerNode.

-- name: session_and_time
-- Which session this is, and what time it is: the database's clock is the only clock.
SELECT pg_backend_pid(), clock_timestamp();

-- name: next_due
-- The idle probe of the trigger: one index look-up for each slice held, from an instant on.
SELECT pg_backend_pid(), clock_timestamp(), min(first.next_run_at)
FROM unnest(%(slices)s::smallint[]) AS held (slice)
CROSS JOIN LATERAL (
    SELECT clock.next_run_at FROM beatkeeper_job_clock clock
    WHERE clock.slice = held.slice AND clock.next_run_at >= %(since)s
    ORDER BY clock.next_run_at LIMIT 1
) first;

-- name: lock_due_clocks
-- Clocks due in these bounds, a fair share of each slice, the most urgent of an instant first; one that somebody is
-- editing waits for the next pass.
SELECT due.job_id, due.next_run_at, due.slice
FROM unnest(%(slices)s::smallint[]) AS held (slice)
CROSS JOIN LATERAL (
    SELECT clock.job_id, clock.next_run_at, clock.slice FROM beatkeeper_job_clock clock
    WHERE clock.slice = held.slice AND clock.next_run_at >= %(since)s AND clock.next_run_at <= %(until)s
    ORDER BY clock.next_run_at, clock.priority DESC LIMIT %(share)s
    -- An edit holds the clock from its first look at the job to its commit: it triggers what is due by the old schedule
    -- itself, so this pass must not, and does not wait for a person.
    FOR UPDATE SKIP LOCKED
) due;

-- name: lock_due_clock
-- The clock of one job, if it is due. Waits: an edit must not begin before a pass that has the clock has committed.
SELECT clock.job_id, clock.next_run_at, clock.slice FROM beatkeeper_job_clock clock
WHERE clock.job_id = %(job)s AND clock.next_run_at <= %(now)s
FOR UPDATE;

-- fragment: jobs_found(source, version)
-- Jobs as trigger and catch-up decide about them, with one of their versions. The order is that of DueJob's fields.
SELECT job.id, job.tenant_id, job.pool_id, version.version, job.priority,
       CASE WHEN job.deleted_at IS NULL THEN job.status ELSE 'cancelled' END,
       version.schedule::text, calendar.working_time, version.anchor_at, version.overlap, version.catch_up::text,
       version.target_key,
       gate.job_id IS NOT NULL, unfinished.id IS NOT NULL, CASE WHEN %(need_tags)s THEN job.tags::text END
FROM {{source}}
JOIN beatkeeper_job job ON job.id = found.job_id
JOIN beatkeeper_job_version version ON version.job_id = found.job_id AND version.version = {{version}}
LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = found.job_id
LEFT JOIN LATERAL (
    SELECT jsonb_build_object('timezone', timezone, 'dates', dates, 'weekly', weekly)::text AS working_time
    FROM beatkeeper_calendar WHERE id = version.calendar_id
) calendar ON true
-- Not EXISTS, which the planner may answer by reading the whole table into a hash.
LEFT JOIN LATERAL (
    SELECT live.id FROM beatkeeper_live_run live
    WHERE version.overlap = ANY (%(counting)s::text[]) AND live.job_id = found.job_id AND {{scheduled(live)}}
    LIMIT 1
) unfinished ON true

-- name: jobs_of_clocks
-- What is due, read after its clock was locked: edits and earlier triggers of these jobs are seen whole.
{{jobs_found(unnest(%(jobs)s::uuid[]) AS found (job_id), job.version)}};

-- name: changes_exist
-- Most installations never change a single time.
SELECT EXISTS (SELECT FROM beatkeeper_override);

-- name: changes_of_clocks
-- Single planned times that somebody skipped or moved, of clocks that are locked.
SELECT change.job_id, change.id, change.planned_at, change.moved_to, change.created_by, change.reason,
       change.done_at IS NOT NULL
FROM unnest(%(jobs)s::uuid[], %(due_at)s::timestamptz[]) AS clock (job_id, due_at)
JOIN beatkeeper_override change
    ON change.job_id = clock.job_id AND (change.done_at IS NULL OR change.planned_at >= clock.due_at)
ORDER BY change.job_id, change.planned_at;

-- name: end_changes
-- The runs of these times exist, or rows that say why there is none.
UPDATE beatkeeper_override SET done_at = clock_timestamp()
WHERE id = ANY (%(changes)s::bigint[]) AND done_at IS NULL;

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
           CASE WHEN state IS NULL THEN '' ELSE reason END,
           CASE WHEN state IS NULL THEN NULL ELSE clock_timestamp() END
    FROM unnest(%(id)s::uuid[], %(tenant_id)s::int[], %(job_id)s::uuid[], %(version)s::int[], %(pool_id)s::int[],
                %(trigger)s::text[], %(planned_at)s::timestamptz[], %(priority)s::smallint[], %(state)s::text[],
                %(reason)s::text[])
        AS new (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state, reason)
    ON CONFLICT (id) DO NOTHING
    RETURNING id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state
), live AS (
    INSERT INTO beatkeeper_live_run
        (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state, reason,
         available_at, rank, target_key, gated, wake_at)
    SELECT id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, new.live_state, new.reason,
           new.available_at, new.rank, new.target_key, new.gated, new.wake_at
    FROM inserted
    JOIN unnest(%(id)s::uuid[], %(available_at)s::timestamptz[], %(rank)s::bigint[], %(target_key)s::text[],
                %(gated)s::bool[], %(live_state)s::text[], %(reason)s::text[], %(wake_at)s::timestamptz[])
        AS new (id, available_at, rank, target_key, gated, live_state, reason, wake_at) USING (id)
    WHERE state IS NULL
    ORDER BY id
)
SELECT id FROM inserted;

-- name: move_clocks
-- The next planned time of each job, or none.
UPDATE beatkeeper_job_clock clock SET next_run_at = new.next_run_at
FROM unnest(%(job_id)s::uuid[], %(next_run_at)s::timestamptz[]) AS new (job_id, next_run_at)
WHERE clock.job_id = new.job_id;

-- name: hold_suspensions
-- Suspensions that planned times are about to wait for, shared until the commit: a lift or a settling between the
-- decision and its span would leave the span behind. One that is being changed, or waits to be, is left out; the
-- advisory lock makes sharers queue behind a waiting writer, who would never come in otherwise.
SELECT suspension.id, least(suspension.lifted_at, suspension.ends_at) FROM beatkeeper_suspension suspension
JOIN (SELECT id FROM unnest(%(suspensions)s::int[]) AS relied_on (id)
      WHERE pg_try_advisory_xact_lock_shared(%(queue)s, id)) free
    ON free.id = suspension.id
WHERE suspension.settled_at IS NULL ORDER BY suspension.id FOR SHARE OF suspension SKIP LOCKED;

-- name: wait_for_suspensions
-- The same for one job, whose planned times must be settled now.
SELECT suspension.id, least(suspension.lifted_at, suspension.ends_at) FROM beatkeeper_suspension suspension
JOIN (SELECT id, pg_advisory_xact_lock_shared(%(queue)s, id)
      FROM unnest(%(suspensions)s::int[]) AS relied_on (id) OFFSET 0) free
    ON free.id = suspension.id
WHERE suspension.settled_at IS NULL ORDER BY suspension.id FOR SHARE OF suspension;

-- name: extend_open_spans
-- Spans that go on with the planned time that was to follow, of the same version and under the same suspension.
UPDATE beatkeeper_missed_span span SET ends_at = new.ends_at, cursor = new.cursor
FROM unnest(%(job_id)s::uuid[], %(suspension_id)s::int[], %(version)s::int[], %(begins_at)s::timestamptz[],
            %(ends_at)s::timestamptz[], %(cursor)s::timestamptz[])
    AS new (job_id, suspension_id, version, begins_at, ends_at, cursor)
WHERE span.job_id = new.job_id AND span.suspension_id = new.suspension_id AND span.state = 'open'
    AND span.version = new.version AND span.cursor = new.begins_at
RETURNING new.job_id, new.begins_at;

-- name: insert_missed_spans
-- Planned times that got no run of their own, and why (promise 3).
INSERT INTO beatkeeper_missed_span
    (tenant_id, job_id, version, slice, begins_at, ends_at, reason, policy, state, suspension_id, cursor, next_at, count)
SELECT * FROM unnest(%(tenant_id)s::int[], %(job_id)s::uuid[], %(version)s::int[], %(slice)s::smallint[],
                     %(begins_at)s::timestamptz[], %(ends_at)s::timestamptz[], %(reason)s::text[], %(policy)s::text[],
                     %(state)s::text[], %(suspension_id)s::int[], %(cursor)s::timestamptz[], %(next_at)s::timestamptz[],
                     %(number)s::bigint[]);

-- name: lock_jobs
-- Jobs whose status is about to change. SKIP LOCKED: a request that holds one may wait for the clock that we hold; the
-- next pass retries.
SELECT id FROM beatkeeper_job WHERE id = ANY (%(jobs)s::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED;

-- name: finish_jobs
-- Jobs whose schedule has no further time.
UPDATE beatkeeper_job SET status = 'finished', status_reason = 'The schedule has no further time.',
    status_by = 'scheduler', status_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE id = ANY (%(jobs)s::uuid[]) AND status = 'active';

-- name: make_unrunnable
-- A job that cannot be planned stops here, with the reason and its audit entry; the others go on.
WITH unrunnable AS (
    -- It stands still from the end of what is recorded on: a later instant would leave times without an outcome.
    UPDATE beatkeeper_job SET status = 'unrunnable', status_reason = %(reason)s, status_by = 'scheduler',
        status_at = %(end)s::timestamptz - interval '1 millisecond', updated_at = clock_timestamp()
    WHERE id = %(job)s
    RETURNING id, tenant_id
), stopped AS (
    UPDATE beatkeeper_job_clock SET next_run_at = NULL WHERE job_id = %(job)s
)
INSERT INTO beatkeeper_audit_entry
    (tenant_id, actor_kind, actor, action, object_type, object_id, before, after, reason, request_id)
SELECT tenant_id, 'system', 'scheduler', 'job.unrunnable', 'job', id::text, '{"status": "active"}',
       jsonb_build_object('status', 'unrunnable', 'status_reason', %(reason)s::text), %(reason)s, ''
FROM unrunnable;
