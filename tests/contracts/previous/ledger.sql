-- The worker's statements. Each moves a run by one guarded write; a row that does not come back was not ours.

-- name: register
-- A new incarnation; the pool must exist.
INSERT INTO beatkeeper_worker_node
    (incarnation, name, pool_id, host, pid, slots, known_targets, version, region, state, resources, held,
     lease_seconds, started_at, last_beat_at, previous_beat_at)
SELECT %(incarnation)s, %(name)s, pool.id, %(host)s, %(pid)s, %(slots)s, %(known_targets)s, %(version)s,
       %(region)s, 'active', '{}', '{}', %(lease)s, clock_timestamp(), clock_timestamp(), clock_timestamp()
FROM beatkeeper_pool pool
WHERE pool.slug = %(pool)s
ON CONFLICT (incarnation) DO UPDATE SET last_beat_at = clock_timestamp()
RETURNING pool_id;

-- name: lanes
-- Lanes of the pool made after the ones the worker has heard of.
SELECT id, pool_id, tenant_id, queue FROM beatkeeper_lane
WHERE pool_id = %(pool_id)s AND id > %(lanes_after)s
ORDER BY id;

-- name: heartbeat
-- Renews the lease of a living incarnation. previous_beat_at moves only when the beat before was answered:
-- otherwise this beat may have been composed before that one arrived, and its list would prove nothing.
UPDATE beatkeeper_worker_node
SET previous_beat_at = CASE WHEN beat_no = %(answered)s THEN last_beat_at ELSE previous_beat_at END,
    last_beat_at = clock_timestamp(),
    beat_no = %(number)s,
    slots = %(slots)s,
    busy = %(busy)s,
    foreign_busy = %(foreign_busy)s,
    held = %(held)s,
    state = CASE WHEN %(draining)s THEN 'draining' WHEN state = 'suspect' THEN 'active' ELSE state END,
    held_until = NULL
WHERE incarnation = %(incarnation)s AND state IN ('active', 'draining', 'suspect') AND beat_no < %(number)s
RETURNING pool_id;

-- name: claims_in_hand
-- What became of the claims a worker says it holds.
SELECT token.value AS token, live.id IS NULL AS gone, live.cancel_requested_at IS NOT NULL AS cancelled
FROM unnest(%(held)s::uuid[]) AS token (value)
LEFT JOIN beatkeeper_live_run live
    ON live.claim_token = token.value AND live.worker = %(incarnation)s AND live.state = 'running'
WHERE live.id IS NULL OR live.cancel_requested_at IS NOT NULL;

-- name: lanes_with_work
-- Lanes of the worker's pool that hold runs queued for a while: tenants by loose index scan, one probe each.
WITH RECURSIVE tenant (id) AS (
    SELECT min(tenant_id) FROM beatkeeper_live_run WHERE state = 'queued' AND pool_id = %(pool_id)s
    UNION ALL
    SELECT (SELECT min(tenant_id) FROM beatkeeper_live_run
            WHERE state = 'queued' AND pool_id = %(pool_id)s AND tenant_id > tenant.id)
    FROM tenant WHERE tenant.id IS NOT NULL
)
SELECT lane.id, lane.pool_id, lane.tenant_id, lane.queue
FROM tenant
JOIN beatkeeper_lane lane ON lane.pool_id = %(pool_id)s AND lane.tenant_id = tenant.id
CROSS JOIN LATERAL (
    SELECT live.rank FROM beatkeeper_live_run live
    WHERE live.state = 'queued' AND live.pool_id = %(pool_id)s AND live.tenant_id = tenant.id
      AND live.queued_at <= clock_timestamp() - make_interval(secs => %(feed_after)s)
      AND live.target_key = ANY (%(known)s)
    ORDER BY live.rank LIMIT 1
) first
ORDER BY first.rank
LIMIT %(most)s;

-- name: known_targets
-- The targets an incarnation named when it registered.
SELECT known_targets FROM beatkeeper_worker_node WHERE incarnation = %(incarnation)s;

-- name: claim
-- The lane's lowest-ranked queued run of a target we know becomes ours, if our incarnation lives. A run that is
-- held by a pause, or no longer permitted in the pool, goes back to ready by the same statement.
WITH node AS MATERIALIZED (
    SELECT pool_id FROM beatkeeper_worker_node
    WHERE incarnation = %(worker)s AND state = 'active' AND pool_id = %(pool_id)s
      AND last_beat_at > clock_timestamp() - make_interval(secs => lease_seconds)
), picked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live
    WHERE live.state = 'queued' AND live.pool_id = %(pool_id)s AND live.tenant_id = %(tenant_id)s
      AND live.target_key = ANY (%(known)s) AND EXISTS (SELECT FROM node)
    ORDER BY live.rank LIMIT 1
    FOR UPDATE SKIP LOCKED
), looked_up AS (
    SELECT picked.id, job.name AS job_name, version.target, version.timeout_ms, version.retry,
           tenant.slug AS tenant, tenant.allowed_hosts,
           pool.paused_at IS NOT NULL OR (job.status = 'paused' AND live.trigger IN ('schedule', 'catch_up'))
           OR NOT (pool.shared OR EXISTS (SELECT FROM beatkeeper_pool_tenant member
                                          WHERE member.pool_id = pool.id AND member.tenant_id = live.tenant_id))
           OR NOT (live.target_key = ANY (pool.exported_tasks)
                   OR EXISTS (SELECT FROM unnest(pool.exported_kinds) AS export (kind)
                              WHERE live.target_key = 'kind:' || kind)) AS held
    FROM picked
    JOIN beatkeeper_live_run live ON live.id = picked.id
    JOIN beatkeeper_job job ON job.id = live.job_id
    JOIN beatkeeper_job_version version ON version.job_id = live.job_id AND version.version = live.version
    JOIN beatkeeper_tenant tenant ON tenant.id = live.tenant_id
    JOIN beatkeeper_pool pool ON pool.id = live.pool_id
), moved AS (
    UPDATE beatkeeper_live_run live
    SET state = CASE WHEN held THEN 'ready' ELSE 'running' END,
        queued_at = CASE WHEN held THEN NULL ELSE live.queued_at END,
        attempt = live.attempt + CASE WHEN held THEN 0 ELSE 1 END,
        claim_seq = live.claim_seq + CASE WHEN held THEN 0 ELSE 1 END,
        claim_token = CASE WHEN held THEN NULL ELSE %(token)s::uuid END,
        worker = CASE WHEN held THEN NULL ELSE %(worker)s::uuid END,
        claimed_at = CASE WHEN held THEN NULL ELSE clock_timestamp() END,
        started_at = CASE WHEN held THEN live.started_at ELSE coalesce(live.started_at, clock_timestamp()) END,
        wake_at = CASE WHEN held THEN NULL
                       ELSE clock_timestamp() + make_interval(secs => timeout_ms / 1000.0 + %(grace)s) END
    FROM looked_up
    WHERE live.id = looked_up.id
    RETURNING live.*
)
SELECT moved.id AS run_id, moved.state, moved.claim_seq, moved.claim_token AS token, moved.worker AS incarnation,
       moved.attempt, moved.job_id, moved.version, moved.tenant_id, moved.trigger, moved.planned_at,
       moved.claimed_at, moved.input, moved.gated, moved.traceparent,
       looked_up.job_name, looked_up.target, looked_up.timeout_ms, looked_up.retry, looked_up.tenant,
       looked_up.allowed_hosts
FROM moved JOIN looked_up USING (id);

-- name: claim_again
-- The claim whose answer was lost, by the token it was asked with.
SELECT live.id AS run_id, live.state, live.claim_seq, live.claim_token AS token, live.worker AS incarnation,
       live.attempt, live.job_id, live.version, live.tenant_id, live.trigger, live.planned_at, live.claimed_at,
       live.input, live.gated, live.traceparent,
       job.name AS job_name, version.target, version.timeout_ms, version.retry, tenant.slug AS tenant,
       tenant.allowed_hosts
FROM beatkeeper_live_run live
JOIN beatkeeper_job job ON job.id = live.job_id
JOIN beatkeeper_job_version version ON version.job_id = live.job_id AND version.version = live.version
JOIN beatkeeper_tenant tenant ON tenant.id = live.tenant_id
WHERE live.claim_token = %(token)s AND live.worker = %(worker)s AND live.state = 'running';

-- name: lock_gate
-- Before a run of a job with a limit ends: whoever counts next sees it gone.
SELECT max_running FROM beatkeeper_job_gate WHERE job_id = %(job_id)s FOR UPDATE;

-- name: report
-- Ends or delays the run, or gives it back, if the claim is still ours; a failure of a run that somebody wants
-- cancelled is a cancellation. The attempt row is how a repeated report is recognised.
WITH mine AS MATERIALIZED (
    SELECT live.*,
           CASE WHEN %(next_state)s <> 'succeeded' AND cancel_requested_at IS NOT NULL THEN 'cancelled'
                ELSE %(next_state)s END AS next_state
    FROM beatkeeper_live_run live
    WHERE id = %(run_id)s AND claim_seq = %(claim_seq)s AND worker = %(worker)s
      AND state IN ('running', 'waiting_callback')
    FOR UPDATE
), ended AS (
    DELETE FROM beatkeeper_live_run live USING mine
    WHERE live.id = mine.id AND mine.next_state NOT IN ('delayed', 'ready')
), went_on AS (
    UPDATE beatkeeper_live_run live
    SET state = mine.next_state,
        attempt = CASE WHEN mine.next_state = 'ready' THEN live.attempt - 1 ELSE live.attempt END,
        reason = CASE WHEN mine.next_state = 'ready' THEN 'given back' ELSE 'retry' END,
        available_at = clock_timestamp() + make_interval(secs => %(delay)s),
        rank = live.rank + (1000 * extract(epoch FROM
            clock_timestamp() + make_interval(secs => %(delay)s) - live.available_at))::bigint,
        wake_at = CASE WHEN mine.next_state = 'ready' THEN NULL
                       ELSE clock_timestamp() + make_interval(secs => %(delay)s) END,
        worker = NULL, claim_token = NULL, claimed_at = NULL, queued_at = NULL
    FROM mine
    WHERE live.id = mine.id AND mine.next_state IN ('delayed', 'ready')
), noted AS (
    INSERT INTO beatkeeper_attempt
        (id, run_id, tenant_id, number, claim_seq, worker, worker_name, started_at, finished_at, outcome, next_state,
         error_class, error_type, error_line, fingerprint, exit_code, log_object, log_offset, log_length)
    SELECT %(attempt_id)s, mine.id, mine.tenant_id, mine.attempt, mine.claim_seq, mine.worker,
           coalesce((SELECT name FROM beatkeeper_worker_node WHERE incarnation = mine.worker), ''),
           mine.claimed_at, clock_timestamp(),
           CASE WHEN mine.next_state = 'cancelled' THEN 'cancelled' ELSE %(outcome)s END, mine.next_state,
           %(error_class)s, %(error_type)s, %(error_line)s, %(fingerprint)s, %(exit_code)s,
           %(log_object)s, %(log_offset)s, %(log_length)s
    FROM mine
), finished AS (
    UPDATE beatkeeper_run run
    SET state = mine.next_state, ended_from = mine.state, attempts = mine.attempt, started_at = mine.started_at,
        finished_at = clock_timestamp(), result = %(result)s,
        reason = CASE WHEN mine.next_state = 'cancelled' THEN mine.cancel_reason ELSE '' END,
        error_class = CASE WHEN mine.next_state = 'cancelled' THEN 'cancelled' ELSE %(error_class)s END,
        error_type = %(error_type)s, error_line = %(error_line)s, fingerprint = %(fingerprint)s,
        exit_code = %(exit_code)s, log_object = %(log_object)s, log_offset = %(log_offset)s,
        log_length = %(log_length)s
    FROM mine
    WHERE run.id = %(run_id)s AND mine.next_state NOT IN ('delayed', 'ready')
)
SELECT next_state FROM mine;

-- name: reported_before
-- What an earlier delivery of the same report decided. An attempt that rescue ended has no log: then ours was not
-- heard, and its log must be kept where it is.
SELECT next_state FROM beatkeeper_attempt
WHERE id = %(attempt_id)s AND worker = %(worker)s AND (log_object <> '' OR %(log_object)s = '');

-- name: release_blocked
-- As many blocked runs of a job as its limit has room for. A ready run counts in its own pool only: nobody knows when
-- that of another will go, and dispatch counts again. The caller holds the gate.
WITH room AS MATERIALIZED (
    SELECT waiting.pool_id, %(max_running)s - (
        SELECT count(*) FROM beatkeeper_live_run
        WHERE job_id = %(job_id)s AND state IN ('ready', 'queued', 'running', 'waiting_callback')
          AND (state <> 'ready' OR pool_id = waiting.pool_id)) AS places
    FROM (SELECT DISTINCT pool_id FROM beatkeeper_live_run
          WHERE job_id = %(job_id)s AND state = 'blocked' AND reason = 'concurrency') waiting
), chosen AS MATERIALIZED (
    SELECT best.id FROM room CROSS JOIN LATERAL (
        SELECT id FROM beatkeeper_live_run
        WHERE job_id = %(job_id)s AND pool_id = room.pool_id AND state = 'blocked' AND reason = 'concurrency'
        ORDER BY rank LIMIT greatest(0, room.places)
        FOR UPDATE SKIP LOCKED
    ) best
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM chosen WHERE live.id = chosen.id;

-- name: leave
-- A clean stop. Claims that are left behind all the same are found by rescue.
UPDATE beatkeeper_worker_node SET state = 'left', held = '{}', last_beat_at = clock_timestamp()
WHERE incarnation = %(incarnation)s AND state IN ('active', 'draining', 'suspect');

-- name: declare
-- Jobs that decorators ask for; the platform applies them through its own services.
INSERT INTO beatkeeper_declaration (tenant_id, pool_id, name, spec, error)
SELECT tenant.id, pool.id, %(name)s, %(spec)s, ''
FROM beatkeeper_tenant tenant, beatkeeper_pool pool
WHERE tenant.slug = %(tenant)s AND pool.slug = %(pool)s
ON CONFLICT (tenant_id, name) DO UPDATE
    SET spec = excluded.spec, pool_id = excluded.pool_id, declared_at = now(), applied_at = NULL, error = ''
    WHERE beatkeeper_declaration.spec IS DISTINCT FROM excluded.spec
       OR beatkeeper_declaration.pool_id <> excluded.pool_id OR beatkeeper_declaration.error <> ''
RETURNING id;

-- name: declaration_errors
-- Declarations the platform looked at and refused.
SELECT declaration.name, declaration.error
FROM beatkeeper_declaration declaration
JOIN beatkeeper_tenant tenant ON tenant.id = declaration.tenant_id
WHERE tenant.slug = %(tenant)s AND declaration.name = ANY (%(names)s) AND declaration.error <> '';

-- name: tenant_and_pool
-- Which of the two names is unknown.
SELECT EXISTS (SELECT FROM beatkeeper_tenant WHERE slug = %(tenant)s) AS tenant,
       EXISTS (SELECT FROM beatkeeper_pool WHERE slug = %(pool)s) AS pool;
