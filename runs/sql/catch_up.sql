-- Missed times: what waited for the end of a suspension, and what the catch-up policy `all` works off.
-- A transaction that writes a span holds the clock of its job; then come suspensions, spans, gates and runs.

-- name: next_catch_up
-- The idle probe: the first working span of each slice held, and whether a suspension that is over is not settled.
SELECT pg_backend_pid(), clock_timestamp(), min(first.next_at),
       EXISTS (SELECT FROM beatkeeper_suspension
               WHERE settled_at IS NULL AND begins_at <= clock_timestamp()
                 AND least(lifted_at, ends_at) <= clock_timestamp())
FROM (VALUES (0)) AS always
LEFT JOIN (
    unnest(%(slices)s::smallint[]) AS held (slice)
    CROSS JOIN LATERAL (
        SELECT span.next_at FROM beatkeeper_missed_span span
        WHERE span.slice = held.slice AND span.state = 'working'
        ORDER BY span.next_at LIMIT 1
    ) first
) ON true;

-- name: jobs_with_due_spans
-- Jobs whose pace allows a further run, a fair share of each slice; the longest overdue first.
SELECT DISTINCT due.job_id
FROM unnest(%(slices)s::smallint[]) AS held (slice)
CROSS JOIN LATERAL (
    SELECT span.job_id FROM beatkeeper_missed_span span
    WHERE span.slice = held.slice AND span.state = 'working' AND span.next_at <= %(now)s
    ORDER BY span.next_at LIMIT %(share)s
) due;

-- name: jobs_with_open_spans
-- Jobs that a suspension kept from their runs.
SELECT DISTINCT span.job_id FROM (
    SELECT job_id FROM beatkeeper_missed_span
    WHERE suspension_id = %(suspension)s AND state = 'open' AND slice = ANY (%(slices)s::smallint[])
    LIMIT %(most)s
) span;

-- name: lock_clocks
-- Clocks before spans, as everywhere. SKIP LOCKED: a job that is being triggered or edited is left for the next pass.
SELECT job_id FROM beatkeeper_job_clock
WHERE job_id = ANY (%(jobs)s::uuid[]) ORDER BY job_id FOR UPDATE SKIP LOCKED;

-- name: lock_due_spans
-- The caller holds the clocks, so no trigger or edit writes a span of these jobs meanwhile.
SELECT id, job_id, version, begins_at, ends_at, reason, suspension_id, cursor, made FROM beatkeeper_missed_span
WHERE job_id = ANY (%(jobs)s::uuid[]) AND state = 'working' AND next_at <= %(now)s
ORDER BY id FOR UPDATE;

-- name: lock_open_spans
-- All spans of the suspension, of jobs whose clocks the caller holds.
SELECT id, job_id, version, begins_at, ends_at, reason, suspension_id, cursor, made FROM beatkeeper_missed_span
WHERE job_id = ANY (%(jobs)s::uuid[]) AND suspension_id = %(suspension)s AND state = 'open'
ORDER BY id FOR UPDATE;

-- name: jobs_of_spans
-- The jobs as they are now, with the schedule under which the times were planned.
{{jobs_found(unnest(%(jobs)s::uuid[], %(versions)s::int[]) AS found (job_id, version), found.version)}};

-- name: move_spans
-- Working spans shrink by what was made of them; the times left wait for their pace.
UPDATE beatkeeper_missed_span span
SET begins_at = new.begins_at, ends_at = new.ends_at, cursor = new.cursor, next_at = new.next_at, made = new.made
FROM unnest(%(id)s::bigint[], %(begins_at)s::timestamptz[], %(ends_at)s::timestamptz[], %(cursor)s::timestamptz[],
            %(next_at)s::timestamptz[], %(made)s::bigint[]) AS new (id, begins_at, ends_at, cursor, next_at, made)
WHERE span.id = new.id AND span.state = 'working';

-- name: pace_other_spans
-- The pace is the job's, however many spans it has.
UPDATE beatkeeper_missed_span span SET next_at = new.next_at
FROM unnest(%(job_id)s::uuid[], %(next_at)s::timestamptz[]) AS new (job_id, next_at)
WHERE span.job_id = new.job_id AND span.state = 'working' AND span.next_at < new.next_at;

-- name: end_spans
-- Worked off, or replaced by what its times became.
DELETE FROM beatkeeper_missed_span WHERE id = ANY (%(ids)s::bigint[]);

-- name: give_up_spans
-- What is left of working spans gets no run, for this reason.
UPDATE beatkeeper_missed_span SET state = 'settled', reason = %(reason)s, policy = 'skip', cursor = NULL, next_at = NULL
WHERE job_id = %(job)s AND state = 'working';

-- name: drop_moved
-- Planned times that have come, and wait for an instant to which somebody moved them: the job does not live to see it.
WITH given_up AS (
    UPDATE beatkeeper_override SET done_at = clock_timestamp()
    WHERE job_id = %(job)s AND done_at IS NULL AND moved_to IS NOT NULL AND planned_at <= %(now)s
    RETURNING job_id, planned_at
)
INSERT INTO beatkeeper_missed_span (tenant_id, job_id, version, slice, begins_at, ends_at, reason, policy, count)
SELECT job.tenant_id, job.id, job.version, clock.slice, planned_at, planned_at + interval '1 millisecond',
       %(reason)s, 'skip', 1
FROM given_up
JOIN beatkeeper_job job ON job.id = given_up.job_id
JOIN beatkeeper_job_clock clock ON clock.job_id = given_up.job_id;

-- name: move_spans_to_version
-- The planned times of both versions are the same, so what is to come runs as the new one says.
UPDATE beatkeeper_missed_span SET version = %(version)s
WHERE job_id = %(job)s AND version = %(before)s AND state <> 'settled';

-- name: suspension_is_waited_for
-- Whether a span waits for the end of this suspension, or a clock stands before it, whose times may have to.
SELECT EXISTS (SELECT FROM beatkeeper_missed_span WHERE suspension_id = %(suspension)s AND state = 'open')
    OR EXISTS (
        SELECT FROM generate_series(0, %(slices)s - 1) AS every (slice)
        CROSS JOIN LATERAL (
            SELECT FROM beatkeeper_job_clock clock
            WHERE clock.slice = every.slice AND clock.next_run_at < %(over_at)s LIMIT 1
        ) behind
    );

-- name: uncounted_spans
-- Spans whose planned times nobody has counted yet.
SELECT id, job_id, version, begins_at, ends_at, reason, suspension_id, cursor, made FROM beatkeeper_missed_span
WHERE slice = ANY (%(slices)s::smallint[]) AND count IS NULL AND state <> 'open'
LIMIT %(most)s;

-- name: count_spans
-- Without the clock: SKIP LOCKED leaves out a span that is being worked off at this moment.
WITH locked AS MATERIALIZED (
    SELECT id FROM beatkeeper_missed_span
    WHERE id = ANY (%(id)s::bigint[]) AND count IS NULL ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_missed_span span SET count = new.count
FROM unnest(%(id)s::bigint[], %(count)s::bigint[]) AS new (id, count) JOIN locked USING (id)
WHERE span.id = locked.id;
