-- Recovery: promote delayed runs, expire workers, find lost claims, release blocked runs. And the daily clean-up.

-- name: cancel_live_runs
-- What no worker has ends now. What runs, or waits for its callback, is marked: its attempt ends it, with a report or
-- by `end_attempts` in the same transaction. Asked again it changes nothing, unless now the run gets no time to end.
WITH locked AS MATERIALIZED (
    -- A claim or a report that has a row ends first; then the row is read again, as running or not at all. By id, as
    -- everybody locks runs.
    SELECT * FROM beatkeeper_live_run
    WHERE id = ANY (%(ids)s::uuid[])
    ORDER BY id FOR UPDATE
), ended AS (
    DELETE FROM beatkeeper_live_run live USING locked
    WHERE live.id = locked.id AND locked.state NOT IN ('running', 'waiting_callback')
), requested AS (
    UPDATE beatkeeper_live_run live
    SET cancel_requested_at = coalesce(live.cancel_requested_at, clock_timestamp()),
        cancel_reason = CASE WHEN live.cancel_requested_at IS NULL THEN %(reason)s ELSE live.cancel_reason END,
        terminate = %(hard)s
    FROM locked
    WHERE live.id = locked.id AND locked.state IN ('running', 'waiting_callback')
      AND (live.cancel_requested_at IS NULL OR (%(hard)s AND NOT live.terminate))
), finished AS (
    -- Requested when the statement came, before it waited for a lock: never after the end.
    UPDATE beatkeeper_run run
    SET {{run_ended(locked, 'cancelled', statement_timestamp())}}, reason = %(reason)s, error_class = 'cancelled'
    FROM locked
    WHERE run.id = locked.id AND locked.state NOT IN ('running', 'waiting_callback')
      AND run.id = ANY (%(ids)s::uuid[]) AND run.id >= %(first)s AND run.id <= %(last)s
)
SELECT id, state, claim_seq, worker, callback_digest FROM locked;

-- name: overdue_callbacks
-- Runs whose outcome did not come in time, and what the verdict on them needs to know.
SELECT live.id AS run_id, live.claim_seq, live.worker AS incarnation, live.attempt, live.losses, live.job_id, live.gated,
       live.callback_digest AS digest, version.retry, version.target -> 'callback' ->> 'timeout' AS patience
FROM beatkeeper_live_run live
JOIN beatkeeper_job_version version ON version.job_id = live.job_id AND version.version = live.version
WHERE live.wake_at <= %(now)s AND live.state = 'waiting_callback'
ORDER BY live.wake_at LIMIT %(most)s;

-- name: promote_delayed
-- delayed -> ready when the wait is over; a retry of a tenant with a budget goes to where the budget lets it go.
WITH woken AS MATERIALIZED (
    SELECT id, tenant_id, reason IN ('retry', 'worker_lost') AS retries FROM beatkeeper_live_run
    WHERE wake_at <= %(now)s AND state = 'delayed'
    ORDER BY wake_at LIMIT %(most)s
    -- A run that a person starts or cancels at this moment is theirs.
    FOR UPDATE SKIP LOCKED
), budgeted AS MATERIALIZED (
    SELECT id FROM beatkeeper_tenant WHERE retry_budget IS NOT NULL AND id = ANY (ARRAY(SELECT tenant_id FROM woken))
), moved AS (
    SELECT woken.id, CASE WHEN woken.retries THEN budgeted.id END AS tenant_id
    FROM woken LEFT JOIN budgeted ON budgeted.id = woken.tenant_id
)
UPDATE beatkeeper_live_run live
SET state = CASE WHEN moved.tenant_id IS NULL THEN 'ready' ELSE 'blocked' END,
    reason = CASE WHEN moved.tenant_id IS NULL THEN '' ELSE 'retry_budget' END,
    budget_tenant = moved.tenant_id, wake_at = NULL
FROM moved WHERE live.id = moved.id;

-- name: tenants_at_their_budget
-- Tenants whose retries wait for their budget, by one probe each, however many wait.
{{distinct_values(budget_tenant, beatkeeper_live_run, budget_tenant > 0)}};

-- name: make_budgets
-- A tenant's row comes with its first retry, full. Tenants that have one are left out: the insert would wait for
-- the session that takes from it.
INSERT INTO beatkeeper_retry_budget (tenant_id, tokens, tokens_at)
SELECT tenant.id, greatest(1, tenant.retry_budget * %(burst)s / 60.0), %(now)s
FROM beatkeeper_tenant tenant
WHERE tenant.id = ANY (%(tenants)s::int[]) AND tenant.retry_budget IS NOT NULL
  AND NOT EXISTS (SELECT FROM beatkeeper_retry_budget budget WHERE budget.tenant_id = tenant.id)
ORDER BY tenant.id
ON CONFLICT (tenant_id) DO NOTHING;

-- name: lock_budgets
-- What these tenants may have now. The rows are locked, so that two schedulers, one of which lost its lock without
-- knowing it yet, never spend a token twice. A row that the other has is left to it.
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
        -- Its state is not asked, which a constraint ties to the column: the planner, whose statistics show few blocked
        -- runs, would as soon read all of these and sort them.
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.budget_tenant = wanted.tenant_id
        ORDER BY live.rank LIMIT wanted.count
        -- A retry that a person starts or cancels at this moment is theirs, and the next one takes its token.
        FOR UPDATE SKIP LOCKED
    ) best
), moved AS (
    UPDATE beatkeeper_live_run live SET state = 'ready', reason = '', budget_tenant = NULL
    FROM chosen WHERE live.id = chosen.id
)
SELECT tenant_id, count(*)::int FROM chosen GROUP BY tenant_id;

-- name: spend_budgets
-- What is left after them.
UPDATE beatkeeper_retry_budget budget SET tokens = new.tokens, tokens_at = %(now)s
FROM unnest(%(tenants)s::int[], %(tokens)s::float8[]) AS new (tenant_id, tokens)
WHERE budget.tenant_id = new.tenant_id;

-- name: present_workers
-- Living incarnations with the age of their last beat: who may have lost the lease, and how many share its pool and
-- tenant.
SELECT incarnation, pool_id, name, last_beat_at, held_until, lease_seconds, tenant_id
FROM beatkeeper_worker_node WHERE state IN ('active', 'draining');

-- name: hold_workers
-- Many fell silent at once: they keep their claims for one more lease. A row that is locked is sending a heartbeat.
WITH silent AS MATERIALIZED (
    SELECT incarnation FROM beatkeeper_worker_node worker
    WHERE incarnation = ANY (%(workers)s::uuid[]) AND NOT {{within_lease(worker, %(now)s)}}
    ORDER BY incarnation FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_worker_node worker SET held_until = %(now)s + make_interval(secs => lease_seconds)
FROM silent WHERE worker.incarnation = silent.incarnation;

-- name: expire_workers
-- Incarnations that kept silent for their lease, read again under the lock: one that sent a heartbeat since is spared.
-- SKIP LOCKED: a row that is locked is sending one, or was cut off while it did; the next pass looks again.
WITH silent AS MATERIALIZED (
    SELECT incarnation FROM beatkeeper_worker_node worker
    WHERE incarnation = ANY (%(workers)s::uuid[]) AND state IN ('active', 'draining')
      AND NOT {{within_lease(worker, %(now)s)}}
    ORDER BY incarnation FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_worker_node worker SET state = 'lost', held_until = NULL
FROM silent WHERE worker.incarnation = silent.incarnation
RETURNING worker.incarnation, worker.name, worker.pool_id;

-- name: claims_of_lost_workers
-- Running rows of incarnations that are lost, gone or unknown: workers by one probe each, then their rows.
SELECT live.id, live.claim_seq
FROM ({{distinct_values(worker, beatkeeper_live_run, state = 'running')}}) holder (worker)
LEFT JOIN beatkeeper_worker_node worker ON worker.incarnation = holder.worker
CROSS JOIN LATERAL (
    SELECT id, claim_seq FROM beatkeeper_live_run
    WHERE state = 'running' AND beatkeeper_live_run.worker = holder.worker
    ORDER BY id LIMIT %(most)s
) live
WHERE worker.incarnation IS NULL OR worker.state IN ('lost', 'left')
LIMIT %(most)s;

-- name: unlisted_claims
-- Claimed before the incarnation's previous heartbeat and not in hand at its last: no child works on it. Between the
-- two the worker had its answer, so the claim cannot be under way to it any more.
SELECT live.id, live.claim_seq
FROM beatkeeper_worker_node worker
JOIN beatkeeper_live_run live ON live.state = 'running' AND live.worker = worker.incarnation
WHERE worker.state IN ('active', 'draining')
  AND live.claimed_at < worker.previous_beat_at AND live.claim_token <> ALL (worker.held)
LIMIT %(most)s;

-- name: overdue_claims
-- Past the time limit and the grace in which the guard would have ended them.
SELECT id, claim_seq FROM beatkeeper_live_run
WHERE wake_at <= %(now)s AND state = 'running'
ORDER BY wake_at LIMIT %(most)s;

-- name: claims_to_decide
-- What the verdict on a lost attempt needs to know. Not locked: `end_attempts` checks the claim again under the lock.
SELECT live.id, live.claim_seq, live.worker, live.attempt, live.losses, version.retry::text, live.job_id, live.gated
FROM beatkeeper_live_run live
JOIN beatkeeper_job_version version ON version.job_id = live.job_id AND version.version = live.version
WHERE live.id = ANY (%(ids)s::uuid[]) AND live.state = 'running';

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

-- name: release_held
-- blocked -> ready, of jobs that nothing holds for this reason any more: neither the job itself nor a suspension. The
-- runs of a job that a suspension holds as a whole are not even looked at.
WITH suspension AS MATERIALIZED (
    SELECT * FROM beatkeeper_suspension suspension WHERE {{holding(suspension, %(now)s)}}
), job AS MATERIALIZED (
    SELECT job.id, job.tenant_id, job.status, job.tags,
           ARRAY(SELECT suspension.pool_id FROM suspension WHERE {{concerns(suspension, job)}}) AS held_in
    FROM beatkeeper_job job WHERE job.id = ANY (%(jobs)s::uuid[])
), chosen AS MATERIALIZED (
    SELECT waiting.id FROM job CROSS JOIN LATERAL (
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.state = 'blocked' AND live.reason = %(reason)s AND live.job_id = job.id
          AND live.pool_id <> ALL (job.held_in) AND {{held_by(live, job)}} IS DISTINCT FROM %(reason)s
        ORDER BY live.id LIMIT %(most)s
    ) waiting
    -- Without a pool it holds in every one.
    WHERE array_position(job.held_in, NULL) IS NULL
    ORDER BY waiting.id LIMIT %(most)s
), locked AS MATERIALIZED (
    -- Read again under the lock: a cancel may have ended one since, or another scheduler let it go.
    SELECT live.id FROM beatkeeper_live_run live JOIN chosen ON chosen.id = live.id
    WHERE live.state = 'blocked' AND live.reason = %(reason)s
    ORDER BY live.id FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: release_known
-- blocked -> ready, of targets that a living worker of the pool, or of the tenant in it, knows by now.
WITH known AS MATERIALIZED (
    SELECT DISTINCT worker.pool_id, worker.tenant_id, target.key
    FROM beatkeeper_worker_node worker CROSS JOIN LATERAL unnest(worker.known_targets) AS target (key)
    WHERE {{living_worker(worker, %(now)s)}}
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live
    JOIN known ON known.pool_id = live.pool_id AND known.key = live.target_key
              AND {{serves(known, live.tenant_id)}}
    -- SKIP LOCKED: one that is being cancelled, or released by another scheduler, is theirs.
    WHERE live.state = 'blocked' AND live.reason = 'unknown_target'
      AND live.job_id = ANY (%(jobs)s::uuid[])
    ORDER BY live.id LIMIT %(most)s FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: release_permitted
-- blocked -> ready, where the pool is open to the tenant again and exports the target.
WITH locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live JOIN beatkeeper_pool pool ON pool.id = live.pool_id
    WHERE live.state = 'blocked' AND live.reason = %(reason)s AND live.job_id = ANY (%(jobs)s::uuid[])
      AND {{pool_is_open(pool, live.tenant_id)}} AND {{exports(pool, live.target_key)}}
    ORDER BY live.id LIMIT %(most)s FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: begin_probes
-- The next probe of breakers whose cool-down is over, or whose probe ended without counting or is paused: the run that
-- waits for the oldest planned time, and is not paused with its job. The caller holds the gates: a report of the last
-- probe comes before or after, never in between.
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
          AND NOT (due.paused AND {{scheduled(live)}})
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
-- Whether declarations of jobs wait.
SELECT EXISTS (SELECT FROM beatkeeper_declaration WHERE applied_at IS NULL);

-- name: run_requests_wait
-- Whether requests of code for runs wait.
SELECT EXISTS (SELECT FROM beatkeeper_run_request WHERE applied_at IS NULL);

-- name: purge_run_requests
-- Requests of long ago: their keys are free again.
DELETE FROM beatkeeper_run_request WHERE requested_at < %(before)s AND applied_at IS NOT NULL;

-- name: purge_allowances
-- What server processes took of limits in past minutes.
DELETE FROM beatkeeper_allowance WHERE minute < %(before)s;

-- name: purge_workers
-- Incarnations that ended long ago.
DELETE FROM beatkeeper_worker_node WHERE state IN ('lost', 'left') AND last_beat_at < %(before)s;

-- name: withdraw_unknown
-- queued -> ready, where the workers that knew the target are gone and others live: dispatch will block it. SKIP
-- LOCKED: a worker that came back may be claiming it.
WITH nodes AS MATERIALIZED (
    SELECT worker.pool_id, worker.tenant_id, worker.known_targets FROM beatkeeper_worker_node worker
    WHERE {{living_worker(worker, %(now)s)}}
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live
    WHERE live.state = 'queued' AND live.queued_at < %(now)s - make_interval(secs => %(lease)s)
      AND EXISTS (SELECT FROM nodes WHERE nodes.pool_id = live.pool_id)
      AND NOT EXISTS (SELECT FROM nodes WHERE nodes.pool_id = live.pool_id
                      AND {{serves(nodes, live.tenant_id)}}
                      AND live.target_key = ANY (nodes.known_targets))
    ORDER BY live.id LIMIT 1000 FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready' FROM locked WHERE live.id = locked.id;
