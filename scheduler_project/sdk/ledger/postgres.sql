-- The worker's statements. Each moves a run by one guarded write; a row that does not come back was not ours.

-- name: register
-- A new incarnation; the pool must exist. One that came for a tenant is never another's.
INSERT INTO beatkeeper_worker_node
    (incarnation, name, pool_id, tenant_id, host, pid, slots, known_targets, version, region, state, held,
     lease_seconds, started_at, last_beat_at, previous_beat_at)
SELECT %(incarnation)s, %(name)s, pool.id, %(of_tenant)s::int, %(host)s, %(pid)s, %(slots)s,
       %(known_targets)s, %(version)s, %(region)s, 'active', '{}', %(lease)s,
       clock_timestamp(), clock_timestamp(), clock_timestamp()
FROM beatkeeper_pool pool
WHERE pool.slug = %(pool)s
ON CONFLICT (incarnation) DO UPDATE SET last_beat_at = clock_timestamp()
    WHERE beatkeeper_worker_node.pool_id = excluded.pool_id
      AND beatkeeper_worker_node.tenant_id IS NOT DISTINCT FROM excluded.tenant_id
RETURNING pool_id;

-- name: queues
-- Where the worker hears of work: of all tenants its pool's broker queue; of a tenant's worker that tenant's, if it was
-- made after the ones the worker knows.
SELECT 0 AS id, id AS pool_id, 0 AS tenant_id, broker_queue FROM beatkeeper_pool
WHERE id = %(pool_id)s AND %(of_tenant)s::int IS NULL
UNION ALL
SELECT id, pool_id, tenant_id, broker_queue FROM beatkeeper_queue
WHERE pool_id = %(pool_id)s AND tenant_id = %(of_tenant)s AND id > %(queues_after)s;

-- name: heartbeat
-- Renews the lease of a living incarnation. previous_beat_at moves only when the beat before was answered:
-- otherwise this beat may have been composed before that one arrived, and its list would prove nothing. The same
-- statement finds out whether the dearer ones would find anything, and how long an idle worker may be silent: those
-- that look for the same runs share the looks. Lists of targets are compared by their size, because reading hundreds of
-- them would cost more than the beat.
WITH beat AS (
    UPDATE beatkeeper_worker_node
    SET previous_beat_at = CASE WHEN beat_no = %(answered)s THEN last_beat_at ELSE previous_beat_at END,
        last_beat_at = clock_timestamp(),
        beat_no = %(number)s,
        slots = %(slots)s,
        busy = %(busy)s,
        foreign_busy = %(foreign_busy)s,
        held = %(held)s,
        state = CASE WHEN %(draining)s THEN 'draining' ELSE state END,
        skew_ms = coalesce(%(skew_ms)s::float8, skew_ms),
        held_until = NULL,
        lease_seconds = coalesce(%(lease)s::float8, lease_seconds)
    WHERE incarnation = %(incarnation)s AND state IN ('active', 'draining') AND beat_no < %(number)s
    RETURNING pool_id, tenant_id, last_beat_at, pg_column_size(known_targets) AS targets_size,
              -- A lost heartbeat costs nothing, so none waits for the disk.
              set_config('synchronous_commit', 'off', true)
)
SELECT pool_id, last_beat_at,
       -- Of a tenant's worker its queue, if it was made since; of all others that of the pool, which may be another now.
       EXISTS (SELECT FROM beatkeeper_queue queue
               WHERE queue.id > %(queues_after)s AND queue.pool_id = beat.pool_id
                 AND queue.tenant_id = beat.tenant_id) AS new_queues,
       (SELECT broker_queue FROM beatkeeper_pool pool WHERE pool.id = beat.pool_id AND beat.tenant_id IS NULL)
           AS pool_queue,
       %(has_room)s AND (SELECT live.queued_at FROM beatkeeper_live_run live
                         WHERE {{still_queued(live, beat.pool_id, (SELECT pool.queued_since FROM beatkeeper_pool pool
                                                                   WHERE pool.id = beat.pool_id))}}
                         ORDER BY live.queued_at LIMIT 1)
                        <= clock_timestamp() - make_interval(secs => %(feed_after)s) AS runs_wait,
       CASE WHEN %(idle)s THEN (
           SELECT count(*) FROM (
               SELECT FROM beatkeeper_worker_node worker
               WHERE worker.pool_id = beat.pool_id AND {{living_worker(worker, beat.last_beat_at)}}
                 AND worker.tenant_id IS NOT DISTINCT FROM beat.tenant_id
                 AND pg_column_size(worker.known_targets) = beat.targets_size
                 AND worker.busy + worker.foreign_busy < worker.slots
               LIMIT %(most_looking)s
           ) alike
       ) ELSE 0 END AS looking
FROM beat;

-- name: acknowledge_cancels
-- Bodies that got a request to stop because their run is to be cancelled; what ended meanwhile has no row.
UPDATE beatkeeper_live_run live SET cancel_acknowledged_at = clock_timestamp()
FROM (
    SELECT id FROM beatkeeper_live_run
    WHERE claim_token = ANY (%(stopping)s::uuid[]) AND worker = %(incarnation)s AND state = 'running'
      AND cancel_requested_at IS NOT NULL AND cancel_acknowledged_at IS NULL
    -- By id, as everybody locks runs: this statement and a cancel or a report of several never wait in a circle.
    ORDER BY id
    FOR UPDATE
) stopping
WHERE live.id = stopping.id;

-- name: claims_in_hand
-- What became of the claims a worker says it holds.
SELECT token.value AS token, live.id IS NULL AS gone, live.cancel_requested_at IS NOT NULL AS cancelled,
       coalesce(live.terminate, false) AS terminated
FROM unnest(%(held)s::uuid[]) AS token (value)
LEFT JOIN LATERAL (
    -- OFFSET 0 keeps the planner from joining by worker: of what a worker ran before, that index may have many entries.
    SELECT * FROM beatkeeper_live_run WHERE claim_token = token.value OFFSET 0
) live ON live.worker = %(incarnation)s AND live.state = 'running'
WHERE live.id IS NULL OR live.cancel_requested_at IS NOT NULL;

-- name: queues_with_work
-- Queues of the worker's pool that hold runs queued for a while: tenants by loose index scan, one probe each.
WITH RECURSIVE pool AS MATERIALIZED (
    SELECT queued_since FROM beatkeeper_pool WHERE id = %(pool_id)s
), tenant (id) AS (
    SELECT min(live.tenant_id) FROM beatkeeper_live_run live
    WHERE {{still_queued(live, %(pool_id)s, (SELECT queued_since FROM pool))}}
      AND (%(of_tenant)s::int IS NULL OR live.tenant_id = %(of_tenant)s)
    UNION ALL
    SELECT (SELECT min(live.tenant_id) FROM beatkeeper_live_run live
            WHERE {{still_queued(live, %(pool_id)s, (SELECT queued_since FROM pool))}}
              AND live.tenant_id > tenant.id)
    FROM tenant WHERE tenant.id IS NOT NULL AND %(of_tenant)s::int IS NULL
)
SELECT queue.id, queue.pool_id, queue.tenant_id, queue.broker_queue
FROM tenant
JOIN beatkeeper_queue queue ON queue.pool_id = %(pool_id)s AND queue.tenant_id = tenant.id
CROSS JOIN LATERAL (
    SELECT live.rank FROM beatkeeper_live_run live
    WHERE {{still_queued(live, %(pool_id)s, (SELECT queued_since FROM pool))}} AND live.tenant_id = tenant.id
      AND live.queued_at <= clock_timestamp() - make_interval(secs => %(feed_after)s)
      AND live.target_key = ANY (%(known)s)
    ORDER BY live.rank LIMIT 1
) first
ORDER BY first.rank
LIMIT %(most)s;

-- name: known_targets
-- The targets an incarnation named when it registered.
SELECT known_targets FROM beatkeeper_worker_node WHERE incarnation = %(incarnation)s;

-- name: plan_generically
-- For the rest of the transaction: plan a prepared statement once, without values, and by indexes. The plan that is best
-- for the empty tables of a new installation would read them whole.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

-- name: claim
-- Claim runs of all queues of the pool, for a worker that lives and is no tenant's. By rank across queues one old backlog
-- would take every batch, so the runs queued first decide how many each queue gives, and rank decides which. Those runs
-- are locked, so two claims at once never count one twice.
WITH {{claiming_worker(true, live.queued_at)}}, seen AS MATERIALIZED (
    {{queued_first}} LIMIT (SELECT runs FROM share)
), wanted AS MATERIALIZED (
    SELECT count(*) AS runs FROM ({{first_of_a_slot(seen, queued_at)}}) first
), turns AS MATERIALIZED (
    -- No more are locked than are taken: other claims would find none, and their slots stay free.
    {{queued_first}} LIMIT (SELECT runs FROM wanted) FOR UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT tenant_id, count(*) AS runs FROM ({{first_of_a_slot(turns, queued_at)}}) first
    GROUP BY tenant_id
), picked AS MATERIALIZED (
    -- The outer limit tells the planner how few they are.
    SELECT best.id, best.rank
    FROM taken CROSS JOIN LATERAL (
        SELECT live.id, live.rank FROM beatkeeper_live_run live
        WHERE {{queued_for_worker(live)}} AND live.tenant_id = taken.tenant_id
          AND live.target_key = ANY (%(known)s)
        ORDER BY live.rank LIMIT taken.runs
        -- A run that is being claimed, cancelled or recalled is skipped: after the commit it is no longer queued.
        FOR UPDATE SKIP LOCKED
    ) best
    LIMIT %(most)s
), {{claimed_from_picked(turns)}};

-- name: claim_of_queue
-- The queue's lowest-ranked queued runs of targets we know become ours, if our incarnation lives.
WITH {{claiming_worker(live.tenant_id BETWEEN coalesce(worker.tenant_id, 0) AND coalesce(worker.tenant_id, 2147483647),
                        live.tenant_id)}}, seen AS MATERIALIZED (
    {{best_of_queue}} LIMIT (SELECT runs FROM share)
), wanted AS MATERIALIZED (
    SELECT count(*) AS runs FROM ({{first_of_a_slot(seen, rank)}}) first
), best AS MATERIALIZED (
    -- The outer limit tells the planner how few they are.
    SELECT * FROM (
        {{best_of_queue}} LIMIT (SELECT runs FROM wanted)
        -- Of two workers with a wake-up each, one has the row; the other takes the next. A run that is being cancelled
        -- or recalled is skipped as well: after the commit it is no longer queued.
        FOR UPDATE SKIP LOCKED
    ) best
    LIMIT %(most)s
), picked AS MATERIALIZED (
    {{first_of_a_slot(best, rank)}}
), {{claimed_from_picked(best)}};

-- name: claim_again
-- The claims whose answer was lost, by the tokens of their requests.
SELECT live.id AS run_id, live.state, live.claim_seq, live.claim_token AS token, live.worker AS incarnation,
       live.attempt, live.job_id, live.version, live.tenant_id, live.trigger, live.planned_at, live.claimed_at,
       live.input, live.gated, live.traceparent, live.losses,
       job.name AS job_name, version.target, version.timeout_ms, version.retry, tenant.slug AS tenant,
       tenant.allowed_hosts
FROM beatkeeper_live_run live
JOIN beatkeeper_job job ON job.id = live.job_id
JOIN beatkeeper_job_version version ON version.job_id = live.job_id AND version.version = live.version
JOIN beatkeeper_tenant tenant ON tenant.id = live.tenant_id
WHERE live.claim_token = ANY (%(tokens)s::uuid[]) AND live.worker = %(worker)s AND live.state = 'running'
ORDER BY live.claim_token;

-- name: secrets
-- What claims need of their tenants' secrets, still encrypted. Their use is noted once an hour. SKIP LOCKED: claims
-- that run at once do not wait for each other, nor for a person who gives the secret a new value.
WITH wanted AS MATERIALIZED (
    SELECT secret.id, secret.tenant_id, secret.name, secret.ciphertext, secret.last_used_at
    FROM unnest(%(tenants)s::int[], %(names)s::text[]) AS named (tenant_id, name)
    JOIN beatkeeper_secret secret ON secret.tenant_id = named.tenant_id AND secret.name = named.name
), stale AS MATERIALIZED (
    SELECT id FROM beatkeeper_secret
    WHERE id IN (SELECT id FROM wanted
                 WHERE last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 hour')
    FOR NO KEY UPDATE SKIP LOCKED
), used AS (
    UPDATE beatkeeper_secret secret SET last_used_at = clock_timestamp() FROM stale WHERE secret.id = stale.id
)
SELECT tenant_id, name, ciphertext FROM wanted;

-- name: lock_gate
-- Before a run of a job with a gate ends: of two reports that each see the other's run unfinished neither would release
-- what waits; the gate makes one look after the other. A process that is frozen with the gate loses it soon, or the job
-- would stand still with it.
SELECT EXISTS (SELECT FROM beatkeeper_breaker breaker WHERE breaker.job_id = gate.job_id) AS breaks,
       set_config('idle_in_transaction_session_timeout', '5s', true)
FROM beatkeeper_job_gate gate WHERE job_id = %(job_id)s FOR UPDATE;

-- name: note_breaker
-- What an ended attempt says to the breaker of its job; the caller holds the gate. So many failures in a row open a
-- closed one. Of a half-open one only the probe counts, of an open one no run: those runs began before.
WITH before AS MATERIALIZED (
    SELECT job_id, state FROM beatkeeper_breaker
    WHERE job_id = %(job_id)s AND (state = 'closed' OR (state = 'half_open' AND probe = %(run_id)s))
), after AS MATERIALIZED (
    SELECT breaker.job_id, before.state AS was,
           CASE WHEN %(failed)s THEN least(failures + 1, "limit") ELSE 0 END AS failures,
           %(failed)s AND (before.state = 'half_open' OR failures + 1 >= "limit") AS opens
    FROM beatkeeper_breaker breaker JOIN before USING (job_id)
)
UPDATE beatkeeper_breaker breaker
SET state = CASE WHEN after.opens THEN 'open' ELSE 'closed' END,
    failures = after.failures,
    opened_at = CASE WHEN after.opens THEN coalesce(breaker.opened_at, clock_timestamp()) END,
    probe_at = CASE WHEN after.opens THEN clock_timestamp() + make_interval(secs => cooldown_ms / 1000.0) END,
    probe = NULL,
    changed_at = CASE WHEN after.opens OR after.was <> 'closed' THEN clock_timestamp() ELSE changed_at END
FROM after
WHERE breaker.job_id = after.job_id AND (after.opens OR after.was <> 'closed' OR breaker.failures <> after.failures)
RETURNING breaker.job_id, breaker.state, after.was;

-- name: release_broken
-- blocked -> ready, of jobs whose breaker is closed or gone. The caller holds their gates, so no report opens the
-- breaker between the look and the release.
WITH chosen AS MATERIALIZED (
    SELECT waiting.id
    FROM unnest(%(jobs)s::uuid[]) AS job (id)
    LEFT JOIN beatkeeper_breaker breaker ON breaker.job_id = job.id
    CROSS JOIN LATERAL (
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.state = 'blocked' AND live.reason = 'breaker' AND live.job_id = job.id
        ORDER BY live.id LIMIT %(most)s
    ) waiting
    WHERE coalesce(breaker.state, 'closed') = 'closed'
    ORDER BY waiting.id LIMIT %(most)s
), locked AS MATERIALIZED (
    SELECT live.id FROM beatkeeper_live_run live JOIN chosen ON chosen.id = live.id
    WHERE live.state = 'blocked' AND live.reason = 'breaker'
    -- Read again under the lock: a cancel, which holds no gate, may have ended one since.
    ORDER BY live.id FOR UPDATE OF live SKIP LOCKED
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = '' FROM locked WHERE live.id = locked.id;

-- name: end_attempts
-- The one end of an attempt: reported by its worker or by a callback, lost with its worker, overdue, or cancelled while
-- it waits for its callback. Each ends or delays its run, gives it back, or lets it wait for a callback, if the claim
-- is still the one that is named; a failure of a run that somebody wants cancelled is a cancellation. The attempt row
-- is how a repeated report is recognised. The ids stand beside the table of runs once more, or every partition of it
-- would be planned.
WITH reported AS MATERIALIZED (
    SELECT * FROM unnest(
        %(run_ids)s::uuid[], %(claim_seqs)s::int[], %(workers)s::uuid[], %(attempt_ids)s::uuid[],
        %(next_states)s::text[], %(delays)s::float8[], %(outcomes)s::text[], %(results)s::jsonb[],
        %(error_classes)s::text[], %(error_types)s::text[], %(error_lines)s::text[], %(fingerprints)s::text[],
        %(exit_codes)s::int[], %(log_objects)s::text[], %(log_offsets)s::bigint[], %(log_lengths)s::bigint[],
        %(next_inputs)s::jsonb[], %(callback_digests)s::text[], %(callback_contents)s::text[]
    ) AS reported (run_id, of_claim, of_worker, attempt_id, decided_state, delay, outcome, result, error_class,
                   error_type, error_line, fingerprint, exit_code, log_object, log_offset, log_length, next_input,
                   callback_digest, callback_content)
), mine AS MATERIALIZED (
    SELECT live.id, live.tenant_id, live.attempt, live.claim_seq, live.worker, live.state, live.claimed_at,
           live.started_at, live.available_at, live.rank, live.gated, live.cancel_reason, live.queued_at,
           live.cancel_requested_at,
           -- A body that stops before the next heartbeat: the report is the first that tells of it.
           CASE WHEN live.state = 'running' AND live.cancel_requested_at IS NOT NULL AND error_class = 'cancelled'
                THEN coalesce(live.cancel_acknowledged_at, clock_timestamp())
                ELSE live.cancel_acknowledged_at END AS cancel_acknowledged_at,
           CASE WHEN live.state = 'waiting_callback' THEN live.log_object END AS call_object,
           CASE WHEN live.state = 'waiting_callback' THEN live.log_offset END AS call_offset,
           CASE WHEN live.state = 'waiting_callback' THEN live.log_length END AS call_length, reported.*,
           clock_timestamp() + make_interval(secs => reported.delay) AS goes_on_at,
           CASE WHEN decided_state <> 'succeeded' AND cancel_requested_at IS NOT NULL THEN 'cancelled'
                ELSE decided_state END AS next_state
    -- By id, as everybody locks runs, or two batches with runs in common could wait for each other in a circle.
    FROM (SELECT * FROM reported ORDER BY run_id) reported CROSS JOIN LATERAL (
        -- By id alone, with its own lock. The planner expects few running runs and would scan their index, which keeps an
        -- entry of each run since a held transaction began.
        -- The fence: a report that comes after the attempt was failed as lost finds another claim, and locks nothing.
        SELECT * FROM beatkeeper_live_run
        WHERE id = reported.run_id AND claim_seq = reported.of_claim AND worker = reported.of_worker
        FOR UPDATE
    ) live
    -- One that comes after the callback finds another state and changes nothing. Of two that meet, the second waits for
    -- the row and reads it again. No worker can end what waits for its callback: the one that brings the token can, or a
    -- deadline or a cancel.
    WHERE live.state = 'running' OR (live.state = 'waiting_callback' AND decided_state NOT IN ('waiting_callback', 'ready')
                                     AND live.callback_digest = reported.callback_digest)
), ended AS (
    DELETE FROM beatkeeper_live_run live USING mine
    WHERE live.id = mine.id AND mine.next_state NOT IN ('delayed', 'ready', 'waiting_callback')
), waits AS (
    -- Worker and instant of the claim stay, for the row of the attempt.
    UPDATE beatkeeper_live_run live
    SET state = 'waiting_callback', callback_digest = mine.callback_digest, claim_token = NULL,
        wake_at = mine.goes_on_at,
        log_object = mine.log_object, log_offset = mine.log_offset, log_length = mine.log_length
    FROM mine
    WHERE live.id = mine.id AND mine.next_state = 'waiting_callback'
), went_on AS (
    UPDATE beatkeeper_live_run live
    SET state = mine.next_state,
        attempt = CASE WHEN mine.next_state = 'ready' THEN live.attempt - 1 ELSE live.attempt END,
        reason = CASE WHEN mine.next_state = 'ready' THEN 'given_back'
                      WHEN mine.error_class = 'worker_lost' THEN 'worker_lost' ELSE 'retry' END,
        losses = live.losses + CASE WHEN mine.error_class = 'worker_lost' THEN 1 ELSE 0 END,
        input = coalesce(mine.next_input, live.input),
        -- What is given back keeps its place in the queue, and that its handing over was counted.
        available_at = CASE WHEN mine.next_state = 'ready' THEN live.available_at ELSE mine.goes_on_at END,
        rank = CASE WHEN mine.next_state = 'ready' THEN live.rank
                    ELSE live.rank + (1000 * extract(epoch FROM mine.goes_on_at - live.available_at))::bigint END,
        wake_at = CASE WHEN mine.next_state = 'ready' THEN NULL ELSE mine.goes_on_at END,
        queued_at = CASE WHEN mine.next_state = 'ready' THEN live.queued_at END,
        worker = NULL, claim_token = NULL, claimed_at = NULL, callback_digest = NULL
    FROM mine
    WHERE live.id = mine.id AND mine.next_state IN ('delayed', 'ready')
), noted AS (
    INSERT INTO beatkeeper_attempt
        (id, run_id, tenant_id, number, claim_seq, worker, worker_name, started_at, finished_at, outcome, next_state,
         error_class, error_type, error_line, fingerprint, exit_code, log_object, log_offset, log_length,
         callback_digest, callback_content)
    SELECT mine.attempt_id, mine.id, mine.tenant_id, mine.attempt, mine.claim_seq, mine.worker,
           coalesce((SELECT name FROM beatkeeper_worker_node WHERE incarnation = mine.worker), ''),
           mine.claimed_at, clock_timestamp(),
           CASE WHEN mine.next_state = 'cancelled' THEN 'cancelled' ELSE mine.outcome END, mine.next_state,
           mine.error_class, mine.error_type, mine.error_line, mine.fingerprint, mine.exit_code,
           coalesce(mine.call_object, mine.log_object), coalesce(mine.call_offset, mine.log_offset),
           coalesce(mine.call_length, mine.log_length), mine.callback_digest, mine.callback_content
    FROM mine WHERE mine.next_state <> 'waiting_callback'
), finished AS (
    UPDATE beatkeeper_run run
    SET {{run_ended(mine, mine.next_state, mine.cancel_requested_at)}}, result = mine.result,
        reason = CASE WHEN mine.next_state = 'cancelled' THEN mine.cancel_reason
                      WHEN mine.error_class = 'worker_lost' THEN 'worker_lost' ELSE '' END,
        -- A run that died says why, or the list of what went wrong would not find it.
        error_class = CASE WHEN mine.next_state = 'cancelled' THEN 'cancelled'
                           WHEN mine.next_state = 'dead' AND mine.error_class = '' THEN 'permanent'
                           ELSE mine.error_class END,
        error_type = mine.error_type, error_line = mine.error_line, fingerprint = mine.fingerprint,
        exit_code = mine.exit_code, log_object = coalesce(mine.call_object, mine.log_object),
        log_offset = coalesce(mine.call_offset, mine.log_offset),
        log_length = coalesce(mine.call_length, mine.log_length)
    FROM mine
    WHERE run.id = mine.id AND run.id = ANY (%(run_ids)s::uuid[])
      AND mine.next_state NOT IN ('delayed', 'ready', 'waiting_callback')
)
SELECT attempt_id, next_state, gated FROM mine;

-- name: reported_before
-- What an earlier delivery of the same reports decided. An attempt that recovery ended has no log: then this report has
-- not arrived before, and its log must be kept where it is.
SELECT attempt.id AS attempt_id, attempt.next_state
FROM unnest(%(attempt_ids)s::uuid[], %(workers)s::uuid[], %(log_objects)s::text[]) AS reported (id, worker, log_object)
JOIN beatkeeper_attempt attempt ON attempt.id = reported.id AND attempt.id = ANY (%(attempt_ids)s::uuid[])
WHERE attempt.worker = reported.worker AND (attempt.log_object <> '' OR reported.log_object = '')
UNION ALL
-- The answer to the call had been reported: the run still waits.
SELECT reported.id, live.state
FROM unnest(%(attempt_ids)s::uuid[], %(run_ids)s::uuid[], %(callback_digests)s::text[]) AS reported (id, run_id, digest)
JOIN beatkeeper_live_run live ON live.id = reported.run_id AND live.callback_digest = reported.digest
WHERE live.state = 'waiting_callback';

-- name: release_gated
-- blocked -> ready, as many as the limit has room for beside what is on its way; all, if the limit is gone. A ready
-- run counts in its own pool only: nobody knows when that of another will go, and dispatch counts again under the gate.
WITH waiting AS MATERIALIZED (
    -- Pools by loose index scan, however many runs of the job wait there.
    SELECT job.id AS job_id, held.pool_id
    FROM unnest(%(jobs)s::uuid[]) AS job (id)
    CROSS JOIN LATERAL (
        {{distinct_values(pool_id, beatkeeper_live_run,
                          state = 'blocked' AND reason = 'concurrency' AND job_id = job.id)}}
    ) held (pool_id)
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
        -- A run that somebody has is being cancelled or released: the next one goes in its place.
        FOR UPDATE SKIP LOCKED
    ) best
)
UPDATE beatkeeper_live_run live SET state = 'ready', reason = ''
-- As an array, of which the planner expects few; joined to many, all live runs would be read.
WHERE live.id = ANY (ARRAY(SELECT id FROM chosen));

-- name: release_waiting
-- Of the runs that wait for the others of their job, the oldest goes once none of these is left. The caller holds the
-- gates, and what ended is committed or its own. Every look is a probe of an index, written so that the planner, who
-- expects few runs of a job, cannot walk through a long queue of waiting ones instead.
WITH blocked (reason) AS MATERIALIZED (
    {{distinct_values(reason, beatkeeper_live_run, state = 'blocked')}}
), next AS MATERIALIZED (
    SELECT oldest.id, oldest.available_at > clock_timestamp() AS early
    FROM unnest(%(jobs)s::uuid[]) AS job (id)
    CROSS JOIN LATERAL (
        SELECT live.id, live.available_at, live.reason, live.job_id FROM beatkeeper_live_run live
        WHERE live.state = 'blocked'
          AND (live.reason, live.job_id, live.id) > ('overlap', job.id, '00000000-0000-0000-0000-000000000000'::uuid)
        ORDER BY live.reason, live.job_id, live.id LIMIT 1
    ) oldest
    LEFT JOIN LATERAL (
        {{under_way(job.id)}}
    ) under_way ON true
    LEFT JOIN LATERAL (
        SELECT live.id FROM blocked CROSS JOIN LATERAL (
            SELECT other.id FROM beatkeeper_live_run other
            WHERE other.state = 'blocked' AND other.reason = blocked.reason AND other.job_id = job.id
              AND {{scheduled(other)}}
            LIMIT 1
        ) live
        WHERE blocked.reason <> 'overlap'
        LIMIT 1
    ) held_up ON true
    WHERE oldest.reason = 'overlap' AND oldest.job_id = job.id AND under_way.id IS NULL AND held_up.id IS NULL
)
UPDATE beatkeeper_live_run live
SET state = CASE WHEN next.early THEN 'delayed' ELSE 'ready' END,
    reason = CASE WHEN next.early THEN 'flexible_window' ELSE '' END,
    wake_at = CASE WHEN next.early THEN live.available_at END
FROM next WHERE live.id = next.id AND live.state = 'blocked' AND live.reason = 'overlap'
RETURNING live.id;

-- name: leave
-- A clean stop. Recovery finds claims that are left behind all the same.
UPDATE beatkeeper_worker_node SET state = 'left', held = '{}', last_beat_at = clock_timestamp()
WHERE incarnation = %(incarnation)s AND state IN ('active', 'draining');

-- name: declare
-- Jobs that decorators declare; the platform applies them through its own services.
INSERT INTO beatkeeper_declaration (tenant_id, pool_id, name, source, spec, error, of_key)
SELECT tenant.id, pool.id, %(name)s, %(source)s, %(spec)s, '', %(of_key)s
FROM beatkeeper_tenant tenant, beatkeeper_pool pool
WHERE tenant.slug = %(tenant)s AND pool.slug = %(pool)s
ON CONFLICT (tenant_id, name) DO UPDATE
    SET spec = excluded.spec, pool_id = excluded.pool_id, source = excluded.source, withdrawn_at = NULL,
        declared_at = now(), applied_at = NULL, error = '', of_key = excluded.of_key
    WHERE (beatkeeper_declaration.spec IS DISTINCT FROM excluded.spec
        OR beatkeeper_declaration.pool_id <> excluded.pool_id OR beatkeeper_declaration.error <> ''
        OR beatkeeper_declaration.source <> excluded.source OR beatkeeper_declaration.withdrawn_at IS NOT NULL)
      -- What another pool declares is not a key's to take.
      AND (NOT excluded.of_key OR beatkeeper_declaration.pool_id = excluded.pool_id)
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
