-- From ready run to permit: lanes, shares, gates and the marks.

-- name: pools
-- What dispatch is divided by, and the brokers that the permits go to.
SELECT id, broker FROM beatkeeper_pool;

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
-- The pool as its owner set it, how many lanes it has, whether others may come, and the targets that may go there.
SELECT pool.slug, pool.shared,
       (SELECT count(*) FROM beatkeeper_lane lane WHERE lane.pool_id = pool.id),
       CASE WHEN pool.shared THEN (SELECT count(*) FROM (SELECT FROM beatkeeper_tenant LIMIT 2) several)
            ELSE (SELECT count(*) FROM beatkeeper_pool_tenant member WHERE member.pool_id = pool.id) END,
       pool.exported_tasks::text[] || ARRAY(SELECT 'kind:' || kind FROM unnest(pool.exported_kinds) AS export (kind)),
       pool.broker
FROM beatkeeper_pool pool WHERE pool.id = %(pool)s;

-- name: living_nodes
-- Workers of the pool that may claim, the slots they have for us, and the one tenant they work for if they do.
SELECT node.incarnation, greatest(0, node.slots - node.foreign_busy), node.tenant_id FROM beatkeeper_worker_node node
WHERE node.pool_id = %(pool)s AND node.state = 'active'
  AND node.last_beat_at > %(now)s - make_interval(secs => node.lease_seconds);

-- name: targets_of_nodes
-- Of what each of these workers knows that which the pool exports, and for whom: none, for everybody.
SELECT node.incarnation, node.tenant_id,
       ARRAY(SELECT unnest(node.known_targets)::text INTERSECT SELECT unnest(%(exported)s::text[]))
FROM beatkeeper_worker_node node
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
-- Exact counts of what each lane has handed over: running, the slots that takes, queued, and the slots taken elsewhere
-- than on living nodes, or on those of its own. Runs claimed together share a slot, and all but the last two digits of
-- their tokens.
SELECT tenant_id, sum(running)::int, sum(slots)::int, sum(queued)::int, sum(elsewhere)::int, sum(own_running)::int
FROM (
    SELECT tenant_id, count(*) AS running, count(DISTINCT left(claim_token::text, -2)) AS slots, 0 AS queued,
           count(DISTINCT left(claim_token::text, -2)) FILTER (WHERE worker <> ALL (%(nodes)s::uuid[])) AS elsewhere,
           count(DISTINCT left(claim_token::text, -2)) FILTER (WHERE worker = ANY (%(own_nodes)s::uuid[])) AS own_running
    FROM beatkeeper_live_run
    WHERE state = 'running' AND pool_id = %(pool)s GROUP BY tenant_id
    UNION ALL
    SELECT tenant_id, 0, 0, count(*), 0, 0 FROM beatkeeper_live_run
    WHERE state = 'queued' AND pool_id = %(pool)s GROUP BY tenant_id
) counted
GROUP BY tenant_id;

-- name: queued_for_own
-- Of tenants with workers of their own, how much is queued of each target.
SELECT live.tenant_id, live.target_key, count(*)::int FROM beatkeeper_live_run live
WHERE live.state = 'queued' AND live.pool_id = %(pool)s AND live.tenant_id = ANY (%(tenants)s::int[])
GROUP BY live.tenant_id, live.target_key;

-- name: lanes
-- The lanes of these tenants, made or not yet made, and those that still show a reason.
SELECT tenant.id, tenant.slug, tenant.weight, tenant.max_running, tenant.rate_limit,
       tenant.daily_quota, lane.id, coalesce(lane.queue, ''), lane.tokens, lane.tokens_at, lane.day,
       coalesce(lane.day_count, 0), coalesce(lane.reason, ''), coalesce("window", 0),
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

-- name: uncount_returned
-- Runs of these lanes handed over that came back before anybody claimed them: of the day's count, so many are not.
WITH picked AS MATERIALIZED (
    SELECT live.id, live.tenant_id, live.queued_at FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.queued_at IS NOT NULL AND live.pool_id = %(pool)s
      AND live.tenant_id = ANY (%(tenants)s::int[])
    ORDER BY live.id LIMIT %(most)s FOR UPDATE SKIP LOCKED
), cleared AS (
    UPDATE beatkeeper_live_run live SET queued_at = NULL FROM picked WHERE live.id = picked.id
)
SELECT tenant_id, count(*) FILTER (WHERE queued_at >= %(midnight)s)::int FROM picked GROUP BY tenant_id;

-- name: write_lanes
-- What changed of a lane: why it cannot go, its bucket, its count of the day, its window.
UPDATE beatkeeper_lane lane
SET reason = new.reason, tokens = new.tokens, tokens_at = new.tokens_at, day = new.day, day_count = new.day_count,
    "window" = new."window"
FROM (
    SELECT * FROM unnest(%(tenants)s::int[], %(reasons)s::text[], %(tokens)s::float8[], %(tokens_at)s::timestamptz[],
                         %(days)s::date[], %(day_counts)s::bigint[], %(windows)s::int[])
        AS given (tenant_id, reason, tokens, tokens_at, day, day_count, "window")
    ORDER BY tenant_id
) new
WHERE lane.pool_id = %(pool)s AND lane.tenant_id = new.tenant_id;

-- name: queues_of_pools
-- What the brokers of these pools must hold.
SELECT DISTINCT pool_id, queue FROM beatkeeper_lane WHERE pool_id = ANY (%(pools)s::int[]);

-- name: rename_lanes
-- The queues of a pool whose broker wants others. A worker hears of lanes by their ids: with a new one it consumes
-- from the new queue, and goes on with the old one until it is empty.
WITH renamed AS MATERIALIZED (
    SELECT lane.id, regexp_replace(lane.queue, '[^.]*$', held.version) AS queue
    FROM unnest(%(pools)s::int[], %(versions)s::text[]) AS held (pool_id, version)
    JOIN beatkeeper_lane lane ON lane.pool_id = held.pool_id
    WHERE lane.queue <> regexp_replace(lane.queue, '[^.]*$', held.version)
    ORDER BY lane.id FOR UPDATE OF lane
)
UPDATE beatkeeper_lane lane SET id = DEFAULT, queue = renamed.queue FROM renamed WHERE lane.id = renamed.id;

-- name: best_ready
-- The best few of each lane in rank order, locked: priority with aging, exactly. What somebody else has is left out.
SELECT best.ctid, best.tenant_id, best.rank, best.target_key,
       CASE WHEN gate.max_running IS NOT NULL THEN best.job_id END,
       best.trigger IN ('schedule', 'catch_up') AND job.status = 'paused',
       coalesce(breaker.state <> 'closed' AND breaker.probe IS DISTINCT FROM best.id, false),
       CASE WHEN %(need_tags)s THEN job.tags::text END
FROM unnest(%(tenants)s::int[], %(counts)s::int[]) AS lane (tenant_id, count)
CROSS JOIN LATERAL (
    SELECT live.ctid, live.id, live.tenant_id, live.job_id, live.rank, live.target_key, live.trigger, live.gated
    FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.pool_id = %(pool)s AND live.tenant_id = lane.tenant_id
    ORDER BY live.rank LIMIT lane.count
    FOR UPDATE SKIP LOCKED
) best
JOIN beatkeeper_job job ON job.id = best.job_id
LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = best.job_id
LEFT JOIN beatkeeper_breaker breaker ON best.gated AND breaker.job_id = best.job_id
ORDER BY best.rank;

-- name: next_ready
-- The same behind a run that was read last: of lanes whose best wait for workers of their own.
SELECT best.ctid, best.tenant_id, best.rank, best.target_key,
       CASE WHEN gate.max_running IS NOT NULL THEN best.job_id END,
       best.trigger IN ('schedule', 'catch_up') AND job.status = 'paused',
       coalesce(breaker.state <> 'closed' AND breaker.probe IS DISTINCT FROM best.id, false),
       CASE WHEN %(need_tags)s THEN job.tags::text END, best.id
FROM unnest(%(tenants)s::int[], %(ranks)s::bigint[], %(ids)s::uuid[]) AS lane (tenant_id, rank, run_id)
CROSS JOIN LATERAL (
    SELECT live.ctid, live.id, live.tenant_id, live.job_id, live.rank, live.target_key, live.trigger, live.gated
    FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.pool_id = %(pool)s AND live.tenant_id = lane.tenant_id
      AND (live.rank, live.id) > (lane.rank, lane.run_id)
    ORDER BY live.rank, live.id LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
) best
JOIN beatkeeper_job job ON job.id = best.job_id
LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = best.job_id
LEFT JOIN beatkeeper_breaker breaker ON best.gated AND breaker.job_id = best.job_id
ORDER BY best.rank, best.id;

-- name: lock_gates
-- Before counting; a gate that a report holds is left out, and its job's runs wait for the next pass.
SELECT job_id, max_running FROM beatkeeper_job_gate
WHERE job_id = ANY (%(jobs)s::uuid[]) AND max_running IS NOT NULL ORDER BY job_id FOR UPDATE SKIP LOCKED;

-- name: occupied_gates
-- Counted after the gate was locked, so no earlier release or mark is missed.
SELECT job.id, count(*)::int
FROM unnest(%(jobs)s::uuid[]) AS job (id)
CROSS JOIN unnest(ARRAY['queued', 'running', 'waiting_callback']) AS state (value)
CROSS JOIN LATERAL (
    -- A probe for each, or the planner, who expects few runs of a job, walks through all that are blocked.
    SELECT FROM beatkeeper_live_run live WHERE live.job_id = job.id AND live.state = state.value OFFSET 0
) taken
GROUP BY job.id;

-- name: mark_queued
-- ready -> queued, committed before any permit is published. The rows are locked, so they lie where they lay.
UPDATE beatkeeper_live_run live SET state = 'queued', reason = '', queued_at = clock_timestamp()
WHERE live.ctid = ANY (%(ctids)s::tid[]) AND live.state = 'ready';

-- name: mark_blocked
-- ready -> blocked, for the run's own reason. The rows are locked.
UPDATE beatkeeper_live_run live SET state = 'blocked', reason = new.reason
FROM unnest(%(ctids)s::tid[], %(reasons)s::text[]) AS new (at, reason)
WHERE live.ctid = new.at AND live.state = 'ready';

-- name: recall
-- queued -> ready, of lanes that have too much queued the least urgent; what is being claimed goes. No permit is
-- recalled: it finds nothing. How many of each, and how many of these count for this day.
WITH locked AS MATERIALIZED (
    SELECT last.* FROM unnest(%(tenants)s::int[], %(counts)s::int[]) AS lane (tenant_id, count)
    CROSS JOIN LATERAL (
        SELECT live.id, live.tenant_id, live.queued_at FROM beatkeeper_live_run live
        WHERE live.state = 'queued' AND live.pool_id = %(pool)s AND live.tenant_id = lane.tenant_id
        ORDER BY live.rank DESC, live.queued_at DESC LIMIT lane.count
        FOR UPDATE SKIP LOCKED
    ) last
    LIMIT %(most)s
), moved AS (
    UPDATE beatkeeper_live_run live SET state = 'ready', queued_at = NULL FROM locked WHERE live.id = locked.id
    RETURNING locked.tenant_id, locked.queued_at
)
SELECT tenant_id, count(*)::int, count(*) FILTER (WHERE queued_at >= %(midnight)s)::int
FROM moved GROUP BY tenant_id;
