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
