-- Predicates that several statements share, each written once. Arguments are aliases, columns and instants.

-- fragment: within_lease(worker, now)
-- The database's clock judges: the worker's own fences earlier, by the instant at which it sent its last heartbeat.
{{worker}}.last_beat_at > {{now}} - make_interval(secs => {{worker}}.lease_seconds)

-- fragment: living_worker(worker, now)
-- It takes runs. One that drains keeps its claims and takes no more.
{{worker}}.state = 'active' AND {{within_lease({{worker}}, {{now}})}}

-- fragment: serves(worker, tenant_id)
-- One with the key of a tenant takes runs of that tenant alone.
({{worker}}.tenant_id IS NULL OR {{worker}}.tenant_id = {{tenant_id}})

-- fragment: pool_is_open(pool, tenant_id)
({{pool}}.shared OR EXISTS (SELECT FROM beatkeeper_pool_tenant member
                            WHERE member.pool_id = {{pool}}.id AND member.tenant_id = {{tenant_id}}))

-- fragment: exports(pool, target_key)
({{target_key}} = ANY ({{pool}}.exported_tasks)
 OR EXISTS (SELECT FROM unnest({{pool}}.exported_kinds) AS export (kind) WHERE {{target_key}} = 'kind:' || kind))

-- fragment: still_queued(live, pool_id, since)
-- No run that is queued in the pool was queued before `since` (decision 20). The instant is a column of
-- `live_run_queued_idx` and `live_run_turn_idx`, so dead entries are passed over without reading their rows.
{{live}}.state = 'queued' AND {{live}}.pool_id = {{pool_id}} AND {{live}}.queued_at >= {{since}}

-- fragment: distinct_values(column, table, condition)
-- By loose index scan: one probe each, however many rows have the same.
WITH RECURSIVE found (value) AS (
    (SELECT {{column}} FROM {{table}} WHERE {{condition}} ORDER BY {{column}} LIMIT 1)
    UNION ALL
    SELECT (SELECT {{column}} FROM {{table}} WHERE {{condition}} AND {{column}} > found.value
            ORDER BY {{column}} LIMIT 1)
    FROM found WHERE found.value IS NOT NULL
)
SELECT value FROM found WHERE value IS NOT NULL

-- fragment: scheduled(live)
-- Its job's schedule planned it: it counts for the overlap policy, and a pause of the job holds it.
{{live}}.trigger IN ('schedule', 'catch_up')

-- fragment: holding(suspension, now)
-- In force, and runs that wait are held by it.
{{suspension}}.settled_at IS NULL AND {{suspension}}.begins_at <= {{now}}
AND coalesce(least({{suspension}}.lifted_at, {{suspension}}.ends_at), 'infinity') > {{now}}
AND {{suspension}}.effect IN ('hold', 'catch_up')

-- fragment: concerns(suspension, job)
-- What it names of a job fits; its pool is asked apart, because that is the run's.
({{suspension}}.tenant_id IS NULL OR {{suspension}}.tenant_id = {{job}}.tenant_id)
AND ({{suspension}}.job_id IS NULL OR {{suspension}}.job_id = {{job}}.id)
AND ({{suspension}}.tag_name = '' OR {{job}}.tags ->> {{suspension}}.tag_name = {{suspension}}.tag_value
     OR ({{suspension}}.tag_value = '' AND {{job}}.tags ? {{suspension}}.tag_name))

-- fragment: suspended(live, job, now)
EXISTS (SELECT FROM beatkeeper_suspension suspension
        WHERE {{holding(suspension, {{now}})}} AND {{concerns(suspension, {{job}})}}
          AND (suspension.pool_id IS NULL OR suspension.pool_id = {{live}}.pool_id))

-- fragment: held_by(live, job)
-- Why a run may not go for a reason of its own, as its code; NULL: it may. Dispatch, claim and release ask the same.
-- A CASE for the breaker, so that its table is read for jobs with a gate alone.
CASE WHEN {{job}}.status = 'paused' AND {{scheduled({{live}})}} THEN 'paused'
     WHEN CASE WHEN {{live}}.gated
               THEN EXISTS (SELECT FROM beatkeeper_breaker breaker
                            WHERE breaker.job_id = {{live}}.job_id AND breaker.state <> 'closed'
                              AND breaker.probe IS DISTINCT FROM {{live}}.id) ELSE false END THEN 'breaker'
END

-- fragment: run_ended(live, state, cancel_requested_at)
-- What every end writes to the row of the run.
state = {{state}}, ended_from = {{live}}.state, attempts = {{live}}.attempt, queued_at = {{live}}.queued_at,
        started_at = {{live}}.started_at, cancel_requested_at = {{cancel_requested_at}},
        cancel_acknowledged_at = {{live}}.cancel_acknowledged_at, finished_at = clock_timestamp()

-- fragment: under_way(job_id)
-- A scheduled run of the job that is not blocked: a probe for each state, or the planner, who expects few runs of a
-- job, may walk through a long queue of blocked ones.
SELECT live.id
FROM unnest(ARRAY['delayed', 'ready', 'queued', 'running', 'waiting_callback']) AS state (value)
CROSS JOIN LATERAL (
    SELECT other.id FROM beatkeeper_live_run other
    WHERE other.job_id = {{job_id}} AND other.state = state.value AND {{scheduled(other)}}
    LIMIT 1
) live
LIMIT 1

-- fragment: claiming_worker(queues, place)
-- The pool, read once: its row may have many versions. The worker that claims, if it lives, and how many runs a slot of it may take. A worker of an earlier version does not
-- say how long runs take: it gets twice a slot's share of what is queued, or its other slots would be idle.
pool AS MATERIALIZED (
    SELECT id, shared, exported_tasks, exported_kinds, queued_since FROM beatkeeper_pool WHERE id = %(pool_id)s
), worker AS MATERIALIZED (
    SELECT worker.tenant_id, greatest(1, slots) AS slots, pool.queued_since
    FROM beatkeeper_worker_node worker CROSS JOIN pool
    WHERE incarnation = %(worker)s AND pool_id = %(pool_id)s AND {{living_worker(worker, clock_timestamp())}}
), share AS MATERIALIZED (
    SELECT queued,
           CASE WHEN %(most)s = 1 THEN 1
                WHEN %(timed_tenants)s::int[] IS NULL THEN least(%(most)s, ceil(2 * queued / slots::float8)::int)
                ELSE %(most)s END AS runs
    FROM worker CROSS JOIN LATERAL (
        SELECT count(*) AS queued
        FROM (SELECT FROM beatkeeper_live_run live
              WHERE {{still_queued(live, %(pool_id)s, worker.queued_since)}} AND {{queues}}
              ORDER BY {{place}} LIMIT %(most)s * worker.slots + 1) bounded
    ) counted
)

-- fragment: queued_for_worker(live)
{{still_queued({{live}}, %(pool_id)s, (SELECT queued_since FROM worker))}}

-- fragment: queued_first
SELECT live.id, live.tenant_id, live.queued_at FROM beatkeeper_live_run live
WHERE {{queued_for_worker(live)}} AND live.target_key = ANY (%(known)s)
  AND EXISTS (SELECT FROM worker WHERE tenant_id IS NULL)
ORDER BY live.queued_at

-- fragment: best_of_queue
SELECT live.id, live.tenant_id, live.rank FROM beatkeeper_live_run live
WHERE {{queued_for_worker(live)}} AND live.tenant_id = %(tenant_id)s
  AND live.target_key = ANY (%(known)s) AND EXISTS (SELECT FROM worker)
ORDER BY live.rank

-- fragment: first_of_a_slot(runs, place)
-- The first that a slot is expected to do in the time of a batch, and one however long it takes.
SELECT * FROM (
    SELECT queued_run.*, row_number() OVER turn AS turn,
           sum(CASE WHEN %(timed_tenants)s::int[] IS NULL THEN 0 ELSE coalesce(expected.ms, %(batch_ms)s) END)
               OVER turn AS until_ms
    FROM {{runs}} queued_run
    LEFT JOIN unnest(%(timed_tenants)s::int[], %(expected_ms)s::int[]) AS expected (tenant_id, ms) USING (tenant_id)
    WINDOW turn AS (ORDER BY {{place}}, id)
) summed
WHERE turn = 1 OR (turn <= (SELECT runs FROM share) AND until_ms <= %(batch_ms)s)

-- fragment: claimed_from_picked(locked)
-- A run that is held by a pause or a blackout, or no longer permitted in the pool, goes back to ready by the same
-- statement. The tokens follow the ranks, and a run that is held takes none.
looked_up AS (
    SELECT picked.id, picked.rank, job.name AS job_name, version.target, version.timeout_ms, version.retry,
           tenant.slug AS tenant, tenant.allowed_hosts,
           {{held_by(live, job)}} IS NOT NULL OR {{suspended(live, job, clock_timestamp())}}
           OR NOT {{pool_is_open(pool, live.tenant_id)}} OR NOT {{exports(pool, live.target_key)}} AS held
    FROM picked
    JOIN beatkeeper_live_run live ON live.id = picked.id
    JOIN beatkeeper_job job ON job.id = live.job_id
    JOIN beatkeeper_job_version version ON version.job_id = live.job_id AND version.version = live.version
    JOIN beatkeeper_tenant tenant ON tenant.id = live.tenant_id
    CROSS JOIN pool
), numbered AS (
    SELECT *, count(*) FILTER (WHERE NOT held) OVER (ORDER BY rank, id) AS nth,
           count(*) OVER () AS moved
    FROM looked_up
), moved AS (
    UPDATE beatkeeper_live_run live
    SET state = CASE WHEN held THEN 'ready' ELSE 'running' END,
        attempt = live.attempt + CASE WHEN held THEN 0 ELSE 1 END,
        claim_seq = live.claim_seq + CASE WHEN held THEN 0 ELSE 1 END,
        claim_token = CASE WHEN held THEN NULL ELSE (%(tokens)s::uuid[])[nth] END,
        worker = CASE WHEN held THEN NULL ELSE %(worker)s::uuid END,
        claimed_at = CASE WHEN held THEN NULL ELSE clock_timestamp() END,
        started_at = CASE WHEN held THEN live.started_at ELSE coalesce(live.started_at, clock_timestamp()) END,
        wake_at = CASE WHEN held THEN NULL
                       ELSE clock_timestamp() + make_interval(secs => timeout_ms / 1000.0 + %(grace)s) END
    FROM numbered
    WHERE live.id = numbered.id
    RETURNING live.*
)
SELECT moved.id AS run_id, moved.state, moved.claim_seq, moved.claim_token AS token, moved.worker AS incarnation,
       moved.attempt, moved.job_id, moved.version, moved.tenant_id, moved.trigger, moved.planned_at,
       moved.claimed_at, moved.input, moved.gated, moved.traceparent, moved.losses,
       numbered.job_name, numbered.target, numbered.timeout_ms, numbered.retry, numbered.tenant,
       numbered.allowed_hosts,
       -- Others have wake-ups for what is left, and of many short runs for much more. Fewer runs to lock than wanted: all
       -- others are being claimed. A claim of one does not count what is queued.
       %(most)s > 1 AND (share.queued <= moved * CASE WHEN moved < 8 THEN 1 ELSE least(8, worker.slots) END
                         OR (SELECT count(*) FROM {{locked}}) < (SELECT runs FROM wanted)) AS none_left
FROM moved JOIN numbered USING (id) CROSS JOIN share CROSS JOIN worker
ORDER BY moved.claim_token
