-- What people request of runs. Same lock order as everywhere: Job or its clock, JobGate, LiveRun by id.

-- name: job_for_run
-- The job of a run that is requested. FOR SHARE: requests do not exclude each other, but a cancel or a delete waits,
-- and then finds the run; without it a run could be created after its job was cancelled.
SELECT job.status, job.priority, job.pool_id, job.version, job.deleted_at IS NULL AS present
FROM beatkeeper_job job WHERE job.id = %(job_id)s
FOR SHARE;

-- name: spec_for_run
-- What the run will need of its version, whether the job has a limit, and whether the pool runs it for the tenant.
SELECT version.target_key, version.target,
       EXISTS (SELECT FROM beatkeeper_job_gate gate WHERE gate.job_id = version.job_id) AS gated,
       pool.slug AS pool,
       {{pool_is_open(pool, %(tenant_id)s)}} AS allowed, {{exports(pool, version.target_key)}} AS exported
FROM beatkeeper_job_version version JOIN beatkeeper_pool pool ON pool.id = %(pool_id)s
WHERE version.job_id = %(job_id)s AND version.version = %(version)s;

-- name: target_is_known
-- By a living worker of the pool that runs for the tenant.
SELECT EXISTS (
    SELECT FROM beatkeeper_worker_node worker
    WHERE worker.pool_id = %(pool)s AND {{serves(worker, %(tenant)s)}}
      AND %(target)s::text = ANY (worker.known_targets) AND {{living_worker(worker, now())}}
) AS known;

-- name: known_targets
-- What the living workers of a pool know that run for a tenant, or with NULL for any; with none alive, the latest ones.
WITH node AS (
    SELECT worker.known_targets, worker.last_beat_at, {{living_worker(worker, now())}} AS live
    FROM beatkeeper_worker_node worker
    WHERE worker.pool_id = %(pool)s AND (%(tenant)s::int IS NULL OR {{serves(worker, %(tenant)s)}})
), asked AS (
    SELECT known_targets FROM node WHERE live
    UNION ALL
    (SELECT known_targets FROM node WHERE NOT EXISTS (SELECT FROM node WHERE live)
     ORDER BY last_beat_at DESC LIMIT %(latest)s)
)
SELECT EXISTS (SELECT FROM node WHERE live) AS live,
       ARRAY(SELECT DISTINCT unnest(asked.known_targets) FROM asked) AS names;

-- name: insert_requested_run
-- A run nobody planned. No row comes back when its id is taken: an error, never ignored.
WITH inserted AS (
    INSERT INTO beatkeeper_run
        (id, tenant_id, job_id, version, pool_id, trigger, planned_at, created_at, priority, input, retry_of,
         requested_by, requested_reason)
    VALUES (%(id)s, %(tenant_id)s, %(job_id)s, %(version)s, %(pool_id)s, %(trigger)s, %(planned_at)s, %(now)s,
            %(priority)s, %(input)s, %(retry_of)s, %(requested_by)s,
            %(requested_reason)s)
    ON CONFLICT (id) DO NOTHING
    RETURNING *
)
INSERT INTO beatkeeper_live_run
    (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, input, state,
     reason, available_at, wake_at, rank, target_key, gated)
SELECT id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, input, %(live_state)s,
       %(live_reason)s, %(available_at)s, %(wake_at)s, %(rank)s, %(target_key)s, %(gated)s
FROM inserted
RETURNING id;

-- name: lock_gate_of_job
-- Before the runs: a pass that counts the room of the job looks before this transaction or after it, never in between.
SELECT max_running FROM beatkeeper_job_gate WHERE job_id = %(job_id)s FOR UPDATE;

-- name: lock_live_run
-- The unfinished run, locked until the transaction ends: no claim, report or recovery moves it meanwhile.
SELECT id, state, reason, attempt, cancel_requested_at FROM beatkeeper_live_run WHERE id = %(id)s FOR UPDATE;

-- name: lock_live_runs_of_job
-- All unfinished runs of a job, in the order everybody locks them.
SELECT id, state FROM beatkeeper_live_run WHERE job_id = %(job_id)s ORDER BY id FOR UPDATE;

-- name: end_backoff
-- A run waiting for its back-off, or for its tenant's budget of retries, goes now.
UPDATE beatkeeper_live_run
SET state = 'ready', available_at = %(now)s, rank = %(rank)s, wake_at = NULL, reason = '', budget_tenant = NULL
WHERE id = %(id)s AND (state = 'delayed' OR state = 'blocked' AND reason = 'retry_budget')
RETURNING id;

-- name: why_queues_wait
-- What holds the runs of these queues, made or not yet made: the reason of the queue, whether a worker lives that takes
-- them, and whether there are suspensions to look at.
SELECT wanted.pool_id, wanted.tenant_id, coalesce(queue.reason, '') AS reason, clock_timestamp() AS now,
       EXISTS (SELECT FROM beatkeeper_worker_node worker
               WHERE worker.pool_id = wanted.pool_id AND {{living_worker(worker, clock_timestamp())}}
                 AND {{serves(worker, wanted.tenant_id)}}) AS served,
       EXISTS (SELECT FROM beatkeeper_suspension suspension WHERE suspension.settled_at IS NULL) AS suspensions
FROM unnest(%(pools)s::int[], %(tenants)s::int[]) AS wanted (pool_id, tenant_id)
LEFT JOIN beatkeeper_queue queue ON queue.pool_id = wanted.pool_id AND queue.tenant_id = wanted.tenant_id;

-- fragment: runs_of_queue(queue, state)
-- Of one state, counted up to a bound, and since when the oldest of them may go. Those that go first are counted first.
SELECT {{state}} AS state, count(*)::int AS runs, min(counted.available_at) AS oldest_at
FROM (SELECT live.available_at FROM beatkeeper_live_run live
      WHERE live.state = {{state}} AND live.pool_id = {{queue}}.pool_id AND live.tenant_id = {{queue}}.tenant_id
      ORDER BY live.rank LIMIT %(most)s) counted

-- name: count_queues
-- The runs of these queues by state. A statement for each state, because each has an index of its own; the running ones
-- of all queues are no more than there are slots.
SELECT queue.id, counted.state, counted.runs, counted.oldest_at
FROM beatkeeper_queue queue
CROSS JOIN LATERAL (
    {{runs_of_queue(queue, 'ready')}} UNION ALL {{runs_of_queue(queue, 'queued')}}
    UNION ALL {{runs_of_queue(queue, 'running')}} UNION ALL {{runs_of_queue(queue, 'delayed')}}
    UNION ALL {{runs_of_queue(queue, 'blocked')}} UNION ALL {{runs_of_queue(queue, 'waiting_callback')}}
) counted
WHERE queue.id = ANY (%(queues)s::int[]);
