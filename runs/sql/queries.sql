-- The scheduler's statements. Whoever ends a run names its id and a range, or every partition is planned.
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
-- Due clocks, a fair share of each slice; one that somebody is editing waits for the next pass.
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
       gate.job_id IS NOT NULL, unfinished.id IS NOT NULL
FROM unnest(%(jobs)s::uuid[]) AS clock (job_id)
JOIN beatkeeper_job job ON job.id = clock.job_id
JOIN beatkeeper_job_version version ON version.job_id = clock.job_id AND version.version = job.version
LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = clock.job_id
-- Not EXISTS, which the planner may answer by reading the whole table into a hash.
LEFT JOIN LATERAL (
    SELECT live.id FROM beatkeeper_live_run live
    WHERE version.overlap = 'skip' AND live.job_id = clock.job_id AND live.trigger IN ('schedule', 'catch_up')
    LIMIT 1
) unfinished ON true;

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

-- name: lock_jobs
-- Jobs whose status is about to change; one that a request holds is left out, and its clock waits for the next pass.
SELECT id FROM beatkeeper_job WHERE id = ANY (%(jobs)s::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED;

-- name: finish_jobs
-- Jobs whose schedule has no further time.
UPDATE beatkeeper_job SET status = 'finished', status_note = 'The schedule has no further time.',
    status_by = 'scheduler', status_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE id = ANY (%(jobs)s::uuid[]) AND status = 'active';

-- name: park_job
-- A job that cannot be planned stops here, with the reason and its audit entry; the others go on.
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

-- name: pools_with_ready_runs
-- The idle probe of dispatch: one index look-up for each pool held.
SELECT held.pool_id
FROM unnest(%(pools)s::int[]) AS held (pool_id)
CROSS JOIN LATERAL (
    SELECT live.tenant_id FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.pool_id = held.pool_id
    ORDER BY live.tenant_id, live.rank LIMIT 1
) first;

-- name: pool
-- The pool as its owner set it, how many lanes it has, and the targets that may go there.
SELECT pool.slug, pool.shared, pool.paused_at IS NOT NULL,
       (SELECT count(*) FROM beatkeeper_lane lane WHERE lane.pool_id = pool.id),
       pool.exported_tasks::text[] || ARRAY(SELECT 'kind:' || kind FROM unnest(pool.exported_kinds) AS export (kind))
FROM beatkeeper_pool pool WHERE pool.id = %(pool)s;

-- name: living_nodes
-- Workers of the pool that may claim, and the slots they have for us.
SELECT node.incarnation, greatest(0, node.slots - node.foreign_busy) FROM beatkeeper_worker_node node
WHERE node.pool_id = %(pool)s AND node.state = 'active'
  AND node.last_beat_at > %(now)s - make_interval(secs => node.lease_seconds);

-- name: targets_of_nodes
-- Every target that some of these workers know.
SELECT DISTINCT target.key
FROM beatkeeper_worker_node node CROSS JOIN LATERAL unnest(node.known_targets) AS target (key)
WHERE node.incarnation = ANY (%(nodes)s::uuid[]);

-- name: lanes_with_ready_runs
-- Tenants with work in the pool by loose index scan: one probe each, however long their backlogs.
WITH RECURSIVE tenant (id) AS (
    SELECT min(tenant_id) FROM beatkeeper_live_run WHERE state = 'ready' AND pool_id = %(pool)s
    UNION ALL
    SELECT (SELECT min(tenant_id) FROM beatkeeper_live_run
            WHERE state = 'ready' AND pool_id = %(pool)s AND tenant_id > tenant.id)
    FROM tenant WHERE tenant.id IS NOT NULL
)
SELECT id FROM tenant WHERE id IS NOT NULL;

-- name: occupied
-- Exact counts of what each lane has handed over: running, queued, and what runs elsewhere than on living nodes.
SELECT tenant_id, sum(running)::int, sum(queued)::int, sum(elsewhere)::int
FROM (
    SELECT tenant_id, count(*) AS running, 0 AS queued,
           count(*) FILTER (WHERE worker <> ALL (%(nodes)s::uuid[])) AS elsewhere
    FROM beatkeeper_live_run
    WHERE state = 'running' AND pool_id = %(pool)s GROUP BY tenant_id
    UNION ALL
    SELECT tenant_id, 0, count(*), 0 FROM beatkeeper_live_run
    WHERE state = 'queued' AND pool_id = %(pool)s GROUP BY tenant_id
) counted
GROUP BY tenant_id;

-- name: lanes
-- The lanes of these tenants, made or not yet made, and those that still show a reason.
SELECT tenant.id, tenant.slug, tenant.weight, tenant.max_running, tenant.rate_limit,
       lane.id, coalesce(lane.queue, ''), lane.tokens, lane.tokens_at, coalesce(lane.reason, ''),
       coalesce("window", 0),
       %(shared)s OR EXISTS (SELECT FROM beatkeeper_pool_tenant member
                             WHERE member.pool_id = %(pool)s AND member.tenant_id = tenant.id)
FROM beatkeeper_tenant tenant
LEFT JOIN beatkeeper_lane lane ON lane.pool_id = %(pool)s AND lane.tenant_id = tenant.id
WHERE tenant.id = ANY (%(tenants)s::int[]) OR lane.reason <> '';

-- name: make_lanes
-- A lane exists from the first run of its tenant in the pool.
INSERT INTO beatkeeper_lane (pool_id, tenant_id, queue)
SELECT %(pool)s, tenant_id, queue FROM unnest(%(tenants)s::int[], %(queues)s::text[]) AS new (tenant_id, queue)
ORDER BY tenant_id
ON CONFLICT (pool_id, tenant_id) DO NOTHING;

-- name: write_lanes
-- What changed of a lane: why it cannot go, its bucket, its window.
UPDATE beatkeeper_lane lane
SET reason = new.reason, tokens = new.tokens, tokens_at = new.tokens_at, "window" = new."window"
FROM (
    SELECT * FROM unnest(%(tenants)s::int[], %(reasons)s::text[], %(tokens)s::float8[], %(tokens_at)s::timestamptz[],
                         %(windows)s::int[]) AS given (tenant_id, reason, tokens, tokens_at, "window")
    ORDER BY tenant_id
) new
WHERE lane.pool_id = %(pool)s AND lane.tenant_id = new.tenant_id;

-- name: queues_of_pools
-- What a broker must hold for these pools.
SELECT DISTINCT queue FROM beatkeeper_lane WHERE pool_id = ANY (%(pools)s::int[]);

-- name: best_ready
-- The best few of each lane in rank order: priority with aging, exactly.
SELECT best.id, best.tenant_id, best.job_id, best.rank, best.target_key, gate.job_id IS NOT NULL,
       best.trigger IN ('schedule', 'catch_up') AND job.status = 'paused'
FROM unnest(%(tenants)s::int[], %(places)s::int[]) AS lane (tenant_id, places)
CROSS JOIN LATERAL (
    SELECT live.id, live.tenant_id, live.job_id, live.rank, live.target_key, live.trigger
    FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.pool_id = %(pool)s AND live.tenant_id = lane.tenant_id
    ORDER BY live.rank LIMIT lane.places
) best
JOIN beatkeeper_job job ON job.id = best.job_id
LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = best.job_id
ORDER BY best.rank;

-- name: lock_gates
-- Before counting; a gate that a report holds is left out, and its job's runs wait for the next pass.
SELECT job_id, max_running FROM beatkeeper_job_gate
WHERE job_id = ANY (%(jobs)s::uuid[]) ORDER BY job_id FOR UPDATE SKIP LOCKED;

-- name: occupied_gates
-- Counted after the gate was locked, so no earlier release or mark is missed.
SELECT job_id, count(*)::int FROM beatkeeper_live_run
WHERE job_id = ANY (%(jobs)s::uuid[]) AND state IN ('queued', 'running', 'waiting_callback')
GROUP BY job_id;

-- name: mark_queued
-- ready -> queued, committed before any permit is published.
WITH picked AS MATERIALIZED (
    SELECT id FROM beatkeeper_live_run WHERE id = ANY (%(ids)s::uuid[]) AND state = 'ready'
    ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'queued', reason = '', queued_at = clock_timestamp()
FROM picked WHERE live.id = picked.id
RETURNING live.id, live.tenant_id, live.rank;

-- name: mark_blocked
-- ready -> blocked, for the run's own reason.
WITH picked AS MATERIALIZED (
    SELECT live.id, new.reason FROM beatkeeper_live_run live
    JOIN unnest(%(ids)s::uuid[], %(reasons)s::text[]) AS new (id, reason) ON new.id = live.id
    WHERE live.state = 'ready'
    ORDER BY live.id FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'blocked', reason = picked.reason
FROM picked WHERE live.id = picked.id;

-- name: cancel_live_runs
-- What nobody has claimed ends now; what runs is asked to stop and ends with its report.
WITH locked AS MATERIALIZED (
    SELECT id, state, attempt, started_at FROM beatkeeper_live_run
    WHERE id = ANY (%(ids)s::uuid[])
    ORDER BY id FOR UPDATE
), ended AS (
    DELETE FROM beatkeeper_live_run live USING locked
    WHERE live.id = locked.id AND locked.state <> 'running'
), asked AS (
    UPDATE beatkeeper_live_run live
    SET cancel_requested_at = clock_timestamp(), cancel_reason = %(reason)s
    FROM locked
    WHERE live.id = locked.id AND locked.state = 'running' AND live.cancel_requested_at IS NULL
), finished AS (
    UPDATE beatkeeper_run run
    SET state = 'cancelled', ended_from = locked.state, reason = %(reason)s, attempts = locked.attempt,
        started_at = locked.started_at, finished_at = clock_timestamp(), error_class = 'cancelled'
    FROM locked
    WHERE run.id = locked.id AND locked.state <> 'running'
      AND run.id = ANY (%(ids)s::uuid[]) AND run.id >= %(first)s AND run.id <= %(last)s
)
SELECT id, state <> 'running' FROM locked;

-- name: promote_delayed
-- delayed -> ready when the wait is over.
WITH woken AS MATERIALIZED (
    SELECT id FROM beatkeeper_live_run
    WHERE wake_at <= %(now)s AND state = 'delayed'
    ORDER BY wake_at LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '', wake_at = NULL
FROM woken WHERE live.id = woken.id;

-- name: silent_nodes
-- Living incarnations with the age of their last beat: who may have lost the lease, and how many share its pool.
SELECT node.incarnation, node.pool_id, node.name, node.last_beat_at, node.held_until, node.lease_seconds
FROM beatkeeper_worker_node node
WHERE node.state IN ('active', 'draining', 'suspect');

-- name: hold_nodes
-- Many fell silent at once: they keep their claims for one more lease.
UPDATE beatkeeper_worker_node SET held_until = %(now)s + make_interval(secs => lease_seconds)
WHERE incarnation = ANY (%(nodes)s::uuid[]) AND last_beat_at <= %(now)s - make_interval(secs => lease_seconds);

-- name: lose_nodes
-- An incarnation that kept silent for its lease; whoever has beaten since is spared.
UPDATE beatkeeper_worker_node SET state = 'lost', held_until = NULL
WHERE incarnation = ANY (%(nodes)s::uuid[]) AND state IN ('active', 'draining', 'suspect')
  AND last_beat_at <= %(now)s - make_interval(secs => lease_seconds)
RETURNING incarnation, name, pool_id;

-- name: orphans
-- Running rows of incarnations that are lost, gone or unknown: workers by loose index scan, then their rows.
WITH RECURSIVE holder (worker) AS (
    (SELECT worker FROM beatkeeper_live_run WHERE state = 'running' ORDER BY worker LIMIT 1)
    UNION ALL
    SELECT (SELECT live.worker FROM beatkeeper_live_run live
            WHERE live.state = 'running' AND live.worker > holder.worker ORDER BY live.worker LIMIT 1)
    FROM holder WHERE holder.worker IS NOT NULL
)
SELECT live.id, live.claim_seq
FROM holder
LEFT JOIN beatkeeper_worker_node node ON node.incarnation = holder.worker
CROSS JOIN LATERAL (
    SELECT id, claim_seq FROM beatkeeper_live_run
    WHERE state = 'running' AND beatkeeper_live_run.worker = holder.worker
    ORDER BY id LIMIT %(most)s
) live
WHERE holder.worker IS NOT NULL AND (node.incarnation IS NULL OR node.state IN ('lost', 'left'))
LIMIT %(most)s;

-- name: unlisted_claims
-- Claimed before the incarnation's previous beat and not in hand at its last: nobody works on it.
SELECT live.id, live.claim_seq
FROM beatkeeper_worker_node node
JOIN beatkeeper_live_run live ON live.state = 'running' AND live.worker = node.incarnation
WHERE node.state IN ('active', 'draining', 'suspect')
  AND live.claimed_at < node.previous_beat_at AND live.claim_token <> ALL (node.held)
LIMIT %(most)s;

-- name: overdue_claims
-- Past the time limit and the grace in which the guard would have ended them.
SELECT id, claim_seq FROM beatkeeper_live_run
WHERE wake_at <= %(now)s AND state = 'running'
ORDER BY wake_at LIMIT %(most)s;

-- name: claims_to_decide
-- What the verdict on a lost attempt needs to know.
SELECT live.id, live.claim_seq, live.attempt, live.losses, version.retry::text
FROM beatkeeper_live_run live
JOIN beatkeeper_job_version version ON version.job_id = live.job_id AND version.version = live.version
WHERE live.id = ANY (%(ids)s::uuid[]) AND live.state = 'running';

-- name: lose_attempts
-- Ends attempts nobody works on. claim_seq stays, so that a report that comes after all changes nothing;
-- a run that somebody wants cancelled is cancelled.
WITH mine AS MATERIALIZED (
    SELECT live.*, new.attempt_id, clock_timestamp() AS lost_at,
           clock_timestamp() + make_interval(secs => new.delay) AS goes_on_at,
           CASE WHEN live.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE new.next_state END AS next_state
    FROM beatkeeper_live_run live
    JOIN unnest(%(ids)s::uuid[], %(seqs)s::int[], %(attempt_ids)s::uuid[], %(states)s::text[], %(delays)s::float8[])
        AS new (id, claim_seq, attempt_id, next_state, delay) ON new.id = live.id
    WHERE live.state = 'running' AND live.claim_seq = new.claim_seq
    ORDER BY live.id FOR UPDATE OF live
), ended AS (
    DELETE FROM beatkeeper_live_run live USING mine
    WHERE live.id = mine.id AND mine.next_state <> 'delayed'
), went_on AS (
    UPDATE beatkeeper_live_run live
    SET state = 'delayed', reason = 'worker lost', losses = live.losses + 1,
        available_at = mine.goes_on_at, wake_at = mine.goes_on_at,
        rank = live.rank + (1000 * extract(epoch FROM mine.goes_on_at - live.available_at))::bigint,
        worker = NULL, claim_token = NULL, claimed_at = NULL, queued_at = NULL
    FROM mine WHERE live.id = mine.id AND mine.next_state = 'delayed'
), noted AS (
    INSERT INTO beatkeeper_attempt
        (id, run_id, tenant_id, number, claim_seq, worker, worker_name, started_at, finished_at, outcome, next_state,
         error_class, error_line)
    SELECT mine.attempt_id, mine.id, mine.tenant_id, mine.attempt, mine.claim_seq, mine.worker,
           coalesce(node.name, ''), mine.claimed_at, mine.lost_at,
           CASE WHEN mine.next_state = 'cancelled' THEN 'cancelled' ELSE 'lost' END, mine.next_state,
           'worker_lost', %(line)s
    FROM mine LEFT JOIN beatkeeper_worker_node node ON node.incarnation = mine.worker
), finished AS (
    UPDATE beatkeeper_run run
    SET state = mine.next_state, ended_from = 'running', attempts = mine.attempt, started_at = mine.started_at,
        finished_at = mine.lost_at,
        reason = CASE WHEN mine.next_state = 'cancelled' THEN mine.cancel_reason ELSE %(line)s END,
        error_class = CASE WHEN mine.next_state = 'cancelled' THEN 'cancelled' ELSE 'worker_lost' END,
        error_line = %(line)s
    FROM mine
    WHERE run.id = mine.id AND mine.next_state <> 'delayed'
      AND run.id = ANY (%(ids)s::uuid[]) AND run.id >= %(first)s AND run.id <= %(last)s
)
SELECT id, next_state FROM mine;

-- name: jobs_blocked_for
-- Jobs with runs blocked for a reason, by loose index scan, going round: a sweep continues where the last one ended.
WITH RECURSIVE blocked (job_id, number) AS (
    (SELECT job_id, 1 FROM beatkeeper_live_run
     WHERE state = 'blocked' AND reason = %(reason)s AND job_id > %(after)s ORDER BY job_id LIMIT 1)
    UNION ALL
    SELECT next.job_id, blocked.number + 1
    FROM blocked CROSS JOIN LATERAL (
        SELECT live.job_id FROM beatkeeper_live_run live
        WHERE live.state = 'blocked' AND live.reason = %(reason)s AND live.job_id > blocked.job_id
        ORDER BY live.job_id LIMIT 1
    ) next
    WHERE blocked.number < %(most)s
)
SELECT job_id FROM blocked;

-- name: release_gated
-- blocked -> ready, as many as the limit has room for beside what is on its way; all, if the limit is gone. A ready
-- run counts in its own pool only: nobody knows when that of another will go.
WITH waiting AS MATERIALIZED (
    SELECT DISTINCT live.job_id, live.pool_id FROM beatkeeper_live_run live
    WHERE live.state = 'blocked' AND live.reason = 'concurrency' AND live.job_id = ANY (%(jobs)s::uuid[])
), room AS MATERIALIZED (
    SELECT waiting.job_id, waiting.pool_id, gate.max_running IS NULL AS free,
           gate.max_running - (
               SELECT count(*) FROM beatkeeper_live_run live
               WHERE live.job_id = waiting.job_id AND live.state IN ('ready', 'queued', 'running', 'waiting_callback')
                 AND (live.state <> 'ready' OR live.pool_id = waiting.pool_id)
           ) AS places
    FROM waiting
    LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = waiting.job_id
), chosen AS MATERIALIZED (
    SELECT best.id FROM room CROSS JOIN LATERAL (
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.job_id = room.job_id AND live.pool_id = room.pool_id
          AND live.state = 'blocked' AND live.reason = 'concurrency'
        ORDER BY live.rank LIMIT CASE WHEN room.free THEN 1000 ELSE greatest(0, room.places) END
    ) best
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live JOIN chosen ON chosen.id = live.id
    WHERE live.state = 'blocked' ORDER BY live.id FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: release_unpaused
-- blocked -> ready, of jobs that are no longer paused.
WITH locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live JOIN beatkeeper_job job ON job.id = live.job_id
    WHERE live.state = 'blocked' AND live.reason = 'paused' AND live.job_id = ANY (%(jobs)s::uuid[])
      AND job.status <> 'paused'
    ORDER BY live.id LIMIT %(most)s FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: release_known
-- blocked -> ready, of targets that a living worker of the pool knows by now.
WITH known AS MATERIALIZED (
    SELECT DISTINCT node.pool_id, target.key
    FROM beatkeeper_worker_node node CROSS JOIN LATERAL unnest(node.known_targets) AS target (key)
    WHERE node.state = 'active' AND node.last_beat_at > %(now)s - make_interval(secs => node.lease_seconds)
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live
    JOIN known ON known.pool_id = live.pool_id AND known.key = live.target_key
    WHERE live.state = 'blocked' AND live.reason = 'no worker knows the target'
      AND live.job_id = ANY (%(jobs)s::uuid[])
    ORDER BY live.id LIMIT %(most)s FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: release_permitted
-- blocked -> ready, where the pool is open to the tenant again and exports the target.
WITH locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live JOIN beatkeeper_pool pool ON pool.id = live.pool_id
    WHERE live.state = 'blocked' AND live.reason = %(reason)s AND live.job_id = ANY (%(jobs)s::uuid[])
      AND (pool.shared OR EXISTS (SELECT FROM beatkeeper_pool_tenant member
                                  WHERE member.pool_id = pool.id AND member.tenant_id = live.tenant_id))
      AND (live.target_key = ANY (pool.exported_tasks)
           OR EXISTS (SELECT FROM unnest(pool.exported_kinds) AS export (kind) WHERE live.target_key = 'kind:' || kind))
    ORDER BY live.id LIMIT %(most)s FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: declarations_wait
-- Whether decorators have asked for jobs that nobody has looked at.
SELECT EXISTS (SELECT FROM beatkeeper_declaration WHERE applied_at IS NULL);

-- name: forget_nodes
-- Incarnations that ended long ago.
DELETE FROM beatkeeper_worker_node WHERE state IN ('lost', 'left') AND last_beat_at < %(before)s;

-- name: pools
-- What dispatch is divided by.
SELECT id FROM beatkeeper_pool;

-- name: withdraw_unknown
-- queued -> ready, where the workers that knew the target are gone and others live: dispatch will block it.
WITH nodes AS MATERIALIZED (
    SELECT node.pool_id, node.known_targets FROM beatkeeper_worker_node node
    WHERE node.state = 'active' AND node.last_beat_at > %(now)s - make_interval(secs => node.lease_seconds)
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live
    WHERE live.state = 'queued' AND live.queued_at < %(now)s - make_interval(secs => %(lease)s)
      AND EXISTS (SELECT FROM nodes WHERE nodes.pool_id = live.pool_id)
      AND NOT EXISTS (SELECT FROM nodes WHERE nodes.pool_id = live.pool_id
                      AND live.target_key = ANY (nodes.known_targets))
    ORDER BY live.id LIMIT 1000 FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', queued_at = NULL FROM locked WHERE live.id = locked.id;
