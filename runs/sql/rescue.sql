-- What nobody else will do: wake, take back, release. And what every loop does now and then.

-- name: cancel_live_runs
-- What nobody has claimed ends now; what runs is asked to stop and ends with its report. Asked again it changes
-- nothing, unless it now has no time left to end by itself.
WITH locked AS MATERIALIZED (
    SELECT * FROM beatkeeper_live_run
    WHERE id = ANY (%(ids)s::uuid[])
    ORDER BY id FOR UPDATE
), ended AS (
    DELETE FROM beatkeeper_live_run live USING locked
    WHERE live.id = locked.id AND locked.state <> 'running'
), asked AS (
    UPDATE beatkeeper_live_run live
    SET cancel_requested_at = coalesce(live.cancel_requested_at, clock_timestamp()),
        cancel_reason = CASE WHEN live.cancel_requested_at IS NULL THEN %(reason)s ELSE live.cancel_reason END,
        terminate = %(hard)s
    FROM locked
    WHERE live.id = locked.id AND locked.state = 'running'
      AND (live.cancel_requested_at IS NULL OR (%(hard)s AND NOT live.terminate))
), finished AS (
    UPDATE beatkeeper_run run
    SET state = 'cancelled', ended_from = locked.state, reason = %(reason)s, attempts = locked.attempt,
        started_at = locked.started_at, finished_at = clock_timestamp(), error_class = 'cancelled'
    FROM locked
    WHERE run.id = locked.id AND locked.state <> 'running'
      AND run.id = ANY (%(ids)s::uuid[]) AND run.id >= %(first)s AND run.id <= %(last)s
)
SELECT id, state <> 'running', CASE WHEN state = 'waiting_callback' THEN to_jsonb(locked.*)::text END FROM locked;

-- name: note_cancelled_calls
-- The attempts of runs that waited for their callback when they were cancelled, by the rows that are gone.
INSERT INTO beatkeeper_attempt
    (id, run_id, tenant_id, number, claim_seq, worker, worker_name, started_at, finished_at, outcome, next_state,
     error_class, error_line, log_object, log_offset, log_length, callback_digest)
SELECT told.attempt_id, call.id, call.tenant_id, call.attempt, call.claim_seq, call.worker,
       coalesce((SELECT name FROM beatkeeper_worker_node WHERE incarnation = call.worker), ''),
       call.claimed_at, clock_timestamp(), 'cancelled', 'cancelled', 'cancelled', %(reason)s,
       coalesce(call.log_object, ''), call.log_offset, call.log_length, call.callback_digest
FROM unnest(%(attempt_ids)s::uuid[], %(calls)s::jsonb[]) AS told (attempt_id, call)
CROSS JOIN LATERAL jsonb_populate_record(NULL::beatkeeper_live_run, told.call) AS call
ON CONFLICT (id) DO NOTHING;

-- name: overdue_callbacks
-- Runs whose outcome did not come in time, and what the verdict on them needs to know.
SELECT live.id, live.claim_seq, live.worker, live.attempt, live.losses, live.job_id, live.gated, live.callback_digest,
       version.retry::text, version.target -> 'callback' ->> 'timeout'
FROM beatkeeper_live_run live
JOIN beatkeeper_job_version version ON version.job_id = live.job_id AND version.version = live.version
WHERE live.wake_at <= %(now)s AND live.state = 'waiting_callback'
ORDER BY live.wake_at LIMIT %(most)s;

-- name: promote_delayed
-- delayed -> ready when the wait is over; a retry of a tenant with a budget goes to where the budget lets it go.
WITH woken AS MATERIALIZED (
    SELECT id, tenant_id, reason IN ('retry', 'worker lost') AS retries FROM beatkeeper_live_run
    WHERE wake_at <= %(now)s AND state = 'delayed'
    ORDER BY wake_at LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
), budgeted AS MATERIALIZED (
    SELECT id FROM beatkeeper_tenant WHERE retry_budget IS NOT NULL AND id = ANY (ARRAY(SELECT tenant_id FROM woken))
), moved AS (
    SELECT woken.id, CASE WHEN woken.retries THEN budgeted.id END AS tenant_id
    FROM woken LEFT JOIN budgeted ON budgeted.id = woken.tenant_id
)
UPDATE beatkeeper_live_run live
SET state = CASE WHEN moved.tenant_id IS NULL THEN 'ready' ELSE 'blocked' END,
    reason = CASE WHEN moved.tenant_id IS NULL THEN '' ELSE 'retry budget' END,
    paced = moved.tenant_id, wake_at = NULL
FROM moved WHERE live.id = moved.id;

-- name: tenants_at_their_budget
-- Tenants whose retries wait for their budget, by loose index scan: one probe each, however many wait.
WITH RECURSIVE tenant (id) AS (
    (SELECT paced FROM beatkeeper_live_run WHERE paced > 0 ORDER BY paced LIMIT 1)
    UNION ALL
    SELECT (SELECT live.paced FROM beatkeeper_live_run live
            WHERE live.paced > tenant.id ORDER BY live.paced LIMIT 1)
    FROM tenant WHERE tenant.id IS NOT NULL
)
SELECT id FROM tenant WHERE id IS NOT NULL;

-- name: make_budgets
-- A tenant's row comes with its first retry, full. Of those that have one none is tried: the insert would wait for
-- whoever takes from it.
INSERT INTO beatkeeper_retry_budget (tenant_id, tokens, tokens_at)
SELECT tenant.id, greatest(1, tenant.retry_budget * %(burst)s / 60.0), %(now)s
FROM beatkeeper_tenant tenant
WHERE tenant.id = ANY (%(tenants)s::int[]) AND tenant.retry_budget IS NOT NULL
  AND NOT EXISTS (SELECT FROM beatkeeper_retry_budget budget WHERE budget.tenant_id = tenant.id)
ORDER BY tenant.id
ON CONFLICT (tenant_id) DO NOTHING;

-- name: lock_budgets
-- Of these tenants what they may have now; the rows are locked. One that another decider has is left to it, and one
-- without a budget has nothing to lock.
SELECT tenant.id, tenant.retry_budget, budget.tokens, budget.tokens_at
FROM beatkeeper_retry_budget budget JOIN beatkeeper_tenant tenant ON tenant.id = budget.tenant_id
WHERE budget.tenant_id = ANY (%(tenants)s::int[]) AND tenant.retry_budget IS NOT NULL
ORDER BY budget.tenant_id FOR UPDATE OF budget SKIP LOCKED;

-- name: unbudgeted
-- Of these tenants those that have no budget any more.
SELECT id FROM beatkeeper_tenant WHERE id = ANY (%(tenants)s::int[]) AND retry_budget IS NULL;

-- name: release_retries
-- blocked -> ready, of each tenant so many, by rank.
WITH chosen AS MATERIALIZED (
    SELECT best.id, wanted.tenant_id
    FROM unnest(%(tenants)s::int[], %(counts)s::int[]) AS wanted (tenant_id, count)
    CROSS JOIN LATERAL (
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.paced = wanted.tenant_id AND live.state = 'blocked'
        ORDER BY live.rank LIMIT wanted.count
        FOR UPDATE SKIP LOCKED
    ) best
), moved AS (
    UPDATE beatkeeper_live_run live SET state = 'ready', reason = '', paced = NULL FROM chosen WHERE live.id = chosen.id
)
SELECT tenant_id, count(*)::int FROM chosen GROUP BY tenant_id;

-- name: spend_budgets
-- What is left after them.
UPDATE beatkeeper_retry_budget budget SET tokens = new.tokens, tokens_at = %(now)s
FROM unnest(%(tenants)s::int[], %(tokens)s::float8[]) AS new (tenant_id, tokens)
WHERE budget.tenant_id = new.tenant_id;

-- name: silent_nodes
-- Living incarnations with the age of their last beat: who may have lost the lease, and how many share its pool and
-- tenant.
SELECT node.incarnation, node.pool_id, node.name, node.last_beat_at, node.held_until, node.lease_seconds,
       node.tenant_id
FROM beatkeeper_worker_node node
WHERE node.state IN ('active', 'draining');

-- name: hold_nodes
-- Many fell silent at once: they keep their claims for one more lease.
WITH silent AS MATERIALIZED (
    SELECT incarnation FROM beatkeeper_worker_node
    WHERE incarnation = ANY (%(nodes)s::uuid[]) AND last_beat_at <= %(now)s - make_interval(secs => lease_seconds)
    ORDER BY incarnation FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_worker_node node SET held_until = %(now)s + make_interval(secs => lease_seconds)
FROM silent WHERE node.incarnation = silent.incarnation;

-- name: lose_nodes
-- An incarnation that kept silent for its lease; whoever has beaten since is spared. One whose row is locked is beating,
-- or was cut off while it did: the next pass looks again, and nobody else waits for it.
WITH silent AS MATERIALIZED (
    SELECT incarnation FROM beatkeeper_worker_node
    WHERE incarnation = ANY (%(nodes)s::uuid[]) AND state IN ('active', 'draining')
      AND last_beat_at <= %(now)s - make_interval(secs => lease_seconds)
    ORDER BY incarnation FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_worker_node node SET state = 'lost', held_until = NULL
FROM silent WHERE node.incarnation = silent.incarnation
RETURNING node.incarnation, node.name, node.pool_id;

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
WHERE node.state IN ('active', 'draining')
  AND live.claimed_at < node.previous_beat_at AND live.claim_token <> ALL (node.held)
LIMIT %(most)s;

-- name: overdue_claims
-- Past the time limit and the grace in which the guard would have ended them.
SELECT id, claim_seq FROM beatkeeper_live_run
WHERE wake_at <= %(now)s AND state = 'running'
ORDER BY wake_at LIMIT %(most)s;

-- name: claims_to_decide
-- What the verdict on a lost attempt needs to know.
SELECT live.id, live.claim_seq, live.attempt, live.losses, version.retry::text, live.job_id, live.gated
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
-- run counts in its own pool only: nobody knows when that of another will go. As `release_blocked` of the worker's
-- ledger, for many jobs at once; a test holds them together.
WITH waiting AS MATERIALIZED (
    -- Pools by loose index scan, however many runs of the job wait there.
    SELECT job.id AS job_id, held.pool_id
    FROM unnest(%(jobs)s::uuid[]) AS job (id)
    CROSS JOIN LATERAL (
        WITH RECURSIVE pool (id) AS (
            (SELECT live.pool_id FROM beatkeeper_live_run live
             WHERE live.state = 'blocked' AND live.reason = 'concurrency' AND live.job_id = job.id
             ORDER BY live.pool_id LIMIT 1)
            UNION ALL
            SELECT (SELECT live.pool_id FROM beatkeeper_live_run live
                    WHERE live.state = 'blocked' AND live.reason = 'concurrency' AND live.job_id = job.id
                      AND live.pool_id > pool.id
                    ORDER BY live.pool_id LIMIT 1)
            FROM pool WHERE pool.id IS NOT NULL
        )
        SELECT pool.id AS pool_id FROM pool WHERE pool.id IS NOT NULL
    ) held
), room AS MATERIALIZED (
    SELECT waiting.job_id, waiting.pool_id, gate.max_running IS NULL AS free,
           gate.max_running - (
               -- A probe for each state, or the planner may walk through all that are blocked.
               SELECT count(*)
               FROM unnest(ARRAY['ready', 'queued', 'running', 'waiting_callback']) AS state (value)
               CROSS JOIN LATERAL (
                   SELECT FROM beatkeeper_live_run live
                   WHERE live.job_id = waiting.job_id AND live.state = state.value
                     AND (live.state <> 'ready' OR live.pool_id = waiting.pool_id)
                   LIMIT gate.max_running
               ) taken
           ) AS runs
    FROM waiting
    LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = waiting.job_id
), chosen AS MATERIALIZED (
    SELECT best.id FROM room CROSS JOIN LATERAL (
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.job_id = room.job_id AND live.pool_id = room.pool_id
          AND live.state = 'blocked' AND live.reason = 'concurrency'
        ORDER BY live.rank LIMIT CASE WHEN room.free THEN 1000 ELSE greatest(0, room.runs) END
    ) best
), locked AS MATERIALIZED (
    -- As an array, of which the planner expects few; joined to many, all live runs would be read.
    SELECT live.id FROM beatkeeper_live_run live
    WHERE live.id = ANY (ARRAY(SELECT id FROM chosen)) AND live.state = 'blocked'
    ORDER BY live.id FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' WHERE live.id = ANY (ARRAY(SELECT id FROM locked));

-- name: release_unstopped
-- blocked -> ready, of jobs that are no longer paused and under no stop. The runs of a job that a stop holds as a
-- whole are not even looked at.
WITH stop AS MATERIALIZED (
    SELECT * FROM beatkeeper_stop
    WHERE settled_at IS NULL AND begins_at <= %(now)s AND coalesce(least(lifted_at, ends_at), 'infinity') > %(now)s
      AND effect IN ('hold', 'catch_up')
), job AS MATERIALIZED (
    SELECT job.id, job.tenant_id, job.status = 'paused' AS paused,
           ARRAY(SELECT stop.pool_id FROM stop
                 WHERE (stop.tenant_id IS NULL OR stop.tenant_id = job.tenant_id)
                   AND (stop.tag_name = '' OR job.tags ->> stop.tag_name = stop.tag_value
                        OR (stop.tag_value = '' AND job.tags ? stop.tag_name))) AS held_in
    FROM beatkeeper_job job WHERE job.id = ANY (%(jobs)s::uuid[])
), chosen AS MATERIALIZED (
    SELECT waiting.id FROM job CROSS JOIN LATERAL (
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.state = 'blocked' AND live.reason = %(reason)s AND live.job_id = job.id
          AND live.pool_id <> ALL (job.held_in)
          AND NOT (job.paused AND live.trigger IN ('schedule', 'catch_up'))
        ORDER BY live.id LIMIT %(most)s
    ) waiting
    -- Without a pool it holds in every one.
    WHERE array_position(job.held_in, NULL) IS NULL
    ORDER BY waiting.id LIMIT %(most)s
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live JOIN chosen ON chosen.id = live.id
    WHERE live.state = 'blocked' AND live.reason = %(reason)s
    ORDER BY live.id FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: release_known
-- blocked -> ready, of targets that a living worker of the pool, or of the tenant in it, knows by now.
WITH known AS MATERIALIZED (
    SELECT DISTINCT node.pool_id, node.tenant_id, target.key
    FROM beatkeeper_worker_node node CROSS JOIN LATERAL unnest(node.known_targets) AS target (key)
    WHERE node.state = 'active' AND node.last_beat_at > %(now)s - make_interval(secs => node.lease_seconds)
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live
    JOIN known ON known.pool_id = live.pool_id AND known.key = live.target_key
              AND (known.tenant_id IS NULL OR known.tenant_id = live.tenant_id)
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

-- name: begin_probes
-- Of breakers whose cool-down is over, or whose probe is gone without a word or paused, the next probe: the run that
-- waits for the oldest planned time, and is not paused with its job. The gates are ours.
WITH due AS MATERIALIZED (
    SELECT breaker.job_id, job.status = 'paused' AS paused
    FROM beatkeeper_breaker breaker JOIN beatkeeper_job job ON job.id = breaker.job_id
    WHERE breaker.job_id = ANY (%(jobs)s::uuid[])
      AND (breaker.state = 'open' AND breaker.probe_at <= %(now)s
           OR breaker.state = 'half_open'
              AND NOT EXISTS (SELECT FROM beatkeeper_live_run live WHERE live.id = breaker.probe
                                AND NOT (live.state = 'blocked' AND live.reason = 'paused')))
), chosen AS MATERIALIZED (
    SELECT due.job_id, oldest.id FROM due CROSS JOIN LATERAL (
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.state = 'blocked' AND live.reason = 'breaker' AND live.job_id = due.job_id
          AND NOT (due.paused AND live.trigger IN ('schedule', 'catch_up'))
        ORDER BY live.id LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) oldest
), half_opened AS (
    UPDATE beatkeeper_breaker breaker SET state = 'half_open', probe = chosen.id, changed_at = clock_timestamp()
    FROM chosen WHERE breaker.job_id = chosen.job_id
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM chosen WHERE live.id = chosen.id
RETURNING live.job_id, live.id;

-- name: declarations_wait
-- Whether decorators have asked for jobs that nobody has looked at.
SELECT EXISTS (SELECT FROM beatkeeper_declaration WHERE applied_at IS NULL);

-- name: run_requests_wait
-- Whether code has asked for runs that nobody has looked at.
SELECT EXISTS (SELECT FROM beatkeeper_run_request WHERE applied_at IS NULL);

-- name: forget_run_requests
-- Of long ago: their keys are free again.
DELETE FROM beatkeeper_run_request WHERE requested_at < %(before)s AND applied_at IS NOT NULL;

-- name: forget_nodes
-- Incarnations that ended long ago.
DELETE FROM beatkeeper_worker_node WHERE state IN ('lost', 'left') AND last_beat_at < %(before)s;

-- name: withdraw_unknown
-- queued -> ready, where the workers that knew the target are gone and others live: dispatch will block it.
WITH nodes AS MATERIALIZED (
    SELECT node.pool_id, node.tenant_id, node.known_targets FROM beatkeeper_worker_node node
    WHERE node.state = 'active' AND node.last_beat_at > %(now)s - make_interval(secs => node.lease_seconds)
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live
    WHERE live.state = 'queued' AND live.queued_at < %(now)s - make_interval(secs => %(lease)s)
      AND EXISTS (SELECT FROM nodes WHERE nodes.pool_id = live.pool_id)
      AND NOT EXISTS (SELECT FROM nodes WHERE nodes.pool_id = live.pool_id
                      AND (nodes.tenant_id IS NULL OR nodes.tenant_id = live.tenant_id)
                      AND live.target_key = ANY (nodes.known_targets))
    ORDER BY live.id LIMIT 1000 FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready' FROM locked WHERE live.id = locked.id;
